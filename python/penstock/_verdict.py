"""What the measured times of a DataLoader say. Everything here is a pure function of them: see docs/doctor.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from . import _core
from ._worth import _time

WORTHWHILE = 1.1  # times as many batches: less is within what two runs differ by
HIGH = 1.5  # times as many batches: severity "high"
ENOUGH = 0.95  # of the best rate: fewer workers that reach it are enough
DOMINATES = 0.5  # of the time of a worker
STARTING = 0.1  # of an epoch
EXPLAINED = 1.25  # times what the model says, or the other way round: it explains what was measured

SHARE = "let workers share the samples out (torch.utils.data.get_worker_info() in __iter__, or a worker_init_fn)"
IN_THE_LOADER = ("fetch", "collate", "transport", "pin")


@dataclass
class Timings:
    """What was measured: seconds a batch, if nothing else is said. None was not measured, and `notes` say why."""

    workers: int  # that the loader is configured with
    samples: float  # in a batch
    whole: float  # the loader as it is configured
    fetch: float  # in one process
    collate: float  # in one process
    transport: float | None = None  # with the loader's workers; None without workers
    pin: float | None = None
    copy: float | None = None
    busy: float | None = None  # processor seconds of fetch and collate
    receive: float | None = None  # processor seconds of this process, with workers
    again: float | None = None  # the loader as it is configured, once more at the end
    processors: int = 1  # that workers and this process share
    step: float | None = None  # what the consumer does with a batch; None if it was not told
    pins: bool = False  # the loader pins its batches
    without: dict[str, float] = field(default_factory=dict)  # the loader with a stage left out; empty without workers
    by_workers: dict[int, float] = field(default_factory=dict)  # the loader with other numbers of workers
    left_out: list[int] = field(default_factory=list)  # numbers of workers whose batches do not fit into /dev/shm
    starts: dict[int, float] = field(default_factory=dict)  # seconds until the first batch, by numbers of workers
    batches: int | None = None  # of an epoch; None if the loader cannot tell
    persistent: bool = False  # workers outlive an epoch
    streams: bool = False  # the dataset is iterable-style
    shared: bool | None = None  # its workers share the samples out; False if each yields all, None if it is not known
    notes: list[str] = field(default_factory=list)

    @property
    def consumer(self) -> float:
        """The consumer's time: the copy to the device and its step."""
        return (self.copy or 0) + (self.step or 0)

    @property
    def received(self) -> float:
        """What the consumer takes for a batch in next(), if workers have made it. A loader that pins has a thread."""
        return 0.0 if self.pins else self.receive or 0.0

    def loop(self, loader: float, workers: int, consumer: float) -> float:
        """A turn of the training loop. Workers make batches while the consumer works; without them it waits."""
        return max(loader, consumer + self.received) if workers else loader + consumer

    @property
    def turn(self) -> float:
        """A turn of the loop as it is configured."""
        return self.loop(self.whole, self.workers, self.consumer)

    @property
    def start(self) -> float:
        """Seconds until the first batch of the loader as it is configured."""
        return self.starts.get(self.workers, 0.0)

    def turn_with(self, workers: int) -> float:
        """A turn of the loop with a number of workers that was tried, as the mean of an epoch."""
        return self.in_epoch(self.by_workers[workers], workers)

    def steady_turn(self, workers: int) -> float:
        """A turn of the loop with a number of workers that was tried, once they have started."""
        return self.loop(self.by_workers[workers], workers, self.consumer)

    def in_epoch(self, loader: float, workers: int) -> float:
        """A turn of the loop as the mean of an epoch, of which workers make the first batch no faster than one does."""
        turn = self.loop(loader, workers, self.consumer)
        if workers == 0 or not self.batches:
            return turn
        return turn + max(0.0, self._first(workers) + self.consumer - turn) / self.batches

    def _first(self, workers: int) -> float:
        """Seconds until the first batch of an epoch. Workers of a loader without any may as well be persistent."""
        if self.workers == 0:
            return self.whole
        return self.fetch + self.collate if self.persistent else self.start_with(workers)

    def start_with(self, workers: int) -> float:
        """Seconds until the first batch. More workers take no less than fewer, which may open files for them."""
        return max((start for number, start in self.starts.items() if 0 < number <= workers), default=0.0)

    def starts_slowly(self, workers: int) -> bool:
        """True if this many workers are started for each epoch, and that takes at least 10 % of it."""
        if workers == 0 or self.persistent or not self.batches:
            return False
        start = self.start_with(workers)
        epoch = self.batches * self.steady_turn(workers)
        return start >= STARTING * (start + epoch)

    def predicted(self, workers: int) -> float | None:
        """The loader with a number of workers that was not tried: from the largest that was, by the model of a loader.

        None if none was tried, or if that one is more than 25 % off what the model says. Something else limits it then.
        """
        tried = max(self.by_workers, default=0)
        if tried == 0 or self.busy is None:
            return None
        measured, modelled = self.by_workers[tried], self._modelled(tried)
        if max(measured, modelled) > EXPLAINED * min(measured, modelled):
            return None
        return measured * self._modelled(workers) / modelled

    def _modelled(self, workers: int) -> float:
        return _core.predict_loader(
            fetch=self.fetch,
            collate=self.collate,
            waiting=max(0.0, self.fetch + self.collate - (self.busy or 0)),
            receive=self.receive or 0,
            workers=workers,
            processors=self.processors,
        )

    @property
    def left_out_predicted(self) -> dict[int, float]:
        """The loader with each number of workers that was left out, if it is predicted."""
        predicted = {number: self.predicted(number) for number in self.left_out}
        return {number: seconds for number, seconds in predicted.items() if seconds is not None}

    def promises(self, workers: int) -> bool:
        """True if so many workers, which were not tried, are predicted to be 5 % faster than all that were."""
        seconds = self.predicted(workers)
        if seconds is None:
            return False
        return self.in_epoch(seconds, workers) < ENOUGH * min(map(self.turn_with, self.by_workers))


