"""Ways to move shuffled batches of an in-memory dataset to a device with only PyTorch and penstock.

Each gives an iterable of `(x, number)` on the device, in the dtype that is wanted, valid until the next is asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from .data import Fancy, Indexed, Samples, as_it_is
from .setting import OURS, Contender, Setting


def loader_of(dataset: Dataset, batch_size: int, workers: int, pin: bool = False, **options: Any) -> DataLoader:
    workers_options = {"num_workers": workers, "persistent_workers": workers > 0}
    return DataLoader(dataset, batch_size, shuffle=True, pin_memory=pin, **workers_options, **options)


def data_loader(samples: Samples, workers: int, pin: bool, fancy: bool = False) -> DataLoader:
    dataset, collate = (Fancy(samples), as_it_is) if fancy else (Indexed(samples), None)
    return loader_of(dataset, samples.batch_size, workers, pin, collate_fn=collate)


class Moved:
    """A loader whose batches are moved as PyTorch's documentation advises."""

    def __init__(self, loader: DataLoader, samples: Samples, setting: Setting):
        self.loader, self.deliver, self.target = loader, samples.deliver, setting.target

    def __iter__(self) -> Iterator:
        for x, number in self.loader:
            x = x.to(self.target, non_blocking=True)
            yield x.to(self.deliver), number.to(self.target, non_blocking=True)


def to_target(batch: Any, setting: Setting) -> Any:
    """The batch on the device, its columns moved one by one. The host does not wait."""
    if isinstance(batch, dict):
        return {name: column.to(setting.target, non_blocking=True) for name, column in batch.items()}
    return [tensor.to(setting.target, non_blocking=True) for tensor in batch]


class MovedAsItIs:
    """A loader whose batches are moved in the types that they have."""

    def __init__(self, loader: DataLoader, setting: Setting):
        self.loader, self.setting = loader, setting

    def __iter__(self) -> Iterator:
        for batch in self.loader:
            yield to_target(batch, self.setting)


class Resident:
    """`count` batches that are on the device: the first few, again and again."""

    def __init__(self, dataset: Dataset, batch_size: int, setting: Setting, count: int = 4):
        some = itertools.islice(DataLoader(dataset, batch_size), 4)
        self.batches, self.count = [to_target(batch, setting) for batch in some], count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator:
        return itertools.islice(itertools.cycle(self.batches), self.count)


class Unmoved:
    """A loader whose batches stay on the host."""

    def __init__(self, loader: DataLoader, samples: Samples):
        self.loader, self.deliver = loader, samples.deliver

    def __iter__(self) -> Iterator:
        for x, number in self.loader:
            yield x.to(self.deliver), number


def torch_moved(samples: Samples, setting: Setting, workers: int) -> Moved:
    return Moved(data_loader(samples, workers, pin=setting.on_gpu), samples, setting)


def torch_fancy(samples: Samples, setting: Setting, workers: int) -> Moved:
    return Moved(data_loader(samples, workers, pin=setting.on_gpu, fancy=True), samples, setting)


def torch_unmoved(samples: Samples, setting: Setting, workers: int) -> Unmoved:
    return Unmoved(data_loader(samples, workers, pin=False), samples)


class PinnedRing:
    """What an expert writes by hand: gathers on the host into pinned buffers, copies on a side stream, events between
    all that share a buffer, two batches ahead."""

    depth = 3

    def __init__(self, samples: Samples, setting: Setting):
        self.samples, self.target = samples, setting.target
        shape = (samples.batch_size, *samples.x.shape[1:])
        self.side = torch.cuda.Stream(self.target)
        self.pinned = [torch.empty(shape, dtype=samples.x.dtype, pin_memory=True) for _ in range(self.depth)]
        self.device = [torch.empty(shape, dtype=samples.x.dtype, device=self.target) for _ in range(self.depth)]
        self.numbers = [torch.empty(shape[0], dtype=torch.int64, pin_memory=True) for _ in range(self.depth)]
        self.device_numbers = [n.to(self.target) for n in self.numbers]
        self.copied = [torch.cuda.Event() for _ in range(self.depth)]
        self.used = [torch.cuda.Event() for _ in range(self.depth)]

    def _send(self, slot: int, chosen: torch.Tensor) -> tuple[int, int]:
        count = len(chosen)
        self.copied[slot].synchronize()
        torch.index_select(self.samples.x, 0, chosen, out=self.pinned[slot][:count])
        self.numbers[slot][:count].copy_(chosen)
        with torch.cuda.stream(self.side):
            self.side.wait_event(self.used[slot])
            self.device[slot][:count].copy_(self.pinned[slot][:count], non_blocking=True)
            self.device_numbers[slot][:count].copy_(self.numbers[slot][:count], non_blocking=True)
            self.copied[slot].record(self.side)
        return slot, count

    def __iter__(self) -> Iterator:
        order = torch.randperm(len(self.samples)).split(self.samples.batch_size)
        # An epoch that was left early may still be read.
        self.side.wait_stream(torch.cuda.current_stream(self.target))
        sent = [self._send(slot, chosen) for slot, chosen in enumerate(order[: self.depth - 1])]
        for k in range(len(order)):
            if k + self.depth - 1 < len(order):
                sent.append(self._send((k + self.depth - 1) % self.depth, order[k + self.depth - 1]))
            slot, count = sent[k]
            current = torch.cuda.current_stream(self.target)
            current.wait_event(self.copied[slot])
            yield self.device[slot][:count].to(self.samples.deliver), self.device_numbers[slot][:count]
            self.used[slot].record(current)


