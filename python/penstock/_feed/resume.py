"""The place of a feed whose loader keeps no state: after the batches that were handed out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .._checks import MOST, whole
from .._errors import InvalidArgument
from .._loader import indices
from .._loader.sampler import Sampler, draw_into, is_plain, moved_on

_SEED, _GENERATOR = "epoch_seed", "generator"  # what a RandomSampler's order follows from
_TOLD = "sampler_epoch"  # what a DistributedSampler's order follows from: the epoch that it was told
_PLACE = {"epoch", "consumed", _TOLD, _SEED, _GENERATOR}


class Placed:
    """The methods of a feed that knows its place itself. `_order` is penstock's Sampler, or a TorchOrder."""

    def state_dict(self: Any) -> dict[str, Any]:
        """The place after the batch that was handed out last, without those that were read ahead, in plain numbers and
        text. After a complete epoch it is the beginning of the next."""
        return self._order._beginning() if self._state is None else dict(self._state)

    def load_state_dict(self: Any, state: Mapping[str, Any]) -> None:
        """The next iteration goes on where `state` was taken; earlier iterators keep no state. Raises InvalidArgument
        if the samples or their order differ."""
        self._order.load_state_dict(state)
        self._state = None
        self._turn += 1

    def _beginning(self: Any) -> dict[str, Any]:
        return self._order._beginning()

    def _follow(self: Any) -> Callable[[Any], Any]:
        return Follower(self.loader, self._order)

    def __reduce__(self: Any) -> tuple:
        return _again, (super().__reduce__(), self.state_dict())

    def __copy__(self: Any) -> Any:
        make, arguments = super().__reduce__()
        return make(*arguments)  # without the state, which would be loaded into the sampler that both have


def _again(made: tuple, state: dict[str, Any]) -> Any:
    make, arguments = made
    feed = make(*arguments)
    feed.load_state_dict(state)
    return feed


def sampler_of(loader: Any) -> Sampler | None:
    """penstock's Sampler, if it alone decides which samples each batch of this DataLoader has."""
    module = sys.modules.get("torch.utils.data.dataloader")
    if module is None or not isinstance(loader, module.DataLoader):
        return None
    kind = type(loader)
    if kind.__iter__ is not module.DataLoader.__iter__ or kind._get_iterator is not module.DataLoader._get_iterator:
        return None
    if may_overtake(loader):
        return None
    batches = loader.batch_sampler
    if batches is not None and type(batches) is not sys.modules["torch.utils.data"].BatchSampler:
        return None
    sampler = loader.sampler if batches is None else batches.sampler
    return sampler if is_plain(sampler) else None


def may_overtake(loader: Any) -> bool:
    """True if the batches of a DataLoader's workers come as they are made: no place is then behind all of them."""
    return bool(getattr(loader, "num_workers", 0)) and not getattr(loader, "in_order", True)


class Follower:
    """Tells the state after each batch of a DataLoader's next epoch, whose sampler is penstock's."""

    def __init__(self, loader: Any, sampler: Sampler):
        self._workers = loader.num_workers
        self._sampler = sampler
        self._settled = False
        self._size = 1 if loader.batch_sampler is None else loader.batch_sampler.batch_size
        self.draw: Any = None  # the sampler's iteration, once it has begun

    def listen(self) -> None:
        """Called before the loader begins, and before it is asked for a batch: the sampler's iteration begins then."""
        if self.draw is None:
            self._sampler._follower = self

    def __call__(self, source: Any) -> dict[str, Any]:
        """The state after the batch that `source`, the loader's iterator, has just given."""
        if not self._settled:
            self._sampler._settle(self.draw)
            self._settled = True
        if not self._workers:  # the sampler has given the samples of this batch, and no more
            return self.draw.after(self.draw.taken)
        # Batches that raised are among those that have come from the workers.
        return self.draw.after(min(source._rcvd_idx * self._size, self.draw.samples))


