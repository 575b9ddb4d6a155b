"""Feeds a dataset through each contender: as fast as it goes, and beside a consumer that computes."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from . import loaders, peers
from .data import Samples, verify
from .setting import Contender, Result, Setting, at_most, attempt, opened


class Throttle:
    """Keeps the host from running ahead of the device by more than two marks."""

    def __init__(self, setting: Setting, every: int):
        self.on_gpu, self.every, self.count = setting.on_gpu, every, 0
        self.marks: list[torch.cuda.Event] = []

    def __call__(self) -> None:
        self.count += 1
        if not self.on_gpu or self.count % self.every:
            return
        if len(self.marks) >= 2:
            self.marks.pop(0).synchronize()
        self.marks.append(torch.cuda.Event())
        self.marks[-1].record()


def endless(batches: Iterable) -> Iterator:
    while True:
        count = 0
        for batch in batches:
            count += 1
            yield batch
        if count == 0:
            raise ValueError("an epoch without batches")


def rate(batches: Iterable, setting: Setting, seconds: float) -> float:
    """Samples a second with a consumer that does nothing, epochs one after the other."""
    throttle = Throttle(setting, every=16)
    samples = 0
    setting.synchronize()
    begin = time.perf_counter()
    for x, _ in endless(batches):
        samples += len(x)
        throttle()
        if time.perf_counter() - begin > seconds:
            break
    setting.synchronize()
    return samples / (time.perf_counter() - begin)


class Compute:
    """A consumer: matrix products (bf16 on a GPU) that take about so many milliseconds, and one read of the batch."""

    def __init__(self, setting: Setting, milliseconds: float):
        self.setting, self.milliseconds = setting, milliseconds
        extent, kind = (4096, torch.bfloat16) if setting.on_gpu else (192, torch.float32)
        self.a, self.b = (torch.randn(extent, extent, device=setting.target, dtype=kind) for _ in range(2))
        self.out = torch.empty_like(self.a)
        self.sum = torch.zeros((), device=setting.target)
        self.repeats = 1
        once = self.alone(torch.zeros(1), 0.2)
        self.repeats = max(1, round(milliseconds / once))

    def __call__(self, x: torch.Tensor) -> None:
        self.sum += x.view(-1)[0]
        for _ in range(self.repeats):
            torch.mm(self.a, self.b, out=self.out)

    def alone(self, x: torch.Tensor, seconds: float) -> float:
        """Median milliseconds of a step whose batch is there. For so long, after as long again: a GPU that has rested
        runs faster than one that works."""
        x = x.to(self.setting.target)
        for _ in range(2):
            steps = Steps(self.setting)
            begin = time.perf_counter()
            while time.perf_counter() - begin < seconds or len(steps.ends) < 10:
                steps.begin()
                self(x)
                steps.end()
        return statistics.median(steps.spans())


class Steps:
    """When steps began and ended, in milliseconds on the consumer's stream, or on the host if that is the device."""

    def __init__(self, setting: Setting):
        self.on_gpu = setting.on_gpu
        self.begins: list[Any] = []
        self.ends: list[Any] = []

    def _mark(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def begin(self) -> None:
        self.begins.append(self._mark())

    def end(self) -> None:
        self.ends.append(self._mark())
        # A loop that reads its loss now and then is about as far ahead of its GPU.
        if self.on_gpu and len(self.ends) > 4:
            self.ends[-5].synchronize()

    def _between(self, first: Any, second: Any) -> float:
        return first.elapsed_time(second) if self.on_gpu else 1e3 * (second - first)

    def spans(self) -> list[float]:
        if self.on_gpu:
            torch.cuda.synchronize()
        return [self._between(a, b) for a, b in zip(self.begins, self.ends, strict=True)]

    def periods(self) -> list[float]:
        """From the beginning of each step to that of the next."""
        if self.on_gpu:
            torch.cuda.synchronize()
        return [self._between(a, b) for a, b in itertools.pairwise(self.begins)]

    def gaps(self) -> list[float]:
        return [self._between(a, b) for a, b in zip(self.ends, self.begins[1:], strict=False)]


def computing(batches: Iterable, compute: Compute, setting: Setting) -> dict[str, float]:
    """Steps of the consumer, fed: all in milliseconds, means over the steps but the first few."""
    settle = 5
    steps = Steps(setting)
    begin = time.perf_counter()
    for x, _ in endless(batches):
        if len(steps.ends) == 0:
            before = compute.alone(x, setting.seconds / 4)
            begin = time.perf_counter()
        steps.begin()
        compute(x)
        steps.end()
        if time.perf_counter() - begin > setting.seconds and len(steps.ends) >= settle + 10:
            break
    spans, gaps = steps.spans()[settle:], steps.gaps()[settle:]
    alone = (before + compute.alone(x, setting.seconds / 4)) / 2
    product, exposed = statistics.median(spans), statistics.fmean(gaps)
    return {
        "step_ms": compute.milliseconds,
        "alone_ms": alone,
        "fed_ms": statistics.fmean(spans) + exposed,
        "compute_ms": product,
        "slowdown": product / alone - 1,
        "exposed_ms": exposed,
        "exposed_median_ms": statistics.median(gaps),
        "exposed_share": exposed / (statistics.fmean(spans) + exposed),
    }


def best_option(contender: Contender, samples: Samples, setting: Setting) -> tuple[Any, dict[str, float]]:
    """The option with the highest rate in a short run, and the rates of all."""
    options = contender.options(setting)
    if len(options) == 1:
        return options[0], {}
    rates = {}
    for option in options:
        with opened(contender, samples, setting, option) as batches:
            for _ in zip(range(3), batches, strict=False):
                pass
            rates[option] = rate(batches, setting, setting.seconds / 2)
    return max(rates, key=lambda option: rates[option]), {str(option): value for option, value in rates.items()}


def measure_with(samples: Samples, setting: Setting) -> Callable[[Contender, Result], None]:
    reference = samples.x.to(setting.target)
    consumers = [Compute(setting, milliseconds) for milliseconds in setting.step_ms]

    def measure(contender: Contender, result: Result) -> None:
        result.option, by_option = best_option(contender, samples, setting)
        with opened(contender, samples, setting, result.option) as batches:
            verify(batches, samples, reference, setting)
            result.verified = True
            per_second = rate(batches, setting, setting.seconds)
            result.figures = samples.figures(per_second) | {"by_option": by_option}
            if not contender.ceiling:
                result.figures["steps"] = [computing(batches, compute, setting) for compute in consumers]

    return measure


def wire(samples: Samples, setting: Setting) -> Result:
    """The link's own rate: pinned batches copied one after the other."""

    def measure(contender: Contender, result: Result) -> None:
        pinned = torch.empty((samples.batch_size, *samples.x.shape[1:]), dtype=samples.x.dtype).pin_memory()
        there = torch.empty_like(pinned, device=setting.target)

        def batches() -> Iterator:
            while True:
                there.copy_(pinned, non_blocking=True)
                yield pinned, None

        rate(batches(), setting, setting.seconds / 4)
        per_second = rate(batches(), setting, setting.seconds)
        result.verified = torch.equal(there.cpu(), pinned)
        result.figures = samples.figures(per_second)

    contender = Contender("raw pinned copies of whole batches", lambda *_: None, gpu_only=True, ceiling=True)
    return attempt(samples.name, contender, setting, measure)


def feed_all(samples: Samples, setting: Setting) -> list[Result]:
    try:
        with at_most(setting.most_seconds):
            chosen, rates = best_option(loaders.plain(), samples, setting)
    except Exception as error:
        # It fails again below, and is reported there.
        print(f"  {samples.name}: worker processes: {error}", file=sys.stderr)
        chosen, rates = max(setting.workers), {}
    setting = dataclasses.replace(setting, chosen_workers=chosen)
    measure = measure_with(samples, setting)
    everyone = [*peers.contenders(samples), *loaders.contenders(samples)]
    results = [wire(samples, setting)]
    results += [attempt(samples.name, c, setting, measure) for c in sorted(everyone, key=lambda c: c.ours)]
    for result in results:
        if result.contender == loaders.plain().name:
            result.figures["by_option"] = rates
    return results