@dataclass
class Gain:
    """What a change would save of a turn of the loop, in seconds. The truth is expected between the two."""

    low: float = 0.0
    high: float = 0.0


@dataclass
class Finding:
    """One result. `severity` is "high", "medium" or "note"; `change` says what to write, "" if there is nothing."""

    id: str
    severity: str
    text: str
    change: str
    gain_seconds_per_step: Gain = field(default_factory=Gain)


def stages(timings: Timings) -> dict[str, float | None]:
    """Seconds a batch of each stage of the loop."""
    return {
        "fetch": timings.fetch,
        "collate": timings.collate,
        "transport": timings.transport,
        "pin": timings.pin,
        "copy": timings.copy,
        "consumer": timings.step,
    }


def ceilings(timings: Timings) -> dict[str, float | None]:
    """The turn of the loop with each stage left out, in seconds. None if the stage is not in it, or not measured."""
    left: dict[str, float | None] = dict.fromkeys(stages(timings))
    for name in IN_THE_LOADER:
        seconds = stages(timings)[name]
        if seconds is None or (name == "pin" and not timings.pins):
            continue
        if timings.workers == 0:
            in_turn = timings.fetch + timings.collate + ((timings.pin or 0) if timings.pins else 0)
            scale = min(1.0, timings.whole / in_turn)  # the stages and the whole were measured in different runs
            left[name] = timings.turn - seconds * scale
        elif name in timings.without:
            received = 0.0 if name == "transport" else timings.received
            left[name] = min(timings.turn, max(timings.without[name], timings.consumer + received))
    for name, seconds in (("copy", timings.copy), ("consumer", timings.step)):
        if seconds is not None:
            left[name] = timings.loop(timings.whole, timings.workers, timings.consumer - seconds)
    return left


