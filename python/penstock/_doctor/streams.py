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

from .stages import Staged, WorkerStart, is_plain, leaves, tensors


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
    first: bytes | None  # a digest of its first batch; None if that has more than tensors, arrays and plain values


class StagedStream(Staged, IterableDataset[Any]):
    """A Staged whose batches an iterable-style dataset yields, without an end. Times tell the worker, too."""

    def __init__(self, loader: Any, left_out: set[str]):
        super().__init__(loader.dataset, loader.collate_fn, loader.batch_size is not None, left_out)
        self.batch_size = loader.batch_size
        self._first: list[bytes | None] = []

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
            self._first = [_digest(fetched[0])]
        batch = super().collate(fetched)
        if tells:
            batch.worker = Worker(info.of.id, info.asked, *self._first)
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

    of: Any = None
    asked = False  # which worker it is, or of how many

    def __init__(self, of: Any):
        self.of = of

    def __getattr__(self, name: str) -> Any:
        self.asked = self.asked or name in ("id", "num_workers")
        return getattr(self.of, name)


def share_samples(workers: dict[int, Worker], may_be_told: bool) -> tuple[bool | None, list[str]]:
    """Whether workers share the samples out, and a note if it is not known. `may_be_told`: by a worker_init_fn.

    False if none asks which one it is, and all begin with the same batch.
    """
    asked = any(worker.asked for worker in workers.values())
    firsts = {worker.first for worker in workers.values()}
    same = len(workers) > 1 and len(firsts) == 1 and None not in firsts
    if not same:
        return (True, []) if asked else (None, [] if may_be_told or len(workers) < 2 else [NOT_ASKED])
    return (None, [ASKED]) if asked else (False, [])


ASKED = "Workers ask which one they are, but all begin with the same batch. Look whether they share the samples out."
NOT_ASKED = (
    "No worker asks which one it is (torch.utils.data.get_worker_info). Unless each draws its samples at random, an "
    "epoch has all of them once for each worker."
)


def rows_of(batch: Any) -> int:
    """The samples of a batch that the dataset made: the rows of its first tensor that has any dimension."""
    return next((tensor.shape[0] for tensor in tensors(batch) if tensor.dim() > 0), 1)


def _digest(samples: Any) -> bytes | None:
    """None if something in them cannot be read so: what follows from this is only extra."""
    told = hashlib.blake2b()
    try:
        for leaf in leaves(samples):
            told.update(_bytes_of(leaf))
    except Exception:
        return None
    return told.digest()


def _bytes_of(leaf: Any) -> Any:
    import torch

    if isinstance(leaf, torch.Tensor):
        return leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    if not is_plain(leaf):
        raise TypeError(type(leaf))
    if hasattr(leaf, "dtype"):
        if leaf.dtype.hasobject:
            raise TypeError(leaf.dtype)
        return f"{leaf.dtype} {leaf.shape}".encode() + leaf.tobytes()
    return repr(leaf).encode()
