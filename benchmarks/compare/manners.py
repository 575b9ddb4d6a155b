"""A small copy of the program's own, made from time to time on its own stream, beside a feed at full speed.

bench_engine has it beside transfers, and bench_loader beside steps.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import TensorDataset

from .data import Samples
from .feeding import rate
from .loaders import Fed, Moved, loader_of
from .setting import OURS, Contender, Result, Setting, attempt, opened

_BYTES = 51_000


class ForeignCopies:
    """Copies 51 KB of pinned memory to the device, each millisecond, on a thread. `milliseconds` tells how long each
    took on the device, from an idle stream: the interpreter's lock does not show in it."""

    def __init__(self, setting: Setting):
        self.setting = setting
        self.milliseconds: list[float] = []
        self._host = torch.zeros(_BYTES, dtype=torch.uint8, pin_memory=setting.on_gpu)
        self._there = torch.zeros(_BYTES, dtype=torch.uint8, device=setting.target)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> ForeignCopies:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        on_gpu = self.setting.on_gpu
        stream = torch.cuda.Stream() if on_gpu else None
        with torch.cuda.stream(stream) if on_gpu else contextlib.nullcontext():
            while not self._stop.wait(1e-3):
                self.milliseconds.append(self._copy_on(stream) if on_gpu else self._copy())

    def _copy_on(self, stream: torch.cuda.Stream) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self._there.copy_(self._host, non_blocking=True)
        end.record()
        stream.synchronize()
        return begin.elapsed_time(end)

    def _copy(self) -> float:
        begin = time.perf_counter()
        self._there.copy_(self._host)
        return 1e3 * (time.perf_counter() - begin)


def compare(samples: Samples, setting: Setting) -> list[Result]:
    """Beside a DataLoader with workers at full speed, moved by hand and by feed."""
    workers = max(setting.workers)
    dataset = TensorDataset(samples.x, samples.number)

    def moved(_: Any, setting: Setting, __: Any) -> Moved:
        return Moved(loader_of(dataset, samples.batch_size, workers, setting.on_gpu), samples, setting)

    def fed(_: Any, setting: Setting, __: Any) -> Fed:
        return Fed(loader_of(dataset, samples.batch_size, workers), samples, setting, native=False)

    contenders = [
        Contender("nothing beside it", lambda *_: None, ceiling=True),
        Contender("DataLoader", moved),
        Contender("penstock.feed", fed, **OURS),
    ]
    name = f"a copy of 51 KB beside {samples.name} from {workers} processes, full speed"
    return [attempt(name, contender, setting, _measure_with(samples, setting)) for contender in contenders]


def _measure_with(samples: Samples, setting: Setting) -> Callable[[Contender, Result], None]:
    def measure(contender: Contender, result: Result) -> None:
        with opened(contender, samples, setting, None) as batches:
            if batches is not None:
                for _ in batches:  # workers, slots and pinned memory are there from the first epoch on
                    pass
            setting.synchronize()
            with ForeignCopies(setting) as foreign:
                per_second = _consume(batches, setting)
        taken = sorted(foreign.milliseconds)
        result.figures = {
            "copy_p50_ms": statistics.median(taken),
            "copy_p99_ms": taken[int(0.99 * (len(taken) - 1))],
            "copies": len(taken),
        }
        if per_second is not None:
            result.figures |= samples.figures(per_second)
        result.verified = True  # the bytes of these feeds are those of the workload `workers`

    return measure


def _consume(batches: Iterable | None, setting: Setting) -> float | None:
    """Samples a second; None if there is no feed."""
    if batches is None:
        time.sleep(2 * setting.seconds)
        return None
    return rate(batches, setting, 2 * setting.seconds)