def limited_by(timings: Timings) -> str:
    """The stage that sets the pace.

    Without workers everything happens in turn, and the longest stage sets it. With workers, the consumer sets it if it
    takes longer than the loader, with what it takes to receive a batch: then its longest part is named. Otherwise it is
    the stage of the loader without which the loader is fastest.
    """
    seconds = stages(timings)
    in_loop = {name: left for name, left in ceilings(timings).items() if left is not None}
    if timings.workers and timings.consumer and timings.turn > timings.whole:
        parts = {"consumer": timings.step or 0.0, "copy": timings.copy or 0.0, "transport": timings.received}
        return max(parts, key=lambda name: parts[name])
    if timings.workers:
        in_loader = [name for name in IN_THE_LOADER if name in timings.without]
        return min(in_loader, key=lambda name: timings.without[name])
    return max(in_loop, key=lambda name: seconds[name] or 0.0)


def workers_that_pay(timings: Timings) -> int:
    """The smallest tried number of workers that comes within 5 % of the best, over an epoch.

    If the step is not known, it comes on top without workers, and a loader that has some keeps one.
    """
    return _enough({number: timings.turn_with(number) for number in _compared(timings)})


def _steadily_enough(timings: Timings) -> int:
    """The same over an epoch without an end."""
    return _enough({number: timings.steady_turn(number) for number in _compared(timings)})


def _compared(timings: Timings) -> list[int]:
    return [number for number in timings.by_workers if number or timings.step is not None or not timings.workers]


def _enough(turns: dict[int, float]) -> int:
    return min(number for number in turns if turns[number] * ENOUGH <= min(turns.values()))


def more_workers(timings: Timings) -> Finding | None:
    """More workers pay if they give 10 % more batches in an epoch."""
    number = workers_that_pay(timings)
    turns = timings.turn_with(timings.workers), timings.turn_with(number)
    if number <= timings.workers or turns[0] < WORTHWHILE * turns[1]:
        return None
    text = f"{_workers(timings.workers)} where {_pay(number)}: "
    change = f"num_workers={number}"
    if timings.workers == 0 and timings.starts_slowly(number):
        change += ", persistent_workers=True"
    return _gain("more-workers", turns, text, change + _before_more(timings, number))


def _before_more(timings: Timings, number: int) -> str:
    """What has to be changed before the loader gets so many workers."""
    if number < 2 or timings.shared is not False:
        return ""
    return f"; before that, {SHARE}, since each would yield all of them"


def same_samples(timings: Timings) -> Finding | None:
    """Each of several workers yields all the samples of an iterable-style dataset."""
    if timings.workers < 2 or timings.shared is not False:
        return None
    number = timings.workers
    text = f"Each of the {number} workers yields the same samples: an epoch has each of them {number} times."
    return Finding("same-samples", "high", text, SHARE)


def small_shared_memory(timings: Timings) -> Finding | None:
    """/dev/shm has no room for workers that are predicted to give 10 % more batches than all that were tried."""
    predicted = timings.left_out_predicted
    turns = {number: timings.in_epoch(seconds, number) for number, seconds in predicted.items()}
    best = min(turns.values(), default=float("inf"))
    if min(map(timings.turn_with, _compared(timings)), default=0.0) < WORTHWHILE * best:
        return None
    number = min(number for number, turn in turns.items() if turn * ENOUGH <= best)
    text = (
        f"/dev/shm has no room for the batches of {_workers(number)}. With it, as predicted from "
        f"{_workers(max(timings.by_workers))}: "
    )
    change = f"a larger /dev/shm (docker run --shm-size) or a smaller prefetch_factor, and num_workers={number}"
    change += _before_more(timings, number)
    now = timings.turn_with(timings.workers)
    return _gain("small-shared-memory", (now, turns[number]), text, change, is_sure=False)


def fewer_workers(timings: Timings) -> Finding | None:
    """Fewer workers are enough if they come within 5 % of the best. A slow start alone is none of their merit."""
    number = _fewest(timings)
    if number >= timings.workers:
        return None
    turns = timings.turn_with(timings.workers), timings.turn_with(number)
    if turns[0] >= WORTHWHILE * turns[1]:
        text = f"{_workers(timings.workers)} where {_pay(number)}: "
        return _gain("fewer-workers", turns, text, f"num_workers={number}")
    text = f"{_workers(timings.workers)} where {number or 'none'} would do: each takes memory and a process."
    return Finding("fewer-workers", "note", text, f"num_workers={number}")


