"""The stages of a DataLoader in its workers: fetch and collate, timed, or left out once they were done for real."""

from __future__ import annotations

import copy
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any


class Staged:
    """A dataset and its collate_fn, of which some stages are left out once each has been done for real once."""

    def __init__(self, dataset: Any, collate_fn: Callable[[Any], Any], auto: bool, left_out: set[str]):
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.auto = auto
        self.left_out = left_out
        self._samples: Any = NOTHING
        self._made: Any = NOTHING
        self._is_aliased = True

    def __getitem__(self, index: Any) -> tuple[Any, float, float]:
        begin, busy = time.perf_counter(), time.process_time()
        if "fetch" in self.left_out and self._samples is not NOTHING:
            samples = fresh(self._samples) if self._is_aliased else shallow(self._samples)
        else:
            samples = self._fetch(index)
        return samples, time.perf_counter() - begin, time.process_time() - busy

    __getitems__ = __getitem__

    def _fetch(self, index: Any) -> Any:
        if not self.auto:
            return self.dataset[index]
        if getattr(self.dataset, "__getitems__", None):
            return self.dataset.__getitems__(index)
        return [self.dataset[i] for i in index]

    def collate(self, fetched: tuple[Any, float, float]) -> Any:
        samples, fetch_seconds, fetch_busy = fetched
        begin, busy = time.perf_counter(), time.process_time()
        if "collate" in self.left_out and self._made is not NOTHING:
            batch = fresh(self._made)
        else:
            kept = shallow(samples)
            batch = self.collate_fn(samples)
            if "fetch" in self.left_out and self._samples is NOTHING:
                # The thread that sends the batch moves its tensors to other memory, while the next samples are copied.
                self._is_aliased = may_share_memory(kept, batch)
                self._samples = fresh(kept) if self._is_aliased else kept
            if "collate" in self.left_out:
                self._made = fresh(batch)
        times = fetch_seconds, time.perf_counter() - begin, fetch_busy + time.process_time() - busy
        return StageTimes(times) if "transport" in self.left_out else batch


class StageTimes:
    """The seconds of fetch and of collate, and the processor seconds of both, in place of a batch."""

    def __init__(self, times: tuple[float, float, float]):
        self.times = times
        self.worker: Any = None  # a Worker of streams.py, if the dataset is iterable-style


class WorkerStart:
    """Shows the user's worker_init_fn, and the dataset later, the user's dataset and not the one around it."""

    def __init__(self, worker_init_fn: Callable[[int], None] | None):
        self.worker_init_fn = worker_init_fn

    def __call__(self, worker: int) -> None:
        from torch.utils.data import get_worker_info

        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)  # PyTorch's own __setattr__ refuses
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)


class _Nothing:
    """A marker that stays the same object in other processes."""

    def __reduce__(self) -> str:
        return "NOTHING"


NOTHING = _Nothing()


def shallow(samples: Any) -> Any:
    """Samples that a collate_fn may take apart without taking apart these."""
    if type(samples) is not list:
        return samples
    return [sample.copy() if type(sample) in (dict, list) else sample for sample in samples]


def fresh(value: Any) -> Any:
    """The same with tensors in new shared memory, as a worker's collate makes them."""
    import torch

    if isinstance(value, torch.Tensor):
        plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
        if not plain or value.nbytes == 0 or type(value) is not torch.Tensor:
            return value.clone()
        storage = torch.UntypedStorage._new_shared(value.nbytes)
        return torch.empty(0, dtype=value.dtype).set_(storage, 0, value.shape).copy_(value.detach())
    if type(value) in (list, tuple):
        return type(value)(map(fresh, value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(fresh, value))
    if type(value) is dict:
        return {key: fresh(item) for key, item in value.items()}
    return copy.deepcopy(value)


def leaves(value: Any) -> Iterator[Any]:
    """Everything in nests of dicts, lists and tuples that is none of these."""
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        yield value
        return
    yield from itertools.chain.from_iterable(map(leaves, value))


def tensors(value: Any) -> Iterator[Any]:
    """Those that take memory as their shape tells: sparse ones do not."""
    torch = sys.modules["torch"]
    return (leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided)


def is_plain(value: Any) -> bool:
    """True for an array and for a value that has no memory of others."""
    numpy = sys.modules.get("numpy")
    plain = (str, bytes, int, float, complex, type(None), *(() if numpy is None else (numpy.ndarray, numpy.generic)))
    return isinstance(value, plain)


def may_share_memory(one: Any, other: Any) -> bool:
    """False if these are tensors, arrays and plain values, and no tensor of one uses the memory of the other's."""
    torch = sys.modules["torch"]
    memory: list[set[int]] = [set(), set()]
    for value, found in zip((one, other), memory, strict=True):
        for leaf in leaves(value):
            if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
                found.add(leaf.untyped_storage().data_ptr())
            elif not is_plain(leaf):
                return True
    return bool(memory[0] & memory[1])
