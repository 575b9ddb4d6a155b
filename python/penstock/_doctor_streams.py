"""Loaders of iterable-style datasets, for `diagnose`: their epochs without an end, and who yields which samples.

Needs PyTorch to be imported.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import worker as _worker

from ._doctor_stages import Staged, WorkerStart, is_plain, leaves, tensors


class Endless(IterableDataset[Any]):
    """The epochs of a dataset, one after the other. An epoch without samples is the last."""

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        is_empty = False
        while not is_empty:
            is_empty = True
            for sample in self.dataset:
                is_empty = False
                yield sample


class Worker(NamedTuple):
    """What is known of a worker's samples."""

    number: int
    asked: bool  # which worker it is, or of how many
    first: bytes  # a digest of its first batch


class StagedStream(Staged, IterableDataset[Any]):
    """A Staged whose batches an iterable-style dataset yields, without an end. Times tell the worker, too."""

    def __init__(self, loader: Any, left_out: set[str]):
        super().__init__(loader.dataset, loader.collate_fn, loader.batch_size is not None, left_out)
        self.batch_size = loader.batch_size
        self._first = b""

    def __iter__(self) -> Iterator[Any]:
        self._stream = iter(Endless(self.dataset))
        while True:
            try:
                yield self[None]
            except StopIteration:
                return

    def _fetch(self, index: Any) -> Any:
        if not self.auto:
            return next(self._stream)
        samples = list(itertools.islice(self._stream, self.batch_size))
        if not samples:
            raise StopIteration
        return samples

    def collate(self, fetched: tuple[Any, float, float]) -> Any:
        info: Any = get_worker_info()
        tells = isinstance(info, _Asked) and "transport" in self.left_out
        if tells and not self._first:
            self._first = _digest(fetched[0])
        batch = super().collate(fetched)
        if tells:
            batch.worker = Worker(info.of.id, info.asked, self._first)
        return batch


class StreamStart(WorkerStart):
    """A WorkerStart that sees whether the dataset, or worker_init_fn, asks which worker it is."""

    def __call__(self, worker: int) -> None:
        info = get_worker_info()
        if info is not None and getattr(_worker, "_worker_info", None) is info:
            _worker._worker_info = _Asked(info)
        super().__call__(worker)


class _Asked:
    """Stands in for PyTorch's WorkerInfo."""

    def __init__(self, of: Any):
        self.of = of
        self.asked = False  # which worker it is, or of how many

    def __getattr__(self, name: str) -> Any:
        self.asked = self.asked or name in ("id", "num_workers")
        return getattr(self.of, name)


def share_samples(workers: dict[int, Worker]) -> bool | None:
    """True if some worker asks which one it is, False if none does and all begin with the same batch. None: unknown."""
    if any(worker.asked for worker in workers.values()):
        return True
    firsts = {worker.first for worker in workers.values()}
    return False if len(workers) > 1 and len(firsts) == 1 else None


def rows_of(batch: Any) -> int:
    """The samples of a batch that the dataset made: the rows of its first tensor that has any dimension."""
    return next((tensor.shape[0] for tensor in tensors(batch) if tensor.dim() > 0), 1)


def _digest(samples: Any) -> bytes:
    import torch

    told = hashlib.blake2b()
    for leaf in leaves(samples):
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and not leaf.is_quantized:
            told.update(leaf.detach().cpu().reshape(-1).view(torch.uint8).numpy())
        elif is_plain(leaf):
            told.update(repr(leaf).encode())
    return told.digest()