def _fewest(timings: Timings) -> int:
    """The workers that pay. If yours start slowly, as many as also pay once they have started."""
    number = workers_that_pay(timings)
    return max(number, _steadily_enough(timings)) if timings.starts_slowly(timings.workers) else number


def fetch_dominates(timings: Timings) -> Finding | None:
    """Fetch sets the pace, and is at least half of what a process does for a batch."""
    at_once = "more of a file at once" if timings.streams else "a whole batch at once (`__getitems__`)"
    change = f"do less for each sample, or read {at_once}; if the data is arrays in memory, use penstock.Loader"
    return _dominates(timings, "fetch", "The dataset takes", change)


def collate_dominates(timings: Timings) -> Finding | None:
    """Collate sets the pace, and is at least half of what a process does for a batch."""
    return _dominates(
        timings,
        "collate",
        "Making a batch of its samples takes",
        "let collate_fn only stack; do the rest for each sample in the dataset, or for the batch on the GPU",
    )


def transport_dominates(timings: Timings) -> Finding | None:
    """Transport, or a consumer that has to receive, sets the pace. The loop makes 10 % more turns without transport."""
    if limited_by(timings) not in ("transport", "copy", "consumer") or not _frees(timings, "transport"):
        return None
    text = f"Bringing a batch from its worker takes {_time(timings.transport or 0)}"
    if timings.turn > timings.whole:
        text += f", {_time(timings.received)} of it in this process, where the step waits"
    text += ". Without that, "
    change = "penstock.feed(loader), whose workers write where the device reads; or less to send: tensors in place of "
    change += "lists and dicts of numbers, and narrower types, such as uint8"
    return _gain("transport-dominates", _freed(timings, "transport"), text, change, is_sure=False)


def pin_dominates(timings: Timings) -> Finding | None:
    """Pinning sets the pace, and the loader gives 10 % more batches without it."""
    if limited_by(timings) != "pin" or not _frees(timings, "pin"):
        return None
    text = f"Pinning a batch takes {_time(timings.pin or 0)}. Without that, "
    change = "pin_memory=False and penstock.feed(loader)"
    return _gain("pin-dominates", _freed(timings, "pin"), text, change, is_sure=False)


def copy_dominates(timings: Timings) -> Finding | None:
    """The copy to the device sets the pace, and the loop makes 10 % more turns without it."""
    if limited_by(timings) != "copy" or not _frees(timings, "copy"):
        return None
    text = f"Copying a batch to the device takes {_time(timings.copy or 0)}. Without that, "
    change = "penstock.feed(loader), which copies ahead; or narrower types that are widened on the GPU"
    return _gain("copy-dominates", _freed(timings, "copy"), text, change, is_sure=False)


def slow_start(timings: Timings) -> Finding | None:
    """Workers that are started for each epoch take at least 10 % of it, and the loop is not faster without any."""
    if not timings.starts_slowly(timings.workers) or _fewest(timings) == 0:
        return None
    text = (
        f"The first batch of an epoch takes {_time(timings.start_with(timings.workers))}, since the workers start "
        f"again. The rest takes {_time((timings.batches or 0) * timings.turn)}."
    )
    batch = timings.fetch + timings.collate + (timings.transport or 0)
    saved = max(0.0, timings.start_with(timings.workers) - batch) / (timings.batches or 1)
    return Finding("slow-start", "medium", text, "persistent_workers=True", Gain(saved, saved))


RULES: tuple[Callable[[Timings], Finding | None], ...] = (
    same_samples,
    more_workers,
    small_shared_memory,
    fewer_workers,
    fetch_dominates,
    collate_dominates,
    transport_dominates,
    pin_dominates,
    copy_dominates,
    slow_start,
)


def findings(timings: Timings) -> list[Finding]:
    """What every rule finds, the most severe first. If no rule finds a gain, one finding says so."""
    found = [finding for rule in RULES if (finding := rule(timings)) is not None]
    if all(finding.severity == "note" for finding in found):
        if limited_by(timings) == "consumer":
            text = f"Nothing to gain from the loader: the step takes {_time(timings.step or 0)}, and the loader "
            text += f"{_time(timings.whole)} a batch."
        else:
            text = "Nothing to gain that these rules know."
            if timings.step is None:
                text += " If your step takes longer than the loader, no loader makes training faster: pass its time."
        found.append(Finding("nothing-to-gain", "note", text, ""))
    return sorted(found, key=lambda finding: ("high", "medium", "note").index(finding.severity))


