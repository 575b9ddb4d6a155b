"""What was measured of a DataLoader, and what follows for a turn of the training loop: see docs/doctor.md."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

WORTHWHILE = 1.1  # times as many batches: less is within what two runs differ by
ENOUGH = 0.95  # of the best rate: fewer workers that reach it are enough
STARTING = 0.1  # of an epoch
EXPLAINED = 1.25  # times what the model says, or the other way round: it explains what was measured

IN_THE_LOADER = ("fetch", "collate", "transport", "pin")


def loader_seconds(made: float, computing: float, receive: float, workers: int, processors: int) -> float:
    """Seconds of a batch of a loader that is not held up: the slowest of its workers, processors and caller.

    One process makes a batch in `made` seconds, of which it needs a processor for `computing`. The caller takes a batch
    from a worker in `receive`, one after another, and shares the processors.
    """
    if workers == 0:
        return made
    return max(made / workers, (computing + receive) / processors, receive)


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
    threads: int = 1  # with which PyTorch computes in this process; workers have one
    one_thread: dict[str, float] | None = None  # whole, fetch, collate and busy with one, without workers
    pictures: bool = False  # feed(pictures=True) decodes its dataset
    stacks: bool = False  # PyTorch's own collate
    takes_batches: bool = False  # the dataset is asked for all samples of a batch at once
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

    def with_one_thread(self) -> Timings:
        """The same if PyTorch had one thread in this process, as workers have. Itself, if that gains less than 10 %."""
        if self.one_thread is None:
            return self
        by_workers = self.by_workers | {0: self.one_thread["whole"]}
        alone = replace(self, by_workers=by_workers, **({} if self.workers else self.one_thread))
        return alone if self.steady_turn(0) >= WORTHWHILE * alone.steady_turn(0) else self

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

    def none_is_enough(self) -> bool:
        """True if no worker is within 5 % of any number of them, however long a step takes.

        Workers gain most with the shortest step that hides them.
        """
        if 0 not in self.by_workers:
            return False
        for workers in self.by_workers.keys() - {0}:
            hidden = max(0.0, self.by_workers[workers] - self.received - (self.copy or 0))
            loop = replace(self, step=hidden)
            if loop.turn_with(0) * ENOUGH > loop.turn_with(workers):
                return False
        return True

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
        computing = min(self.fetch + self.collate, self.busy or 0)
        return loader_seconds(self.fetch + self.collate, computing, self.receive or 0, workers, self.processors)

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
