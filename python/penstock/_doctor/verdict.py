"""What the measured times of a DataLoader say. Everything here is a pure function of them: see docs/doctor.md."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .timings import ENOUGH, EXPLAINED, WORTHWHILE, Timings, ceilings, limited_by, stages

HIGH = 1.5  # times as many batches: severity "high"
DOMINATES = 0.5  # of the time of a worker

SHARE = "let workers share the samples out (torch.utils.data.get_worker_info() in __iter__, or a worker_init_fn)"
STACK_LESS = (
    "give each sample fewer and larger tensors, in place of many fields or numbers; or make whole batches in the "
    "dataset (a BatchSampler as sampler, and batch_size=None); if the data is arrays in memory, use penstock.Loader"
)
COLLATE_LESS = (
    "make collate_fn itself cheaper, such as by one operation for the batch in place of one for each sample; or do its "
    "work for the batch on the GPU. The same work in the dataset takes as long: it is the same process"
)
ONE_THREAD = "torch.set_num_threads(1)"


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


def workers_that_pay(timings: Timings) -> int:
    """The smallest tried number of workers that comes within 5 % of the best, over an epoch.

    If the step is not known, it comes on top without workers. A loader that has some keeps one then, unless no step
    would make it worth that.
    """
    return _enough({number: timings.turn_with(number) for number in _compared(timings)})


def _steadily_enough(timings: Timings) -> int:
    """The same over an epoch without an end."""
    return workers_that_pay(replace(timings, batches=None))


def _compared(timings: Timings) -> list[int]:
    is_none_compared = timings.step is not None or not timings.workers or timings.none_is_enough()
    return [number for number in timings.by_workers if number or is_none_compared]


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
    is_sure = timings.step is not None or timings.workers == 0
    return _gain("more-workers", turns, text, change + _before_more(timings, number), is_sure)


def _before_more(timings: Timings, number: int) -> str:
    """What has to be changed before the loader gets so many workers."""
    if number < 2 or timings.shared is not False:
        return ""
    return f"; before that, {SHARE}, since each would yield all of them"


def too_many_threads(timings: Timings) -> Finding | None:
    """Without workers, the loader is 10 % faster if PyTorch has one thread. Workers have one each."""
    alone = timings.with_one_thread()
    if timings.workers or alone is timings:
        return None
    text = f"PyTorch uses {timings.threads} threads in this process, which cost more than they save. With one: "
    change = f"{ONE_THREAD} before the loop, or OMP_NUM_THREADS=1 in the environment. If your step computes on the CPU "
    change += "and needs them, num_workers=1: workers have one thread each"
    return _gain("too-many-threads", (timings.turn, alone.turn), text, change)


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
    change = f"num_workers={number}"
    if number == 0 and timings.one_thread and timings.by_workers[0] == timings.one_thread["whole"]:
        change += f", and {ONE_THREAD} before the loop"
    turns = timings.turn_with(timings.workers), timings.turn_with(number)
    if turns[0] >= WORTHWHILE * turns[1]:
        text = f"{_workers(timings.workers)} where {_pay(number)}: "
        return _gain("fewer-workers", turns, text, change, is_sure=timings.step is not None)
    text = f"{_workers(timings.workers)} where {number or 'none'} would do: each takes memory and a process."
    return Finding("fewer-workers", "note", text, change)


def _fewest(timings: Timings) -> int:
    """The workers that pay. If yours start slowly, as many as also pay once they have started."""
    number = workers_that_pay(timings)
    return max(number, _steadily_enough(timings)) if timings.starts_slowly(timings.workers) else number


def fetch_dominates(timings: Timings) -> Finding | None:
    """Fetch sets the pace, and is at least half of what a process does for a batch."""
    what, at_once = "sample", ", or read a whole batch at once (`__getitems__`)"
    if timings.takes_batches:
        what, at_once = "batch", ""
    if timings.streams:
        at_once = ", or read more of a file at once"
    change = (
        f"do less for each {what}, or do it for the batch on the GPU{at_once}; if the data is arrays in memory, use "
    )
    change += "penstock.Loader"
    if timings.pictures:
        change = "penstock.feed(loader, pictures=True), which decodes in threads of this process, and faster"
    return _dominates(timings, "fetch", "The dataset takes", change)


def collate_dominates(timings: Timings) -> Finding | None:
    """Collate sets the pace, and is at least half of what a process does for a batch."""
    change = STACK_LESS if timings.stacks else COLLATE_LESS
    return _dominates(timings, "collate", "Making a batch of its samples takes", change)


def transport_dominates(timings: Timings) -> Finding | None:
    """Transport, or a consumer that has to receive, sets the pace. The loop makes 10 % more turns without transport.

    If it makes most without workers, there is no transport to save.
    """
    if _fewest(timings) == 0:
        return None
    text = f"Bringing a batch from its worker takes {_time(timings.transport or 0)}"
    if timings.turn > timings.whole:
        text += f", {_time(timings.received)} of it in this process, where the step waits"
    change = "penstock.feed(loader), whose workers write where the device reads; or less to send: tensors in place of "
    change += "lists and dicts of numbers, and narrower types, such as uint8"
    return _without(timings, "transport", text, change, paced_by=("transport", "copy", "consumer"))


def pin_dominates(timings: Timings) -> Finding | None:
    """Pinning sets the pace, and the loader gives 10 % more batches without it."""
    text = f"Pinning a batch takes {_time(timings.pin or 0)}"
    return _without(timings, "pin", text, "pin_memory=False and penstock.feed(loader)")


def copy_dominates(timings: Timings) -> Finding | None:
    """The copy to the device sets the pace, and the loop makes 10 % more turns without it."""
    text = f"Copying a batch to the device takes {_time(timings.copy or 0)}"
    change = "penstock.feed(loader), which copies ahead; or narrower types that are widened on the GPU"
    return _without(timings, "copy", text, change)


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
    """What every rule finds, the most severe first. If no rule finds a gain, one finding says so.

    Threads that cost more than they save come before all others, which are of the loader with one thread then.
    """
    threads = too_many_threads(timings)
    timings = timings.with_one_thread()
    found = [finding for rule in RULES if (finding := rule(timings)) is not None]
    if threads is None and all(finding.severity == "note" for finding in found):
        if limited_by(timings) == "consumer":
            text = f"Nothing to gain from the loader: the step takes {_time(timings.step or 0)}, and the loader "
            text += f"{_time(timings.whole)} a batch."
        else:
            text = "Nothing to gain that these rules know."
            if timings.step is None:
                text += " If your step takes longer than the loader, no loader makes training faster: pass its time."
        found.append(Finding("nothing-to-gain", "note", text, ""))
    found.sort(key=lambda finding: ("high", "medium", "note").index(finding.severity))
    return found if threads is None else [threads, *found]


def notes(timings: Timings) -> list[str]:
    """The notes of the measurement, and those that its figures need."""
    alone = timings.with_one_thread()
    of_figures = [_other_again(timings), *(note(alone) for note in NOTES)]
    if too_many_threads(timings):
        of_figures.append("The other findings are of the loader with one thread.")
    return [*timings.notes, *filter(None, of_figures)]


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
    if timings.step is not None or timings.none_is_enough():
        return None
    if _enough({number: timings.turn_with(number) for number in timings.by_workers}) != 0:
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


def _step_unknown(timings: Timings) -> str | None:
    """Gains are smaller parts of a loop with a step, which may also hide the loader."""
    if timings.step is not None or all(finding.gain_seconds_per_step.high == 0 for finding in findings(timings)):
        return None
    return (
        "The gains are those of a loop whose step takes no time. Pass your step's time to see those of your training."
    )


NOTES: tuple[Callable[[Timings], str | None], ...] = (_short_epoch, _step_on_top, _step_unknown, _rates_in_the_loop)


class LoaderVerdict:
    """What limits a DataLoader: the result of `diagnose`. Print it for the report, which docs/doctor.md explains.

    Attributes:
        timings: The measured times.
        limited_by: The stage that sets the pace.
        findings: A list of Finding.

    Examples:
        >>> verdict = penstock.diagnose(loader, seconds=0.05)
        >>> changes = [finding.change for finding in verdict.findings]
    """

    def __init__(self, timings: Timings):
        self.timings = timings
        self.limited_by = limited_by(timings)
        self.findings = findings(timings)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

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
            "receive_seconds": timings.receive,
            "workers": {
                "configured": timings.workers,
                "pays": workers_that_pay(timings.with_one_thread()),
                "with_one_thread": _rate(timings.one_thread["whole"]) if timings.one_thread else None,
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
        alone = timings.with_one_thread()
        pays = workers_that_pay(alone)
        for number, seconds in sorted(timings.by_workers.items()):
            is_beaten = seconds > alone.by_workers[number]  # by one thread
            marks = {"yours": number == timings.workers, "pays": number == pays and not is_beaten}
            told = ", ".join(mark for mark, is_so in marks.items() if is_so)
            lines.append(f"{number:<10}{_number(_rate(seconds)):>12}   {told}".rstrip())
            if is_beaten:
                told = "one thread" + ", pays" * (number == pays)
                lines.append(f"{number:<10}{_number(_rate(alone.by_workers[number])):>12}   {told}")
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
    text = f"{text} {_time(seconds)} a batch, {100 * share:.0f} % of a process's time for it"
    return None if share < DOMINATES else _without(timings, stage, text, change)


def _without(
    timings: Timings, stage: str, text: str, change: str, paced_by: tuple[str, ...] | None = None
) -> Finding | None:
    """A finding if the stage, or one of `paced_by`, sets the pace, and the loop makes 10 % more turns without it."""
    left = ceilings(timings)[stage]
    if limited_by(timings) not in (paced_by or (stage,)) or left is None or timings.turn < WORTHWHILE * left:
        return None
    turns = timings.turn, left
    return _gain(f"{stage}-dominates", turns, f"{text}. Without that, at most ", change, is_sure=False)


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


def _time(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"
