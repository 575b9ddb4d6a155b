"""diagnose: what limits a DataLoader, found by leaving out one stage at a time."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import os
import random
import re
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .. import _core
from .._checks import is_number
from .._errors import InvalidArgument
from .._feed.pictures import folder_below
from .stages import Staged, StageTimes, WorkerStart, tensors
from .timings import ENOUGH, Timings
from .verdict import LoaderVerdict

UNTRIED_TIMEOUT = 120.0  # seconds until a number of workers that the user did not choose is given up


def diagnose(
    loader: Any, *, seconds: float = 2.0, device: Any = "auto", step_seconds: float | None = None
) -> LoaderVerdict:
    """Measure a PyTorch DataLoader stage by stage, and say what limits it and how many workers pay.

    Batches are loaded by copies of it: as it is configured, with one of fetch, collate, transport between processes and
    pinning left out, and with other numbers of workers. An iterable-style dataset begins anew in each of these runs.
    The loader, its sampler and the random states of PyTorch, NumPy and Python are left as they were. Side effects of
    the dataset are not undone.

    Args:
        loader: A DataLoader.
        seconds: What each run takes, about. A run has at least two batches of each worker.
        device: As in `to_device`. If it is a GPU, pinning and the copy to it are measured.
        step_seconds: The time that the consumer takes for a batch.

    Raises:
        InvalidArgument: It is another kind of loader, or has no batches, or a number does not fit.
        ImportError: PyTorch is missing.
        Exception: What the dataset raises.

    Examples:
        >>> verdict = penstock.diagnose(loader, seconds=0.05, step_seconds=0.02)
        >>> verdict.as_dict()["limited_by"] == verdict.limited_by
        True
    """
    return examine(loader, Watch(), seconds=seconds, device=device, step_seconds=step_seconds)


class Watch:
    """Sees what an examination does. This one tells nobody."""

    def begins(self, what: str, number: int, most: int, timeout: float) -> None:
        """The `number`th run of at most `most`. Unless the timeout is 0, so many seconds without a batch end it."""

    def arrived(self) -> None:
        """A batch has come, or was pinned or copied."""


def examine(
    loader: Any, watch: Watch, *, seconds: float, device: Any = "auto", step_seconds: float | None = None
) -> LoaderVerdict:
    """`diagnose`, which tells the watch what it does."""
    check_loader(loader)
    if not is_number(seconds) or not 0 < seconds < math.inf:
        raise InvalidArgument(f"seconds is a number above 0, not {seconds!r}.")
    if step_seconds is not None and (not is_number(step_seconds) or not 0 <= step_seconds < math.inf):
        raise InvalidArgument(f"step_seconds is a number from 0 on, not {step_seconds!r}.")
    with _random_states_kept():
        step = None if step_seconds is None else float(step_seconds)
        return LoaderVerdict(_Examination(loader, float(seconds), device, watch).timings(step))


def check_loader(loader: Any) -> None:
    """Raises InvalidArgument unless this is a loader that `diagnose` can take apart."""
    try:
        from torch.utils import data
    except ImportError as error:
        raise ImportError("penstock.diagnose needs PyTorch: pip install torch") from error
    if not isinstance(loader, data.DataLoader):
        words = f"diagnose takes a torch.utils.data.DataLoader, not {type(loader).__name__}"
        if not hasattr(loader, "__iter__"):
            raise InvalidArgument(f"{words}.{' Call it, and pass what it returns.' * callable(loader)}")
        raise InvalidArgument(
            f"{words}: of other iterables it cannot leave out a stage. Pass the DataLoader below it. "
            "penstock.feed(...).stats() says what any iterable costs."
        )
    if isinstance(loader.dataset, getattr(data, "IterDataPipe", ())):
        raise InvalidArgument(
            "diagnose does not measure an IterDataPipe, whose samples PyTorch itself shares out among workers. "
            "penstock.feed(loader).stats() says what the loader costs."
        )


class _Examination:
    """The runs of one loader."""

    def __init__(self, loader: Any, seconds: float, device: Any, watch: Watch):
        import torch

        from . import streams  # imports PyTorch

        self.torch = torch
        self.loader = loader
        self.seconds = seconds
        self.gpu = _gpu(device, torch)
        self.notes: list[str] = []
        self.pins = bool(loader.pin_memory) and self.gpu is not None
        self.numbers = _numbers_to_try(_core.processors(), loader.num_workers, self.length())
        self.watch = watch
        self.runs = 0
        self.taken = 0
        self.gave_up = False  # a number of workers sent nothing for so long that no other is worth the wait
        self.streams: Any = streams if isinstance(loader.dataset, torch.utils.data.IterableDataset) else None
        self.auto = loader.batch_sampler is not None
        self.order = None if self.streams else _Order(self._copy_of_order())

    def timings(self, step: float | None) -> Timings:
        loader, workers = self.loader, self.loader.num_workers
        own = self.torch.utils.data._utils.collate
        whole = self.run("the loader as it is", self.clone(workers))
        stage_times = self.run("fetch and collate", self.staged(workers, {"transport"}))
        fetch, collate, busy = stage_times.means()
        timings = Timings(
            workers=workers,
            samples=self.samples_of(whole.last),
            whole=whole.seconds,
            fetch=fetch,
            collate=collate,
            busy=busy,
            receive=whole.busy if workers else None,
            processors=_core.processors(),
            step=step,
            pins=self.pins,
            starts={workers: whole.start},
            batches=self.length(),
            persistent=loader.persistent_workers,
            streams=bool(self.streams),
            threads=self.torch.get_num_threads(),
            pictures=not isinstance(folder_below(loader.dataset), str),
            stacks=loader.collate_fn in (own.default_collate, own.default_convert),
            takes_batches=not self.auto or bool(getattr(loader.dataset, "__getitems__", None)),
            notes=self.notes,
        )
        if workers:
            transport = self.run("transport", self.staged(workers, {"fetch", "collate"})).seconds
            timings.transport = min(transport, whole.seconds)  # a tensor that the dataset keeps is only shared once
            timings.without = {
                "transport": stage_times.seconds,
                "collate": self.run("the loader without collate", self.staged(workers, {"collate"})).seconds,
                "fetch": self.run("the loader without fetch", self.staged(workers, {"fetch"})).seconds,
            }
            if timings.pins:
                unpinned = self.run("the loader without pinning", self.clone(workers, pin_memory=False))
                timings.without["pin"] = unpinned.seconds
        self.measure_device(timings, whole.last)
        if self.streams:
            self.see_sharing(timings, stage_times.workers)
        timings.by_workers[workers] = whole.seconds
        if workers == 0:
            self.try_one_thread(timings)
        self.try_workers(timings, sum(tensor.nbytes for tensor in tensors(whole.last)))
        timings.again = self.again()
        # The last ones: what they change in the dataset, no worker begins with.
        if workers and self.try_number(timings, 0):
            self.try_one_thread(timings)
        if self.streams:
            self.notes.append(
                "An iterable-style dataset begins anew in each run: what it reads of files comes from memory after the "
                "first one, and fetch seems faster than it is."
            )
        elif timings.batches and self.drawn > timings.batches:
            self.notes.append(
                "The epoch is shorter than the measurement: samples were read more than once, and files come from "
                "memory then. Use a larger dataset, or fewer seconds."
            )
        return timings

    def samples_of(self, batch: Any) -> float:
        """The samples of a batch: in the mean, or of this one if the dataset makes whole batches."""
        if self.order is not None:
            return self.order.samples_per_batch()
        return self.loader.batch_size or self.streams.rows_of(batch)

    def see_sharing(self, timings: Timings, workers: dict[int, Any]) -> None:
        """Looks whether workers share the samples of an iterable-style dataset out. `workers`: those that had some."""
        idle = timings.workers - len(workers)
        if workers and idle:
            self.notes.append(
                f"{_workers_were(idle)} without samples, of {timings.workers}: the dataset has too few parts for them, "
                "such as files."
            )
        if timings.workers < 2:
            try:
                clone = self.staged(2, {"transport"}, untried=True)
                workers = self.run("whether 2 workers share the samples out", clone).workers
            except Exception:
                return  # the runs of other workers say why
        timings.shared, note = self.streams.share_samples(workers, self.loader.worker_init_fn is not None)
        self.notes += note

    def measure_device(self, timings: Timings, batch: Any) -> None:
        if self.gpu is None:
            self.notes.append("Pinning and the copy to the device were not measured: there is no GPU for PyTorch.")
            return
        torch, gpu = self.torch, self.gpu
        host = [tensor for tensor in tensors(batch) if tensor.device.type == "cpu"]
        ordinary = [tensor.clone() if tensor.is_pinned() else tensor for tensor in host]
        sent = [tensor.pin_memory() for tensor in host] if timings.pins else ordinary

        def pin_all() -> None:
            self.watch.arrived()
            for tensor in ordinary:
                tensor.pin_memory()

        def copy_all() -> None:
            self.watch.arrived()
            moved = [tensor.to(gpu, non_blocking=timings.pins) for tensor in sent]
            torch.cuda.synchronize(gpu)
            del moved

        self.begins("pinning")
        timings.pin = _median(pin_all, self.seconds)
        self.begins("the copy to the device")
        timings.copy = _median(copy_all, self.seconds)

    def try_workers(self, timings: Timings, batch_bytes: int) -> None:
        """Doubles the number of workers until two numbers in turn gain nothing, or there is one for each processor.

        Their start does not count here: the verdict weighs it, and `persistent_workers` saves it. More than that are
        tried if the model promises a gain, as it does if the workers wait for most of their time. More workers than an
        epoch has batches gain nothing. If a number sends nothing at all, no other is tried. Without workers, the
        dataset is read here, so that comes last of all.
        """
        best, idle = float("inf"), 0
        for number in self.numbers:
            if number == 0 < timings.workers:
                continue
            if number not in timings.by_workers:
                if number > timings.processors and not timings.with_one_thread().promises(number):
                    continue
                needed = batch_bytes * number * ((self.loader.prefetch_factor or 2) + 1)
                if needed > _free_shared_memory():
                    self.notes.append(f"{_workers_were(number)} not tried: the batches would not fit into /dev/shm.")
                    timings.left_out = [other for other in self.numbers if other > max(number - 1, *timings.by_workers)]
                    return
                if not self.try_number(timings, number):
                    if self.gave_up:
                        return
                    continue
            turn = timings.steady_turn(number)
            idle = 0 if turn < best * ENOUGH else idle + 1
            best = min(best, turn)
            if idle == 2 and number >= timings.workers:
                return

    def try_one_thread(self, timings: Timings) -> None:
        """The loader in this process with one of PyTorch's threads, if it has more there."""
        if timings.threads == 1:
            return
        torch, what = self.torch, "with one thread"
        torch.set_num_threads(1)
        try:
            timings.one_thread = {"whole": self.run(f"no worker, {what}", self.clone(0)).seconds}
            if timings.workers == 0:
                means = self.run(f"fetch and collate {what}", self.staged(0, {"transport"})).means()
                timings.one_thread |= zip(("fetch", "collate", "busy"), means, strict=True)
        finally:
            torch.set_num_threads(timings.threads)

    def try_number(self, timings: Timings, number: int) -> bool:
        """False, and a note, if the loader fails with this number of workers."""
        try:
            run = self.run(f"{number} worker{'s' * (number != 1)}", self.clone(number, untried=True))
        except Exception as error:
            self.gave_up = self.sends_nothing(error, timings)
            why = (
                "; workers that cannot send their samples (pickle them) look like that. No more numbers were tried."
                if self.gave_up
                else ""
            )
            self.notes.append(f"{_workers_were(number)} not measured: {_reason(error)}{why}")
            return False
        timings.by_workers[number] = run.seconds
        timings.starts[number] = run.start
        if timings.workers == 0:
            timings.receive = run.busy
        return True

    def sends_nothing(self, error: Exception, timings: Timings) -> bool:
        """True if PyTorch gave up waiting for workers, and none of another number has sent anything."""
        is_given_up = isinstance(error, RuntimeError) and str(error).startswith("DataLoader timed out after")
        return is_given_up and not self.loader.timeout and not any(timings.by_workers)

    def again(self) -> float | None:
        """Seconds a batch of the loader as it is configured. None, and a note, if it fails now."""
        try:
            clone = self.clone(self.loader.num_workers, untried=True)
            return self.run("the loader as it is, again", clone).seconds
        except Exception as error:
            self.notes.append(f"Measured again at the end, the loader failed: {_reason(error)}")
            return None

    def clone(self, workers: int, untried: bool = False, **changed: Any) -> Any:
        """A DataLoader like the user's that goes on with the order where the last one stopped."""
        loader = self.loader
        arguments: dict[str, Any] = {
            "dataset": loader.dataset,
            "collate_fn": loader.collate_fn,
            "num_workers": workers,
            "pin_memory": loader.pin_memory,
            "in_order": getattr(loader, "in_order", True),
        }
        if workers:
            context = loader.multiprocessing_context
            arguments |= {
                "worker_init_fn": loader.worker_init_fn,
                "multiprocessing_context": context,
                "prefetch_factor": loader.prefetch_factor,
                "timeout": loader.timeout or (UNTRIED_TIMEOUT if untried else 0),
            }
        if self.streams:
            arguments |= self.endless(workers)
        elif self.auto:
            arguments["batch_sampler"] = self.order
        else:
            arguments |= {"sampler": self.order, "batch_size": None}
        with _more_workers_than_processors():
            return self.torch.utils.data.DataLoader(**(arguments | changed))

    def endless(self, workers: int) -> dict[str, Any]:
        loader = self.loader
        arguments: dict[str, Any] = {"dataset": self.streams.Endless(loader.dataset), "batch_size": loader.batch_size}
        if workers:
            arguments["worker_init_fn"] = self.streams.StreamStart(loader.worker_init_fn)
        return arguments

    def staged(self, workers: int, left_out: set[str], untried: bool = False) -> Any:
        """A clone that leaves out these stages, or that tells the times of fetch and collate in place of a batch."""
        changed: dict[str, Any]
        loader = self.loader
        if self.streams:
            stage = self.streams.StagedStream(loader, left_out)
            changed = {"dataset": stage, "collate_fn": stage.collate, "batch_size": None}
            if "transport" in left_out:
                changed["in_order"] = True  # so that each worker is heard of
        else:
            stage = Staged(loader.dataset, loader.collate_fn, self.auto, left_out)
            changed = {"dataset": stage, "collate_fn": stage.collate}
            if workers:
                changed["worker_init_fn"] = WorkerStart(loader.worker_init_fn)
        if "transport" in left_out:
            changed["pin_memory"] = False
        return self.clone(workers, untried, **changed)

    def run(self, what: str, clone: Any) -> _Run:
        """Loads batches for about the time, in whole rounds of the workers. The workers are ended."""
        self.begins(what, clone.timeout)
        round_size = max(1, clone.num_workers)
        warm_up = round_size * (clone.prefetch_factor or 1)
        begin = time.perf_counter()
        with _more_workers_than_processors():
            iterator = iter(clone)
        try:
            batch = self.next_of(iterator)
            start = time.perf_counter()
            done = 1
            while done < round_size or (done < warm_up and time.perf_counter() - start < self.seconds):
                batch = self.next_of(iterator)
                done += 1
            result = _Run(start - begin)
            start, busy = time.perf_counter(), time.process_time()
            count = 0
            while True:
                batch = self.next_of(iterator)
                count += 1
                if isinstance(batch, StageTimes):
                    result.batches.append(batch.times)
                    if batch.worker is not None:
                        result.workers[batch.worker.number] = batch.worker
                taken = time.perf_counter() - start
                if count % round_size == 0 and taken >= self.seconds:
                    break
            result.seconds, result.last = taken / count, batch
            result.busy = (time.process_time() - busy) / count
            return result
        finally:
            if clone.num_workers:
                _end_workers(iterator)

    def begins(self, what: str, timeout: float = 0) -> None:
        self.runs += 1
        self.watch.begins(what, self.runs, self.most_runs(), timeout)

    def most_runs(self) -> int:
        with_workers = 3 + self.pins if self.loader.num_workers else 0
        with_gpu = 2 if self.gpu is not None else 0
        to_see_sharing = 1 if self.streams and self.loader.num_workers < 2 else 0
        with_one_thread = (2 - bool(self.loader.num_workers)) * (self.torch.get_num_threads() > 1)
        return 3 + with_workers + with_gpu + to_see_sharing + with_one_thread + len(self.numbers) - 1

    def next_of(self, iterator: Iterator[Any]) -> Any:
        """The next batch. The order of a loader never ends, unless it is empty."""
        try:
            batch = next(iterator)
        except StopIteration as error:
            if self.drawn == 0:
                raise InvalidArgument(
                    "The loader has no batches. Pass one whose dataset and sampler are not empty."
                ) from None
            if self.streams:
                raise InvalidArgument(
                    "The dataset gives no samples when it is read again, and each run of diagnose reads it from its "
                    "beginning. Let its __iter__ begin anew, for instance as a generator function that opens the files."
                ) from None
            raise InvalidArgument(
                f"The dataset or its collate_fn raises StopIteration{_place_of(error)}. An epoch ends there, without "
                "an error. Let it raise another error, such as IndexError."
            ) from error
        self.watch.arrived()
        self.taken += 1
        return batch

    @property
    def drawn(self) -> int:
        """The batches that were begun, in all runs; of an iterable-style dataset, those that arrived."""
        return self.taken if self.order is None else self.order.taken

    def length(self) -> int | None:
        try:
            return len(copy.copy(self.loader))  # a loader of a stream notes that it was asked
        except Exception:
            return None

    def _copy_of_order(self) -> Iterable[Any]:
        """The loader's sampler, or a copy of it whose use leaves the sampler and its generators as they were."""
        order = self.loader.batch_sampler if self.auto else self.loader.sampler
        dataset = self.loader.dataset
        try:
            return copy.deepcopy(order, {id(dataset): dataset})
        except Exception as error:
            raise InvalidArgument(
                f"The loader's {type(order).__name__} cannot be copied ({type(error).__name__}: {error}), so that "
                "using it would change it. Give it a __deepcopy__, or pass a loader with another sampler."
            ) from error


