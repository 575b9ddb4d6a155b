"""A small copy of the program's own, made from time to time on its own stream, beside a feed or to_device."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from .data import Samples, random_bytes
from .feeding import Compute, Steps, endless
from .loaders import Moved
from .setting import Contender, Result, Setting, attempt, opened
from .transfers import OURS, Tensors, check, ours_to_device, per_tensor
from .workers import Fed

_BYTES = 51_000
_STEP_MS = 5.0
_ALONE = "nothing beside it"


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
    """Beside a DataLoader with workers, moved by hand and by feed: as fast as it goes, and with steps of 5 ms."""
    workers = max(setting.workers)

    def loader(pin: bool) -> DataLoader:
        dataset = TensorDataset(samples.x, samples.number)
        return DataLoader(
            dataset, samples.batch_size, True, num_workers=workers, pin_memory=pin, persistent_workers=True
        )

    contenders = [
        Contender(_ALONE, lambda samples, setting, _: None, ceiling=True),
        Contender("DataLoader", lambda samples, setting, _: Moved(loader(setting.on_gpu), samples, setting)),
        Contender("penstock.feed", lambda samples, setting, _: Fed(loader(False), samples, setting), **OURS),
    ]
    results = []
    for step_ms in (0.0, _STEP_MS):
        name = f"a copy of 51 KB beside {samples.name} from {workers} processes, {_paced(step_ms)}"
        measure = _measure_with(samples, setting, step_ms)
        results += [attempt(name, contender, setting, measure) for contender in contenders]
    return results + _beside_tensors(setting)


def _beside_tensors(setting: Setting) -> list[Result]:
    """Beside tensors that move to the device over and over: one in pageable memory, one that is pinned, and many."""
    size = 1 << (24 if setting.quick else 30 if setting.on_gpu else 28)
    one = {"t": random_bytes(size)}
    many = {f"t{i}": part for i, part in enumerate(one["t"].split(1 << 20))}
    results = []
    for what, host, pin in (
        (f"a pageable tensor of {size >> 20} MiB", one, False),
        (f"a pinned tensor of {size >> 20} MiB", one, True),
        (f"{len(many)} pinned tensors of 1 MiB", many, True),
    ):
        pinned = {name: t.pin_memory() for name, t in host.items()} if pin and setting.on_gpu else host
        job = Tensors(f"a copy of 51 KB beside {what}, {_paced(0)}", pinned)
        contenders = [
            Contender(_ALONE, lambda job, setting, _: None, ceiling=True),
            Contender("`.to(non_blocking=True)`", per_tensor(True)),
            Contender("penstock.to_device", ours_to_device, **OURS),
        ]
        results += [attempt(job.name, contender, setting, _moving(job, setting)) for contender in contenders]
    return results


def _moving(job: Tensors, setting: Setting) -> Callable[[Contender, Result], None]:
    def measure(contender: Contender, result: Result) -> None:
        with opened(contender, job, setting, None) as call:
            if call is not None:
                check(call(), job, setting)
            setting.synchronize()
            moved, begin = 0, time.perf_counter()
            with ForeignCopies(setting) as foreign:
                while time.perf_counter() < begin + 2 * setting.seconds:
                    if call is None:
                        time.sleep(1e-3)
                        continue
                    call()
                    setting.synchronize()
                    moved += job.bytes
            seconds = time.perf_counter() - begin
            result.figures = _figures(foreign)
            if call is not None:
                result.figures["gbps"] = moved / seconds / 1e9
                check(call(), job, setting)
            result.verified = True

    return measure


def _figures(foreign: ForeignCopies) -> dict[str, float]:
    taken = sorted(foreign.milliseconds)
    return {
        "copy_p50_ms": statistics.median(taken),
        "copy_p99_ms": taken[int(0.99 * (len(taken) - 1))],
        "copies": len(taken),
    }


def _paced(step_ms: float) -> str:
    return f"steps of {step_ms:.0f} ms" if step_ms > 0 else "full speed"


def _measure_with(samples: Samples, setting: Setting, step_ms: float) -> Callable[[Contender, Result], None]:
    compute = Compute(setting, step_ms) if step_ms > 0 else None

    def measure(contender: Contender, result: Result) -> None:
        with opened(contender, samples, setting, None) as batches:
            if batches is not None:
                for _ in batches:  # workers, slots and pinned memory are there from the first epoch on
                    pass
            setting.synchronize()
            with ForeignCopies(setting) as foreign:
                per_second = _consume(batches, compute, setting)
        result.figures = _figures(foreign)
        if per_second is not None:
            result.figures["samples_per_second"] = per_second
            result.figures["stored_gbps"] = per_second * samples.sample_bytes / 1e9
        result.verified = True  # the bytes of these feeds are those of the workload `workers`

    return measure


def _consume(batches: Iterable | None, compute: Compute | None, setting: Setting) -> float | None:
    """Samples a second; None if there is no feed."""
    seconds = 2 * setting.seconds
    if batches is None:
        time.sleep(seconds)
        return None
    samples, steps, begin = 0, Steps(setting), time.perf_counter()
    for x, _ in _until(begin + seconds, endless(batches)):
        samples += len(x)
        steps.begin()
        if compute is not None:
            compute(x)
        steps.end()
    setting.synchronize()
    return samples / (time.perf_counter() - begin)


def _until(end: float, batches: Iterator) -> Iterator:
    for batch in batches:
        yield batch
        if time.perf_counter() > end:
            return
