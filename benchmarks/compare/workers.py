"""A DataLoader with worker processes: its batches as PyTorch moves them, and with feed around it.

`tensors`: the workers only stack samples of a TensorDataset, so what limits is the way of their batches. `decoding`:
each sample is decompressed, so the workers limit.
"""

from __future__ import annotations

import dataclasses
import time
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from .data import Samples, verify
from .feeding import rate
from .loaders import Fed, Moved, Unmoved, loader_of
from .setting import OURS, Contender, Result, Setting, attempt, opened


class Compressed(Dataset):
    """Samples that are decompressed each time."""

    def __init__(self, samples: Samples):
        self.shape, self.numbers = samples.x.shape[1:], samples.number
        self.packed = [zlib.compress(x.numpy().tobytes(), 1) for x in samples.x]

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        data = bytearray(zlib.decompress(self.packed[index]))
        return torch.frombuffer(data, dtype=torch.uint8).view(self.shape), self.numbers[index]


def compare(samples: Samples, setting: Setting) -> list[Result]:
    reference = samples.x.to(setting.target)
    results = []
    tensors = TensorDataset(samples.x, samples.number)
    for workers in setting.workers:
        results += _each(f"{samples.name}, tensors, {workers} workers", tensors, workers, samples, setting, reference)
    few = dataclasses.replace(samples, x=samples.x[: len(samples) // 8])
    workers = setting.workers[len(setting.workers) // 2]
    name = f"{samples.name}, decoding, {workers} workers"
    return results + _each(name, Compressed(few), workers, few, setting, reference[: len(few)])


def _each(
    name: str, dataset: Any, workers: int, samples: Samples, setting: Setting, reference: torch.Tensor
) -> list[Result]:
    def loader(pin: bool) -> DataLoader:
        return loader_of(dataset, samples.batch_size, workers, pin)

    contenders = [
        Contender("DataLoader", lambda s, setting, _: Moved(loader(setting.on_gpu), s, setting)),
        Contender("DataLoader, left on the host", lambda s, setting, _: Unmoved(loader(False), s), ceiling=True),
        Contender("penstock.feed", lambda s, setting, _: Fed(loader(False), s, setting, native=False), **OURS),
    ]
    return [attempt(name, contender, setting, _measure_with(samples, setting, reference)) for contender in contenders]


def _measure_with(samples: Samples, setting: Setting, reference: torch.Tensor) -> Callable[[Contender, Result], None]:
    def measure(contender: Contender, result: Result) -> None:
        begin = time.perf_counter()
        with opened(contender, samples, setting, None) as batches:
            count = sum(len(x) for x, _ in batches)
            setting.synchronize()
            first = time.perf_counter() - begin
            verify(batches, samples, reference, setting)
            result.verified = True
            per_second = rate(batches, setting, 2 * setting.seconds)
            result.figures = samples.figures(per_second) | {"first_epoch_samples_per_second": count / first}
            if isinstance(batches, Fed):
                result.figures["limited_by"] = batches.feed.stats().limited_by
                result.figures["described"] = batches.feed.describe()

    return measure
