"""Memory that leaves the GPU and comes back at the same addresses, by the names of torch_memory_saver.

from penstock import memory_saver

with memory_saver.region("weights", enable_cpu_backup=True):
    model = Model().cuda()
memory_saver.pause("weights")   # the GPU's memory is free
memory_saver.resume("weights")  # CUDA graphs that use it replay
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import threading
from collections.abc import Iterator
from typing import Any

from . import _core
from ._errors import InvalidArgument, Unsupported
from ._move.parking import Parked
from ._move.parts import Region

__all__ = ["pause", "region", "resume"]


@dataclasses.dataclass
class _State:
    """One for each tag, GPU, and whether bytes are kept."""

    number: int
    region: Region
    pool: Any
    """A torch.cuda.MemPool that takes its memory for this region."""
    parked: Parked | None
    """None: the bytes are not kept."""
    is_paused: bool = False

    def pause(self) -> None:
        if self.parked is not None:
            self.parked.park()
        self.is_paused = True
        if self.parked is None:
            for memory in self.region.memory():
                memory.drop_pages()

    def resume(self) -> None:
        if self.parked is not None:
            self.parked.resume()
        elif self.is_paused:
            try:
                for memory in self.region.memory():
                    memory.take_pages()
            except BaseException:
                self.pause()
                raise
        self.is_paused = False


_states: dict[tuple[str, bool, int], _State] = {}
_lock = threading.RLock()
_numbers = itertools.count(1)


@contextlib.contextmanager
def region(tag: str = "default", enable_cpu_backup: bool = False) -> Iterator[None]:
    """A context in which this thread's new tensors on PyTorch's current GPU lie in memory that `pause` takes away.

    Tensors that exist are not moved. Contexts may lie in each other. Without `enable_cpu_backup` bytes are not kept, as
    those of a cache that is filled anew. Other GPUs do not reach the memory: buffers that are registered with NCCL must
    not lie there.

    Raises InvalidArgument while the tag is paused, Unsupported with PyTorch's expandable segments.
    """
    import torch

    with _lock:
        state = _state_of(tag, enable_cpu_backup, torch.cuda.current_device())
    if state.is_paused:
        raise InvalidArgument(f"{tag!r} is paused: resume it before you make tensors in its region.")
    outer = _core.enter_region(state.number)
    try:
        with torch.cuda.use_mem_pool(state.pool):
            yield
    finally:
        _core.enter_region(outer)


def pause(tag: str | None = None) -> None:
    """Give the GPU's memory of a tag's regions, or of all, to other programs and allocators. Does nothing if it is
    paused.

    With `enable_cpu_backup` the bytes go to pinned memory, which is kept for the next `pause`. As for `penstock.park`,
    work on other streams than PyTorch's current one must be done, and it raises the same errors. Until `resume`, use of
    the tensors is an illegal access: no CUDA call of the process succeeds afterwards.
    """
    with _lock:
        for state in _with(tag):
            state.pause()


def resume(tag: str | None = None) -> None:
    """Bring memory back to where it was, with its bytes if they were kept. Does nothing if it is not paused.

    Raises OutOfMemory if the GPU has no room: what PyTorch keeps for later is free after `torch.cuda.empty_cache()`. A
    region for which there was no room stays paused, for a later `resume`.
    """
    with _lock:
        for state in _with(tag):
            state.resume()


def _with(tag: str | None) -> list[_State]:
    return [state for (its, *_), state in _states.items() if tag in (None, its)]


def _state_of(tag: str, keeps: bool, gpu: int) -> _State:
    state = _states.get((tag, keeps, gpu))
    if state is None:
        number = next(_numbers)
        its = Region(functools.partial(_core.memory_of_region, number))
        state = _states[tag, keeps, gpu] = _State(number, its, _new_pool(), Parked(its) if keeps else None)
    return state


def _new_pool() -> Any:
    import torch

    settings = [os.environ.get(name, "") for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")]
    if any("expandable_segments:True" in setting for setting in settings):
        raise Unsupported("PyTorch's expandable segments bypass regions: turn the setting expandable_segments off.")
    return torch.cuda.MemPool(_allocator().allocator())


@functools.cache  # pools of older versions of PyTorch do not keep it
def _allocator() -> Any:
    import torch

    names = "penstock_fixed_allocate", "penstock_fixed_free"
    return torch.cuda.memory.CUDAPluggableAllocator(_core.__file__, *names)
