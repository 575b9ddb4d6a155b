"""Interrupts: at a chosen moment, and at many."""

import contextlib
import dis
import functools
import itertools
import os
import signal

import penstock


class CtrlC:
    """Raises KeyboardInterrupt in penstock's code, at the moment `when`. Moments are when Python runs the handlers of
    signals: after a call or a jump back, and at the beginning of a function."""

    def __init__(self, when):
        self.left = when
        self.came = False
        self.before = {}  # the latest instruction of each frame

    def __call__(self, frame, event, _):
        if self.came or not is_penstocks(frame):
            return None
        frame.f_trace_opcodes = True
        if event == "call" or (event == "opcode" and self.before.get(frame, "").startswith(("CALL", "JUMP_BACK"))):
            self.left -= 1
            if self.left < 0:
                self.came = True
                raise KeyboardInterrupt
        if event == "opcode":
            self.before[frame] = instruction(frame.f_code, frame.f_lasti)
        return self


def is_penstocks(frame):
    """True in penstock's code, unless the garbage collector has called it."""
    if not frame.f_code.co_filename.startswith(os.path.join(os.path.dirname(penstock.__file__), "")):
        return False
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is None


@functools.cache
def instructions(code):
    return {one.offset: one.opname for one in dis.get_instructions(code)}


def instruction(code, offset):
    return instructions(code)[offset]


class Alarm(BaseException):
    pass


@contextlib.contextmanager
def alarms():
    """Gives a function that asks an iterator for a batch, and has an alarm come after a delay, unless the batch comes
    first. It returns a list, in which the batch is if it came, and whether the alarm did."""
    inside = False

    def ring(*_):
        nonlocal inside
        if inside:
            inside = False
            raise Alarm

    def asked(iterator, delay):
        nonlocal inside
        taken, rang = [], False
        try:
            inside = True
            signal.setitimer(signal.ITIMER_REAL, delay)
            taken.extend(itertools.islice(iterator, 1))
            inside = False
        except Alarm:
            rang = True
        return taken, rang

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield asked
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def taken_amid_alarms(fed, keep, delays=(0.0005, 0.001, 0.002, 0.004, 0.008, 0.016)):
    """The batches of an epoch, in which alarms come while a batch is asked for; how many came, and the iterator. Each
    request has an alarm of its own, after one of the delays in turn: the long ones let slow requests end."""
    count, iterator = 0, iter(fed)
    got = [keep(batch) for batch in itertools.islice(iterator, 1)]
    with alarms() as asked:
        for delay in itertools.cycle(delays):
            taken, rang = asked(iterator, delay)
            got += map(keep, taken)
            count += rang
            if not taken and not rang:
                break
    return got, count, iterator