def notes(timings: Timings) -> list[str]:
    """The notes of the measurement, and those that its figures need."""
    return [*timings.notes, *(text for note in NOTES if (text := note(timings)) is not None)]


def _short_epoch(timings: Timings) -> str | None:
    """Other workers pay than the listed rates say, since the first batch of an epoch counts."""
    pays, steadily = workers_that_pay(timings), _steadily_enough(timings)
    if steadily <= pays:
        return None
    count = "1 batch" if timings.batches == 1 else f"{timings.batches} batches"
    note = f"An epoch has {count}, so that its first one counts. The rates of workers are those of a long epoch."
    if timings.starts_slowly(steadily):
        note += f" As long as workers start for each epoch, {_pay(pays)}. With persistent workers, {_pay(steadily)}."
    return note


def _step_on_top(timings: Timings) -> str | None:
    """No worker is as fast, but the step, which is not known, would come on top."""
    if timings.step is not None or _enough({n: timings.turn_with(n) for n in timings.by_workers}) != 0:
        return None
    return (
        "Without workers, your step comes on top of the loader's time. Pass the step's time to compare them with none."
    )


def _other_again(timings: Timings) -> str | None:
    """The loader took another time when it was measured again."""
    if timings.again is None or max(timings.again, timings.whole) <= EXPLAINED * min(timings.again, timings.whole):
        return None
    return (
        f"When it was measured again at the end, the loader took {_time(timings.again)} a batch in place of "
        f"{_time(timings.whole)}: the machine does other work, or files came from memory. Trust no smaller difference."
    )


def _rates_in_the_loop(timings: Timings) -> str | None:
    """A note if a finding's ratio of two numbers of workers is not that of their listed rates."""
    if more_workers(timings):
        other = workers_that_pay(timings)
    elif (fewer := fewer_workers(timings)) and fewer.gain_seconds_per_step.high > 0:
        other = _fewest(timings)
    else:
        return None
    numbers = (timings.workers, other)
    turns = [timings.turn_with(number) for number in numbers]
    listed = [timings.by_workers[number] for number in numbers]
    if _times(*turns) == _times(*listed):
        return None
    rates = [
        f"{_number(_rate(turn))} batches/s with {_workers(number)}" for turn, number in zip(turns, numbers, strict=True)
    ]
    loop = "the start of each epoch" if timings.step is None else "its step and the start of each epoch"
    they = f"they are {rates[0]} and {rates[1]}"
    return f"The rates of workers are those of the loader alone. In the loop, with {loop}, {they}."


NOTES: tuple[Callable[[Timings], str | None], ...] = (_short_epoch, _step_on_top, _other_again, _rates_in_the_loop)


