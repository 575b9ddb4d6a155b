"""The indices of PyTorch's own samplers as tensors or arrays, and those of penstock's as arrays.

As Python's numbers, which these samplers give, indices cost 0.2 to 0.4 µs each. Here the same ones are drawn from the
same random state, at the same moments. That is checked once in each process, by sampling a few numbers in both ways. If
a sampler of this PyTorch draws in another way, it is iterated as any other.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from . import _core
from ._sampler import is_plain


def pieces_of(sampler: Any) -> Iterator[Any] | None:
    """The indices of one epoch of `sampler`, as tensors or NumPy arrays of int64 one after the other. None for other
    samplers."""
    if is_plain(sampler):
        return sampler._begin().pieces()
    torch = sys.modules.get("torch")
    draw = _drawers().get(type(sampler)) if torch is not None else None
    return draw(torch, sampler) if draw is not None and draws_as_known(type(sampler)) else None


def has_pieces(sampler: Any) -> bool:
    """True for samplers whose length is the number of their indices: penstock's and PyTorch's own."""
    return is_plain(sampler) or ("torch" in sys.modules and type(sampler) in _drawers())


def draw_seed(torch: Any) -> int:
    """The seed of an epoch, as a RandomSampler without a generator draws it."""
    return int(torch.empty((), dtype=torch.int64).random_().item())


def random_pieces(torch: Any, sampler: Any, seed: int | None = None) -> Iterator[Any]:
    """The indices of a RandomSampler. `seed`: that of the epoch, for a sampler without a generator; None: draws it."""
    count, generator = len(sampler.data_source), sampler.generator
    if generator is None:
        seed = draw_seed(torch) if seed is None else seed
        if not sampler.replacement and sampler.num_samples <= count < _core.TorchOrder.most:
            yield from _drawn_when_asked(_core.TorchOrder(seed, count), sampler.num_samples)
            return
        generator = torch.Generator().manual_seed(seed)
    # A last piece is drawn even if it is empty: that changes the state of the generator.
    if sampler.replacement:
        for _ in range(sampler.num_samples // 32):
            yield torch.randint(count, (32,), dtype=torch.int64, generator=generator)
        yield torch.randint(count, (sampler.num_samples % 32,), dtype=torch.int64, generator=generator)
    else:
        for _ in range(sampler.num_samples // count):
            yield torch.randperm(count, generator=generator)
        yield torch.randperm(count, generator=generator)[: sampler.num_samples % count]


def _drawn_when_asked(order: _core.TorchOrder, most: int) -> Iterator[Any]:
    """As the whole order is drawn at once, a training loop would wait for it: 19 ms for a million numbers."""
    while most > 0 and len(block := order.next()) > 0:
        yield block[:most]
        most -= len(block)


def sequential_pieces(torch: Any, sampler: Any) -> Iterator[Any]:
    return iter([torch.arange(len(sampler.data_source))])


def _weighted(torch: Any, sampler: Any) -> Iterator[Any]:
    yield torch.multinomial(sampler.weights, sampler.num_samples, sampler.replacement, generator=sampler.generator)


def distributed_pieces(torch: Any, sampler: Any, consumed: int = 0) -> Iterator[Any]:
    """The indices of a DistributedSampler. `consumed`: positions of the epoch's order that are done; the others are
    shared out as if the order began there."""
    count = len(sampler.dataset)
    each = sampler.num_samples
    if consumed > 0:
        left = count - consumed
        each = left // sampler.num_replicas if sampler.drop_last else -(-left // sampler.num_replicas)
    if sampler.shuffle:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(sampler.seed + sampler.epoch))
    else:
        order = torch.arange(count)
    # Position p is order[p mod count]: the order wraps around to its beginning, or loses its tail.
    positions = consumed + sampler.rank + sampler.num_replicas * torch.arange(each)
    return iter([order[positions % count]])


@functools.cache
def _drawers() -> dict[type, Callable[[Any, Any], Iterator[Any]]]:
    from torch.utils import data

    return {
        data.RandomSampler: random_pieces,
        data.SequentialSampler: sequential_pieces,
        data.WeightedRandomSampler: _weighted,
        data.DistributedSampler: distributed_pieces,
    }


def _trials(kind: type) -> list[Callable[[], Any]]:
    """Small samplers of this kind."""
    import torch
    from torch.utils import data

    def generator() -> Any:
        return torch.Generator().manual_seed(1)

    trials: dict[type, list[Callable[[], Any]]] = {
        data.RandomSampler: [
            lambda: kind(range(11)),
            lambda: kind(range(5000)),
            lambda: kind(range(5000), num_samples=4100),
            lambda: kind(range(11), num_samples=25),
            lambda: kind(range(11), generator=generator()),
            lambda: kind(range(11), num_samples=25, generator=generator()),
            lambda: kind(range(11), num_samples=3, generator=generator()),
            lambda: kind(range(11), replacement=True, num_samples=70),
            lambda: kind(range(11), replacement=True, num_samples=64, generator=generator()),
        ],
        data.SequentialSampler: [lambda: kind(range(11))],
        data.WeightedRandomSampler: [
            lambda: kind([1.0, 2.0, 3.0], 20),
            lambda: kind([1.0, 2.0, 3.0], 2, replacement=False, generator=generator()),
        ],
        data.DistributedSampler: [
            lambda size=size, rank=rank, shuffle=shuffle, drop=drop: kind(range(size), 3, rank, shuffle, 5, drop)
            for size in (2, 11)
            for rank in (0, 2)
            for shuffle in (False, True)
            for drop in (False, True)
            if size > 2 or not drop
        ],
    }
    return trials[kind]


@functools.cache
def draws_as_known(kind: type) -> bool:
    """True if this module draws as samplers of this kind do. Leaves PyTorch's random state as it is."""
    import torch

    before = torch.get_rng_state()

    def drawn(make: Callable[[], Any], indices: Callable[[Any], list[int]]) -> tuple:
        torch.set_rng_state(before)
        sampler = make()
        own = getattr(sampler, "generator", None)
        result = indices(sampler)
        return result, torch.get_rng_state().tolist(), None if own is None else own.get_state().tolist()

    def ours(sampler: Any) -> list[int]:
        return [int(index) for piece in _drawers()[kind](torch, sampler) for index in piece]

    try:
        return all(drawn(make, list) == drawn(make, ours) for make in _trials(kind))
    except Exception:  # a sampler with other attributes
        return False
    finally:
        torch.set_rng_state(before)
