"""Sampler: the order of a Loader, and its ways to share it out, as PyTorch sees a sampler."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from .. import _core, _others
from .._checks import whole
from .._errors import InvalidArgument

_UINT32 = 2**32 - 1
UINT64 = 2**64 - 1


class Sampler:
    """Chooses this process's samples, in the order of a `Loader`. It does not need PyTorch. Not thread-safe.

    A feed around a DataLoader with this sampler has a `state_dict()`, which can be loaded with another number of
    processes, another batch size and other `num_workers`. Each sample of the epoch still comes once. A DataLoader asks
    for indices ahead, so ask the feed for its state, and not its sampler.

    Each iteration is the next epoch, unless `set_epoch` chose another, also if an earlier one was left early.
    Iterations that are under way at once do not disturb each other. The state is that of the one that was begun last,
    after the indices that it gave. A Sampler can be pickled; the copy goes on where this one stands.

    Args:
        data: Anything with a length, or the number of samples. Only the number is kept.
        shuffle: The order follows from `seed` and the epoch.
        seed: Of the order.
        drop_last: If the samples do not divide evenly, the order loses its tail. Otherwise it wraps around.
        rank, world_size, distributed: This process's share, as for a `Loader`.

    Attributes:
        rank, world_size: This process's share. `num_replicas` is the world size, as PyTorch calls it.

    Raises:
        InvalidArgument: Arguments do not fit.

    Examples:
        >>> from torch.utils.data import DataLoader
        >>> sampler = penstock.Sampler(loader.dataset, shuffle=True, seed=1)
        >>> fed = penstock.feed(DataLoader(loader.dataset, 64, sampler=sampler))
    """

    def __init__(
        self,
        data: Any,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        distributed: bool = False,
    ):
        self.rank, self.world_size = share(rank, world_size, distributed)
        try:
            count = len(data)
        except TypeError:
            count = data
        self._arguments = {
            "sample_count": whole("data", count, 0, what="a dataset with a length, or a number of samples"),
            **dict(shuffle=bool(shuffle), seed=whole("seed", seed, 0, UINT64), drop_last=bool(drop_last)),
            **dict(rank=self.rank, world_size=self.world_size),
        }
        native = _core.NativeSampler(**self._arguments)
        self._length = native.samples_per_epoch
        self._coming = native.state_dict()  # where the next iteration begins
        self._loaded_epoch: int | None = None
        self._latest: Draw | None = None  # None if the state is where the next iteration begins
        self._follower: Any = None  # is told of the next iteration

    @property
    def num_replicas(self) -> int:
        return self.world_size

    def __len__(self) -> int:
        """Samples that this process gets in a whole epoch."""
        return self._length

    def __iter__(self) -> Iterator[int]:
        yield from self._begin().numbers()

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of `epoch`. If a state of that epoch was loaded, it goes on where that was taken."""
        epoch = whole("epoch", epoch, 0, UINT64 - 1)
        if epoch == self._loaded_epoch:
            return
        self._coming = {**self._coming, "epoch": epoch, "consumed": 0}
        self._loaded_epoch = None
        self._latest = None

    def state_dict(self) -> dict[str, Any]:
        """The place after the indices that the latest iteration gave, in plain numbers; a Loader's state is the same.
        After a complete iteration it is the end of that epoch: what is left of it is nothing. After `set_epoch` it is
        where the next iteration begins."""
        latest = self._latest
        return self._beginning() if latest is None else latest.after(latest.taken)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on where `state` was taken, by a Sampler, a feed or a Loader, also at another world
        size. Raises InvalidArgument, and changes nothing, if the number of samples, the seed or shuffling differ, or if
        it is not such a state."""
        native = _core.NativeSampler(**self._arguments)
        native.load_state_dict(checked_state(state))
        self._coming = native.state_dict()
        self._loaded_epoch = self._coming["epoch"]
        self._latest = None

    def _beginning(self) -> dict[str, Any]:
        """The state in which the next iteration begins."""
        return dict(self._coming)

    def _begin(self) -> Draw:
        """Begins an iteration."""
        self._latest = Draw(self._arguments, self._coming)
        self._coming = {**self._coming, "epoch": self._coming["epoch"] + 1, "consumed": 0}
        self._loaded_epoch = None
        if self._follower is not None:
            self._follower.draw, self._follower = self._latest, None
        return self._latest

    def _settle(self, draw: Draw) -> None:
        """A feed hands out the first batch of this iteration. If `set_epoch` told its epoch since it began, that was
        of this iteration: workers ask for indices as soon as `iter` starts them, which Lightning does first."""
        epoch = draw.after(0)["epoch"]
        if self._loaded_epoch is None and self._coming["epoch"] == epoch:
            self._coming = {**self._coming, "epoch": epoch + 1}
            self._latest = draw

    def __reduce__(self) -> tuple:
        latest = self._latest
        return _again, (self._arguments, self._beginning() if latest is None or latest.over else self.state_dict())

    def __repr__(self) -> str:
        whole_epoch = self._arguments["sample_count"]
        return f"<penstock.Sampler: {len(self)} of {whole_epoch} samples, rank {self.rank} of {self.world_size}>"


class Draw:
    """One iteration of a Sampler, from a place in an epoch on."""

    def __init__(self, arguments: dict[str, Any], state: dict[str, Any]):
        self._native = _core.NativeSampler(**arguments)
        self._native.load_state_dict(state)
        self._state = state
        self._world_size = arguments["world_size"]
        self.blocks = iter(self._native.next, b"")  # of int64
        self.samples = self._native.samples_left
        self.taken = 0  # of these
        self.over = False

    def numbers(self) -> Iterator[int]:
        """The indices one by one."""
        for block in self.blocks:
            for index in memoryview(block).cast("q").tolist():
                self.taken += 1
                yield index
        self.over = True

    def pieces(self) -> Iterator[Any]:
        """The indices as NumPy arrays of int64, one after the other."""
        return _Pieces(self)

    def after(self, taken: int) -> dict[str, Any]:
        """The state after `taken` samples of this process."""
        return moved_on(self._state, taken * self._world_size, self._state["sample_count"])


class _Pieces:
    """See Draw.pieces."""

    def __init__(self, draw: Draw):
        self._draw = draw
        self._block: list[bytes] = []

    def __iter__(self) -> _Pieces:
        return self

    def __next__(self) -> Any:
        import numpy

        draw, block = self._draw, self._block
        if not block:
            draw_into(block, draw.blocks)
        if not block:
            draw.over = True
            raise StopIteration
        piece = numpy.frombuffer(block[0], numpy.int64)
        taken = draw.taken + len(piece)
        draw.taken, self._block = taken, []  # the last step: see draw_into
        return piece


def draw_into(drawn: list[Any], source: Iterator[Any]) -> None:
    """Appends the next of `source`, if there is one. Ctrl-C comes before that or after it, not in between: Python calls
    the handlers of signals after calls and jumps, but not while C runs, nor between other instructions."""
    drawn.extend(itertools.islice(source, 1))


def moved_on(state: dict[str, Any], positions: int, end: int) -> dict[str, Any]:
    """The state that many positions of the epoch's order later; `end`: the order's length. What wraps around after the
    end is not a position of its own."""
    return {**state, "consumed": min(end, state["consumed"] + positions)}


def is_plain(sampler: Any) -> bool:
    """True if iterating this object gives what Sampler gives."""
    return isinstance(sampler, Sampler) and type(sampler).__iter__ is Sampler.__iter__


def _again(arguments: dict[str, Any], state: dict[str, Any]) -> Sampler:
    options = dict(arguments)
    sampler = Sampler(options.pop("sample_count"), **options)
    sampler.load_state_dict(state)
    return sampler


def checked_state(state: Any) -> dict[str, Any]:
    """The numbers of the state of a Sampler or a Loader. Raises InvalidArgument if it is none."""
    if not isinstance(state, Mapping):
        kind = type(state).__name__
        raise InvalidArgument(f"The state of a Sampler or a Loader is a dict made by state_dict(), not {kind}.")
    limits = {"sample_count": UINT64, "seed": UINT64, "order_version": _UINT32, "epoch": UINT64, "consumed": UINT64}
    missing = [key for key in (*limits, "shuffle") if key not in state]
    if missing:
        raise InvalidArgument(
            f"This is not a state of a Sampler or a Loader: it lacks {', '.join(missing)}. Use state_dict()."
        )
    if not isinstance(state["shuffle"], bool):
        raise InvalidArgument(f"'shuffle' of a sampler's state is True or False, not {state['shuffle']!r}.")
    return {
        **{key: whole(f"'{key}' of a sampler's state", state[key], 0, most) for key, most in limits.items()},
        "shuffle": state["shuffle"],
    }


def share(rank: int | None, world_size: int | None, distributed: bool) -> tuple[int, int]:
    """The rank and the world size that these arguments mean."""
    if distributed:
        if _others.processes() > 1:
            joined = sys.modules["torch.distributed"]
            rank = joined.get_rank() if rank is None else rank
            world_size = joined.get_world_size() if world_size is None else world_size
        try:
            rank = int(os.environ["RANK"]) if rank is None else rank
            world_size = int(os.environ["WORLD_SIZE"]) if world_size is None else world_size
        except (KeyError, ValueError) as error:
            raise InvalidArgument(
                f"distributed=True reads RANK and WORLD_SIZE, which torchrun sets ({error!r}). Start with torchrun, "
                "or pass rank= and world_size=."
            ) from None
    if (rank is None) != (world_size is None):
        raise InvalidArgument("rank and world_size belong together: pass both or none.")
    if rank is None or world_size is None:
        return 0, 1
    world_size = whole("world_size", world_size, 1, what="a number of processes")
    return whole("rank", rank, 0, world_size - 1), world_size