def _workers_were(number: int) -> str:
    return "1 worker was" if number == 1 else f"{number} workers were"


def _reason(error: Exception) -> str:
    """The error in a line. PyTorch puts the traceback of a worker into the message, and the reason below it."""
    lines = str(error).strip().splitlines() or [""]
    frames = [index for index, line in enumerate(lines) if line.startswith('  File "')]
    below = [line for line in lines[frames[-1] :] if line and not line.startswith(" ")] if frames else []
    return below[0] if below else f"{type(error).__name__}: {lines[0]}".removesuffix(": ")


def _place_of(error: BaseException) -> str:
    """Where it was raised, also if a worker raised it: then the worker's traceback is its message."""
    frames = re.findall(
        r'^ *File "(.+)", line (\d+), in (.+)$', "".join(traceback.format_exception(error)), re.MULTILINE
    )
    return " at {}({}): {}".format(*frames[-1]) if frames else ""


def _end_workers(iterator: Any) -> None:
    """Ends the workers in the middle of their epoch, when what was asked of them has arrived.

    A spawned worker may abort then: its interpreter ends, while the thread that sends batches still runs. PyTorch, if
    it still watched the workers, would raise that here, and sometimes leave the other workers as they are.
    """
    from torch.utils.data import _utils

    if iterator._worker_pids_set:
        _utils.signal_handling._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False
    iterator._shutdown_workers()
    for worker in iterator._workers:  # those that have not heard of it for seconds
        worker.kill()
        worker.join()


