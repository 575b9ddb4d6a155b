"""The setting of a comparison: the device, the contenders, and their results."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Setting:
    """The settings that all contenders of a run share."""

    device: str  #: "cuda" or "host", as penstock calls it
    seconds: float  #: of one measured run
    quick: bool = False
    step_ms: tuple[float, ...] = ()
    most_seconds: float = 90.0  #: that one contender may take in all
    chosen_workers: int | None = None  #: the best number of worker processes, once it is known

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def target(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device()) if self.on_gpu else torch.device("cpu")

    @property
    def cores(self) -> int:
        return len(os.sched_getaffinity(0))

    @property
    def workers(self) -> tuple[int, ...]:
        """Numbers of worker processes to try."""
        if self.chosen_workers is not None:
            return (self.chosen_workers,)
        if self.quick or self.cores < 4:
            return (min(2, self.cores),)
        return tuple(sorted({4, self.cores // 2, max(4, self.cores - 2)}))

    def synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()


@dataclass(frozen=True)
class Contender:
    """One way to do a workload's work: `make(job, setting, option)` gives what the workload runs."""

    name: str
    make: Callable[[Any, Setting, Any], Any]
    needs: tuple[str, ...] = ()  #: modules besides torch
    gpu_only: bool = False
    options: Callable[[Setting], tuple] = lambda setting: (None,)  #: all are tried, the best counts
    ours: bool = False
    ceiling: bool = False  #: no peer, but what bounds the others

    def why_not(self, setting: Setting) -> str:
        """Why it is not measured here; empty if it can be."""
        absent = [module for module in self.needs if not _installed(module)]
        if absent:
            return f"not installed: {', '.join(absent)}"
        return "needs a GPU" if self.gpu_only and not setting.on_gpu else ""


OURS: dict[str, Any] = {"needs": ("penstock",), "ours": True}


@dataclass
class Result:
    """The result of one contender in one workload."""

    workload: str
    contender: str
    ours: bool = False
    ceiling: bool = False
    not_measured: str = ""
    failed: str = ""
    verified: bool = False
    option: Any = None
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> str:
        if self.not_measured:
            return f"not measured: {self.not_measured}"
        return f"failed: {self.failed}" if self.failed else "measured"


class WrongBytes(AssertionError):
    """A contender delivered other bytes than the dataset holds."""


def attempt(
    workload: str, contender: Contender, setting: Setting, measure: Callable[[Contender, Result], None]
) -> Result:
    """Measures a contender. A failure is noted in its result, and the run goes on."""
    result = Result(workload, contender.name, contender.ours, contender.ceiling)
    result.not_measured = contender.why_not(setting)
    if not result.not_measured:
        try:
            with at_most(setting.most_seconds):
                measure(contender, result)
        except WrongBytes as error:
            result.failed = str(error)
        except Exception as error:
            traceback.print_exc()
            result.failed = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
        tidy(setting)
    progress(result)
    return result


def tidy(setting: Setting) -> None:
    """Frees what nothing uses. A worker that is forked later must not find CUDA's objects in garbage: they end it."""
    gc.collect()
    if setting.on_gpu:
        torch.cuda.empty_cache()


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the main thread when the time is up, so that one contender cannot hold up the others."""

    def ring(signum: int, frame: Any) -> None:
        raise TimeoutError(f"took longer than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def opened(contender: Contender, job: Any, setting: Setting, option: Any) -> Iterator[Any]:
    """The contender's loader, which is closed afterwards if it can be."""
    made = contender.make(job, setting, option)
    try:
        yield made
    finally:
        if callable(getattr(made, "close", None)):
            made.close()
        del made


def progress(result: Result) -> None:
    plain = {k: v for k, v in result.figures.items() if isinstance(v, float | int)}
    figures = ", ".join(f"{name} {value:.4g}" for name, value in plain.items())
    print(f"  {result.workload}: {result.contender}: {result.status} {figures}", file=sys.stderr, flush=True)


def busy(seconds: float) -> None:
    """Keeps this thread's processor awake, as a thread that launches kernels does."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def cost_of_next(batches: Iterator[Any], setting: Setting, rest: float) -> tuple[float, float, Any]:
    """Medians of the wall and processor time that `next()` takes of this thread, after `rest` seconds of other work and
    with the device idle, and the last batch."""
    wall, processor = [], []
    end = time.perf_counter() + setting.seconds / 2
    for k in range(2000):
        busy(rest)
        setting.synchronize()
        own, begin = time.thread_time(), time.perf_counter()
        batch = next(batches)
        last = time.perf_counter()
        if k >= 5:
            wall.append(last - begin)
            processor.append(time.thread_time() - own)
        if last > end and len(wall) >= 20:
            break
    return statistics.median(wall), statistics.median(processor), batch


def median_call(call: Callable[[], Any], setting: Setting) -> tuple[float, float]:
    """Median seconds until `call` returns, and until its queued work is done, of up to 31 calls."""
    returned, done = [], []
    end = time.perf_counter() + setting.seconds
    for k in range(33):
        setting.synchronize()
        begin = time.perf_counter()
        value = call()
        middle = time.perf_counter()
        setting.synchronize()
        last = time.perf_counter()
        del value
        if k >= 2:
            returned.append(middle - begin)
            done.append(last - begin)
            if last > end and len(done) >= 3:
                break
    return statistics.median(returned), statistics.median(done)


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
