"""The indices of PyTorch's own samplers as tensors or arrays, and those of penstock's as arrays.

As Python's numbers, which these samplers give, indices cost 0.2 to 0.4 µs each. Here the same ones are drawn from the
same random state, at the same moments. That is checked once in each process, by sampling a few numbers in both ways. If
a sampler of this PyTorch draws in another way, it is iterated as any other.
"""

from __future__ import annotations

import functools
import itertools
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .. import _core
from .sampler import is_plain


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


def draw_seed(torch: Any, generator: Any = None) -> int:
    """The seed of an epoch, as a RandomSampler without a generator draws it, and a DataLoader for its workers."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def random_pieces(torch: Any, sampler: Any, seed: int | None = None) -> Iterator[Any]:
    """The indices of a RandomSampler. `seed`: that of the epoch, for a sampler without a generator; None: draws it."""
    count, most, generator = len(sampler.data_source), sampler.num_samples, sampler.generator
    if generator is None:
        seed = draw_seed(torch) if seed is None else seed
        if not sampler.replacement and most <= count < _core.TorchOrder.most:
            # As the whole order is drawn at once, a training loop would wait for it: 19 ms for a million numbers.
            return _core.TorchOrder(seed, count, most)
        generator = torch.Generator().manual_seed(seed)
    # A last piece is drawn even if it is empty: that changes the state of the generator. No step of Python's lies
    # between a piece and the next, so that Ctrl-C loses none: see draw_into.
    if sampler.replacement:
        sizes = itertools.chain(itertools.repeat((32,), most // 32), [(most % 32,)])
        return map(functools.partial(torch.randint, count, dtype=torch.int64, generator=generator), sizes)
    whole = most // count
    orders = map(functools.partial(torch.randperm, generator=generator), itertools.repeat(count, whole + 1))
    parts = itertools.chain(itertools.repeat(slice(count), whole), [slice(most % count)])
    return map(operator.getitem, orders, parts)


def sequential_pieces(torch: Any, sampler: Any) -> Iterator[Any]:
    return iter([torch.arange(len(sampler.data_source))])


def _weighted(torch: Any, sampler: Any) -> Iterator[Any]:
    numbers = sampler.weights, sampler.num_samples, sampler.replacement
    return iter([torch.multinomial(*numbers, generator=sampler.generator)])


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