class TorchOrder:
    """The order of a sampler of PyTorch's own, epoch after epoch, and from a place in it on: what `Sampler` is for its
    own order. The place is kept with what the epoch's order follows from: the seed that a RandomSampler drew, or the
    state of its generator; a DistributedSampler's seed and the epoch that it was told. Each iteration is the next
    epoch, unless the sampler was told another. It tells the sampler nothing: as PyTorch has it, a DistributedSampler
    that is told nothing gives each epoch the same order."""

    def __init__(self, sampler: Any):
        self._sampler = sampler
        self._epoch = 0  # of the next iteration, unless the sampler was told another one since
        self.told: int | None = None  # the epoch that the sampler had then
        self._loaded: dict[str, Any] | None = None

    def _beginning(self) -> dict[str, Any]:
        """Where the next iteration begins: where a loaded state was taken, unless the sampler was told another epoch
        since."""
        told, loaded = getattr(self._sampler, "epoch", None), self._loaded
        epoch = self._epoch if told == self.told else told
        here = loaded is not None and (loaded["epoch"], loaded.get(_TOLD)) == (epoch, told)
        return dict(loaded) if here else self._start(epoch)  # type: ignore[arg-type]

    def _start(self, epoch: int) -> dict[str, Any]:
        sampler, kind = self._sampler, type(self._sampler).__name__
        state = {"sampler": kind, "sample_count": len(_data_of(sampler)), "epoch": epoch, "consumed": 0}
        if kind == "DistributedSampler":
            state |= {"shuffle": sampler.shuffle, "seed": sampler.seed, _TOLD: sampler.epoch}
        if kind == "RandomSampler":
            state |= {"replacement": sampler.replacement, "num_samples": sampler.num_samples}
            # A seed is drawn with the first index.
            state |= {_SEED: None} if sampler.generator is None else {_GENERATOR: _as_text(sampler.generator)}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        start = self._start(0)
        if _TOLD in start and isinstance(state, Mapping) and "epoch" in state:
            state = {_TOLD: state["epoch"], **state}  # in states of earlier versions it is the same
        missing = [key for key in start if not isinstance(state, Mapping) or key not in state]
        if missing:
            raise InvalidArgument(
                f"This is not a state of a feed around a DataLoader with such a {start['sampler']}: it lacks "
                f"{', '.join(missing)}. Use state_dict()."
            )
        for key, here in start.items():
            if key not in _PLACE and state[key] != here:
                raise InvalidArgument(
                    f"The saved state has {key} {state[key]!r}, and this feed's DataLoader has {here!r}: give both the "
                    "same dataset and sampler, or start afresh."
                )
        loaded = {key: state[key] for key in start}
        limits = {"epoch": MOST, "consumed": _positions(self._sampler), _TOLD: MOST, _SEED: MOST}
        for key, most in limits.items():
            if key in start and (key != _SEED or loaded["consumed"] > 0):
                loaded[key] = whole(f"'{key}' of a feed's state", state[key], 0, most)
        if _GENERATOR in start:
            restored = _generator_state(state[_GENERATOR])
            if loaded["consumed"] == 0:
                self._sampler.generator.set_state(restored)
        self._loaded = loaded if loaded["consumed"] > 0 else None
        self._epoch, self.told = loaded["epoch"], loaded.get(_TOLD)
        if _TOLD in loaded:
            self._sampler.set_epoch(self.told)

    def _begin(self) -> TorchDraw:
        state = self._beginning()
        self._epoch, self.told, self._loaded = state["epoch"] + 1, state.get(_TOLD), None
        return TorchDraw(self._sampler, state)

    def _settle(self, draw: TorchDraw) -> None:
        """To be told the same epoch again is nothing new here: see `told`."""