class LoaderVerdict:
    """What limits a DataLoader: see `diagnose` and docs/doctor.md. Print it for the report.

    `timings` are the measured times, `limited_by` is the stage that sets the pace, and `findings` is a list of Finding.
    """

    def __init__(self, timings: Timings):
        self.timings = timings
        self.limited_by = limited_by(timings)
        self.findings = findings(timings)

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, strings, lists and dicts."""
        timings = self.timings

        def rates(by_workers: dict[int, float]) -> list[dict[str, Any]]:
            return [
                {
                    "workers": number,
                    "batches_per_second": _rate(seconds),
                    "samples_per_second": _rate(seconds, timings.samples),
                }
                for number, seconds in sorted(by_workers.items())
            ]

        return {
            "schema": "penstock-loader-verdict/1",
            "limited_by": self.limited_by,
            "batches_per_second": _rate(timings.whole),
            "samples_per_second": _rate(timings.whole, timings.samples),
            "samples_per_batch": timings.samples,
            "seconds_per_batch": timings.whole,
            "loop_batches_per_second": _rate(timings.turn),
            "start_seconds": timings.start,
            "stages": stages(timings),
            "ceilings": {name: None if left is None else _rate(left) for name, left in ceilings(timings).items()},
            "busy_seconds": timings.busy,
            "workers": {
                "configured": timings.workers,
                "pays": workers_that_pay(timings),
                "tried": rates(timings.by_workers),
                "predicted": rates(timings.left_out_predicted),
                "processors": timings.processors,
            },
            "findings": [asdict(finding) for finding in self.findings],
            "notes": notes(timings),
        }

    def __str__(self) -> str:
        timings = self.timings
        lines = [
            f"{_number(_rate(timings.whole))} batches/s, {_number(_rate(timings.whole, timings.samples))} samples/s "
            f"with {_workers(timings.workers)}",
            *([f"the loop: {_number(_rate(timings.turn))} batches/s"] if timings.consumer else []),
            f"limited by {self.limited_by}",
            "",
            f"{'stage':<10}{'a batch':>12}   without it",
        ]
        left = ceilings(timings)
        for name, seconds in stages(timings).items():
            ceiling = left[name]
            rate = "" if ceiling is None else f"   {_number(_rate(ceiling))} batches/s"
            lines.append(f"{name:<10}{'-' if seconds is None else _time(seconds):>12}{rate}")
        lines += ["", f"{'workers':<10}{'batches/s':>12}"]
        pays = workers_that_pay(timings)
        for number, seconds in sorted(timings.by_workers.items()):
            marks = [mark for mark, is_so in (("yours", number == timings.workers), ("pays", number == pays)) if is_so]
            lines.append(f"{number:<10}{_number(_rate(seconds)):>12}   {', '.join(marks)}".rstrip())
        for number, seconds in timings.left_out_predicted.items():
            lines.append(f"{number:<10}{_number(_rate(seconds)):>12}   predicted, not tried")
        lines.append("")
        for finding in self.findings:
            lines.append(f"{finding.severity}: {finding.text}")
            if finding.change:
                lines.append(f"  change: {finding.change}")
        lines += [f"note: {note}" for note in notes(timings)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<penstock.LoaderVerdict\n{self}>"


def _dominates(timings: Timings, stage: str, text: str, change: str) -> Finding | None:
    seconds = stages(timings)[stage] or 0.0
    share = seconds / max(timings.fetch + timings.collate + (timings.transport or 0), 1e-12)
    if limited_by(timings) != stage or share < DOMINATES or not _frees(timings, stage):
        return None
    text = f"{text} {_time(seconds)} a batch, {100 * share:.0f} % of a process's time for it. Without that, "
    return _gain(f"{stage}-dominates", _freed(timings, stage), text, change, is_sure=False)


def _frees(timings: Timings, stage: str) -> bool:
    now, without = _freed(timings, stage)
    return now >= WORTHWHILE * without


def _freed(timings: Timings, stage: str) -> tuple[float, float]:
    """A turn of the loop, and one without this stage."""
    left = ceilings(timings)[stage]
    return timings.turn, timings.turn if left is None else left


def _gain(name: str, turns: tuple[float, float], text: str, change: str, is_sure: bool = True) -> Finding:
    """A finding that makes the first turn the second. What was not measured so may gain anything up to that."""
    now, then = turns
    times = now / max(then, 1e-9)
    saved = max(0.0, now - then)
    severity = "high" if times >= HIGH else "medium"
    gain = Gain(saved if is_sure else 0.0, saved)
    return Finding(name, severity, f"{text[0].upper()}{text[1:]}{_times(now, then)} as many batches.", change, gain)


def _times(now: float, then: float) -> str:
    times = now / max(then, 1e-9)
    return f"{times:.1f} times" if times < 100 else "more than 100 times"


def _rate(seconds: float, count: float = 1.0) -> float:
    return count / max(seconds, 1e-9)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _pay(number: int) -> str:
    return f"{number or 'none'} {'pay' if number > 1 else 'pays'}"


def _workers(number: int) -> str:
    return "no worker" if number == 0 else f"{number} worker{'s' * (number > 1)}"