class _Run:
    """What a run measured."""

    def __init__(self, start: float):
        self.start = start  # seconds until the first batch
        self.seconds = 0.0  # a batch
        self.busy = 0.0  # processor seconds of this process for a batch
        self.batches: list[tuple[float, float, float]] = []  # fetch, collate, and processor seconds of both
        self.workers: dict[int, Any] = {}  # each Worker of streams.py
        self.last: Any = None

    def means(self) -> Iterator[float]:
        """Of the `batches`."""
        return (sum(times) / len(times) for times in zip(*self.batches, strict=True))


class _Order:
    """The epoch of a sampler again and again. Each iterator goes on where the last one stopped."""

    def __init__(self, source: Iterable[Any]):
        self.taken = 0
        self._samples = 0
        self._order = itertools.cycle(source)

    def __iter__(self) -> Iterator[Any]:
        for indices in self._order:
            self.taken += 1
            self._samples += len(indices) if hasattr(indices, "__len__") else 1
            yield indices

    def samples_per_batch(self) -> float:
        return self._samples / self.taken


def _numbers_to_try(processors: int, configured: int, batches: int | None) -> list[int]:
    doubled = itertools.takewhile(lambda number: number < processors, (2**power for power in itertools.count()))
    numbers = sorted({0, *doubled, processors, 2 * processors, 4 * processors, configured})
    return [number for number in numbers if not batches or number <= max(configured, batches)]


def _free_shared_memory() -> float:
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return float("inf")
    return room.f_bavail * room.f_frsize


@contextlib.contextmanager
def _more_workers_than_processors() -> Iterator[None]:
    """PyTorch has warned of the user's own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        yield


@contextlib.contextmanager
def _random_states_kept() -> Iterator[None]:
    import torch

    numpy = sys.modules.get("numpy")
    states = torch.get_rng_state(), random.getstate(), None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        if numpy is not None:
            numpy.random.set_state(states[2])


def _gpu(device: Any, torch: Any) -> Any:
    """PyTorch's GPU, or None."""
    name = str(device)
    if name in ("host", "cpu") or not torch.cuda.is_available():
        return None
    return torch.device("cuda" if name == "auto" else name)


def _median(action: Callable[[], None], seconds: float) -> float:
    """Seconds of the action: the median of as many times as fit `seconds`, up to 1000, after a first one."""
    action()
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < 1000 and (not taken or time.perf_counter() < end):
        begin = time.perf_counter()
        action()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)