class TorchDraw:
    """One iteration in the order of a sampler of PyTorch's, from a place in an epoch on."""

    def __init__(self, sampler: Any, state: dict[str, Any]):
        self._sampler = sampler
        self._state = state
        self.is_resumed = state["consumed"] > 0

    def pieces(self) -> Iterator[Any]:
        """The indices as tensors or arrays of int64, one after the other. Draws the epoch's seed at once."""
        torch = sys.modules["torch"]
        sampler, skipped = self._sampler, self._state["consumed"]
        if self._state["sampler"] == "DistributedSampler":
            return indices.distributed_pieces(torch, sampler, skipped)
        if self._state["sampler"] == "RandomSampler":
            pieces = indices.random_pieces(torch, sampler, self._seed(torch))
        else:
            pieces = indices.sequential_pieces(torch, sampler)
        return _Skipping(pieces, skipped) if skipped > 0 else pieces

    def _seed(self, torch: Any) -> int | None:
        """That of the epoch. None if the sampler has a generator, which is then as it was before the epoch."""
        state, own = self._state, self._sampler.generator
        if own is None:
            if not self.is_resumed:
                state[_SEED] = indices.draw_seed(torch)
            return state[_SEED]
        if self.is_resumed:
            own.set_state(_generator_state(state[_GENERATOR]))
        else:
            state[_GENERATOR] = _as_text(own)
        return None

    def after(self, taken: int) -> dict[str, Any]:
        """The state after `taken` samples of this process."""
        return moved_on(self._state, taken * getattr(self._sampler, "num_replicas", 1), _positions(self._sampler))


class _Skipping:
    """The pieces without the first `skipped` indices."""

    def __init__(self, pieces: Iterator[Any], skipped: int):
        self._pieces = pieces
        self._skipped = skipped
        self._piece: list[Any] = []

    def __iter__(self) -> _Skipping:
        return self

    def __next__(self) -> Any:
        drawn, skipped = self._piece, self._skipped
        if not drawn:
            draw_into(drawn, self._pieces)
        if not drawn:
            raise StopIteration
        piece = drawn[0][skipped:]
        skipped = max(0, skipped - len(drawn[0]))
        self._skipped, self._piece = skipped, []  # the last step: see draw_into
        return piece


def _as_text(generator: Any) -> str:
    return generator.get_state().numpy().tobytes().hex()


def _generator_state(text: Any) -> Any:
    """The other way. Raises InvalidArgument if it is not the state of a generator."""
    torch = sys.modules["torch"]
    try:
        state = torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
        torch.Generator().set_state(state)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidArgument("'generator' of a feed's state is damaged: start the epoch afresh.") from None
    return state


def _positions(sampler: Any) -> int:
    """Those of an epoch's order, over all processes."""
    return len(sampler.dataset) if hasattr(sampler, "num_replicas") else len(sampler)


def _data_of(sampler: Any) -> Any:
    return sampler.dataset if hasattr(sampler, "num_replicas") else sampler.data_source


def torch_order_of(loader: Any) -> TorchOrder:
    """The order of a DataLoader with a sampler of PyTorch's own. Raises InvalidArgument for others."""
    data = sys.modules["torch.utils.data"]
    batches = loader.batch_sampler
    if type(batches) is not data.BatchSampler:
        raise unresumable(f"its batch sampler is a {type(batches).__name__}")
    kind = type(batches.sampler)
    if kind not in (data.SequentialSampler, data.RandomSampler, data.DistributedSampler):
        raise unresumable(f"its sampler is a {kind.__name__}")
    if not indices.draws_as_known(kind):
        raise unresumable(f"the {kind.__name__} of this PyTorch draws in a way that penstock does not know")
    return TorchOrder(batches.sampler)


_ADVICE = (
    "Give its DataLoader sampler=penstock.Sampler(dataset), or leave resumable out and count the batches "
    "(docs/resume.md)"
)


def unresumable(why: str, advice: str = _ADVICE) -> InvalidArgument:
    return InvalidArgument(f"This feed cannot be resumable: {why}. {advice}.")