class ApexPrefetcher:
    """The prefetcher of many training scripts: the next batch travels on a side stream."""

    def __init__(self, loader: DataLoader, deliver: torch.dtype, setting: Setting):
        self.loader, self.deliver, self.target = loader, deliver, setting.target
        self.side = torch.cuda.Stream(self.target)

    def _preload(self, source: Iterator) -> Any:
        batch = next(source, None)
        if batch is None:
            return None
        with torch.cuda.stream(self.side):
            x, number = (tensor.to(self.target, non_blocking=True) for tensor in batch)
            return x.to(self.deliver), number

    def __iter__(self) -> Iterator:
        source = iter(self.loader)
        ahead = self._preload(source)
        while ahead is not None:
            current = torch.cuda.current_stream(self.target)
            current.wait_stream(self.side)
            batch = ahead
            for tensor in batch:
                tensor.record_stream(current)
            ahead = self._preload(source)
            yield batch


class Fed:
    """penstock.feed around a loader; a consumer that wants another dtype converts on the device."""

    def __init__(self, loader: DataLoader, samples: Samples, setting: Setting, **options: Any):
        import penstock

        self.feed = penstock.feed(loader, device=setting.device, **options)
        self.deliver = samples.deliver

    def __iter__(self) -> Iterator:
        for x, number in self.feed:
            yield x.to(self.deliver), number


def ours_feed(samples: Samples, setting: Setting, workers: int) -> Fed:
    return Fed(data_loader(samples, workers, pin=False), samples, setting)


def ours_feed_native(samples: Samples, setting: Setting, _: None) -> Fed:
    dataset = TensorDataset(samples.x, samples.number)
    return Fed(DataLoader(dataset, batch_size=samples.batch_size, shuffle=True), samples, setting)


def ours_feed_fancy(samples: Samples, setting: Setting, workers: int) -> Fed:
    return Fed(data_loader(samples, workers, pin=False, fancy=True), samples, setting)


def ours_loader(samples: Samples, setting: Setting, gather: str | None) -> Any:
    import penstock

    return penstock.Loader(
        (samples.x, samples.number),
        batch_size=samples.batch_size,
        shuffle=True,
        seed=1,
        device=setting.device,
        to="float32" if samples.widens else None,
        tuning=penstock.Tuning(gather=gather or "automatic"),
    )


def plain() -> Contender:
    return Contender("DataLoader, best of N workers", torch_moved, options=lambda setting: setting.workers)


def contenders(samples: Samples) -> list[Contender]:
    with_workers = {"options": lambda setting: setting.workers}
    perhaps_workers = {"options": lambda setting: (0, *setting.workers)}
    several = [
        plain(),
        Contender("DataLoader with `__getitems__`", torch_fancy, **perhaps_workers),
        Contender("hand-written pinned ring", lambda s, setting, _: PinnedRing(s, setting), gpu_only=True),
        Contender(
            "apex-style prefetcher",
            lambda s, setting, n: ApexPrefetcher(data_loader(s, n, pin=True), s.deliver, setting),
            gpu_only=True,
            **with_workers,
        ),
        Contender("penstock.feed(DataLoader)", ours_feed, **OURS, **with_workers),
        Contender("penstock.feed(DataLoader with `__getitems__`)", ours_feed_fancy, **OURS, **perhaps_workers),
        Contender("penstock.feed(DataLoader of a TensorDataset)", ours_feed_native, **OURS),
        Contender("penstock.Loader", ours_loader, **OURS),
    ]
    if not samples.widens:
        several += [
            Contender("DataLoader, left on the host", torch_unmoved, gpu_only=True, ceiling=True, **with_workers),
            Contender("DataLoader, 0 workers", torch_moved, options=lambda setting: (0,)),
            Contender(
                "penstock.Loader, host gather", ours_loader, gpu_only=True, **OURS, options=lambda setting: ("host",)
            ),
        ]
    # Ours last: PyTorch's workers are forked from a process that has not yet registered the dataset.
    return sorted(several, key=lambda contender: contender.ours)
