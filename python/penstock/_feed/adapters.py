"""The methods that only feeds of some loaders have: for a state or an epoch, as Lightning looks for them, and for what
Accelerate asks of a loader that it prepared."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

from .. import _others
from .._destination import Destination
from .._engines import resolve
from .._errors import InvalidArgument
from .resume import Placed, sampler_of


@functools.cache
def _with(feed: type, mixins: tuple[type, ...]) -> Any:
    named = {"__module__": feed.__module__, "__doc__": feed.__doc__, "_plain": feed}
    return type("Feed", (*mixins, feed), named) if mixins else feed


def kind_of(feed: type, loader: Any, resumable: bool = False, is_under: bool = False) -> Any:
    """`feed`, the class, with the methods that work for this loader. Code looks for methods, so those that would raise
    are absent. `is_under`: it is fed under Accelerate's loader."""
    mixins: list[type] = [Under] if is_under else []
    if _others.is_prepared(loader):
        mixins.append(Prepared)
    if _others.keeps_state(loader):
        mixins.append(Stateful)
    elif resumable or sampler_of(loader) is not None:
        mixins.append(Placed)
    if _others.epoch_taker(loader) is not None:
        mixins.append(Epochs)
    return _with(feed, tuple(mixins))


class Stateful:
    """The methods of a feed whose loader keeps a state."""

    def state_dict(self: Any) -> Any:
        """The loader's state after the batch that was handed out last, without those that were read ahead."""
        return self.loader.state_dict() if self._state is None else copy.deepcopy(self._state)

    def load_state_dict(self: Any, state: Any) -> None:
        """Passes a state to the loader. The next iteration begins there; earlier iterators keep no state."""
        self.loader.load_state_dict(state)
        self._begin_turn(None)

    def _follow(self: Any) -> Callable[[Any], Any]:
        return lambda _: copy.deepcopy(self.loader.state_dict())  # copied, since the loader may go on writing into it


class Epochs:
    """The methods of a feed whose loader, or its sampler or dataset, takes the epoch."""

    def set_epoch(self: Any, epoch: int) -> None:
        """Passes the epoch to the loader; if it does not take it, to its sampler, otherwise to its dataset."""
        _others.epoch_taker(self.loader).set_epoch(epoch)
        if self._order is not None:
            self._state = None
        if self._needs_native:
            self._order.told = None  # now it is told one, even if it is the same


class Posing:
    """The methods of a feed that Accelerate takes for the loader in it: it asks for that class, and for attributes
    whose names begin with an underscore, as `skip_first_batches` does."""

    @property
    def __class__(self) -> type:
        return type(self.__dict__["loader"]) if "loader" in self.__dict__ else type(self)

    def __getattr__(self: Any, name: str) -> Any:
        if name.startswith("_") and not name.startswith("__") and "loader" in self.__dict__:
            return getattr(self.loader, name)
        return super().__getattr__(name)  # type: ignore[misc]


class Prepared(Posing):
    """The methods of a feed whose loader Accelerate prepared: the batches are fed to that loader, under it.

    Accelerate's loader itself moves batches, and notes whether one is the last. So it must come after the feed: it is
    the one that is iterated, and meanwhile the DataLoader in it is replaced by a feed of that DataLoader.
    """

    @property
    def device(self: Any) -> Any:
        """The device to which Accelerate moves the batches."""
        return _others.device_of_prepared(self.loader)

    def _set_destination(self: Any, device: Any, group: Any) -> None:
        destination = Destination(device, group)
        if not destination.is_one_device:
            raise InvalidArgument("Accelerate moves the batches of this loader to one device: leave group out.")
        wanted, given = destination.name, self.device
        if given is not None:
            theirs = resolve(given)
            same_host = theirs.startswith("host") and wanted.startswith("host")
            if device != "auto" and theirs != wanted and not same_host:
                raise InvalidArgument(
                    f"Accelerate moves the batches of this loader to {given}, not to {device}: leave `device` out."
                )
            wanted = theirs if device == "auto" else wanted
        self._destination = Destination(wanted)
        self.devices = [wanted]

    def describe(self: Any) -> list[str]:
        return self._inner(self._unwrapped(self.loader.base_dataloader)).describe()

    def _inner(self: Any, base: Any) -> Any:
        options = {**self._chosen(), "sharded": True, "resumable": False}
        inner = kind_of(self._plain, base, is_under=True)(base, self._destination.name, self.prefetch_depth, **options)
        inner._account, inner._ways, inner._pictures = self._account, self._ways, self._pictures
        return inner

    def __iter__(self: Any) -> Iterator[Any]:
        loader, base = self.loader, self._unwrapped(self.loader.base_dataloader)
        inner = self._inner(base)
        # Loops may nest: each gives the place back to the one that goes on.
        active = self.__dict__.setdefault("_active", [])
        active.append(inner)
        loader.base_dataloader = inner
        try:
            yield from loader
        finally:
            active.remove(inner)
            loader.base_dataloader = active[-1] if active else base


class Under(Posing):
    """The methods of a feed under a loader of Accelerate, which gives the class of what is under it as its own."""

    def __reduce__(self: Any) -> tuple:
        return _itself, (self.loader,)

    def _warn(self) -> None:
        pass


def _itself(loader: Any) -> Any:
    return loader
