"""feed: another library's loader, with its batches on the device."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar, overload

from .. import _core, _others
from .._checks import attribute, exists, whole
from .._destination import Destination
from .._errors import InvalidArgument
from .._process_group import ProcessGroup
from .._statistics import FeedStatistics, lines_as_html
from .adapters import kind_of
from .resume import TorchOrder, may_overtake, sampler_of, torch_order_of, unresumable
from .tensors import tensors_of
from .ways import Ways, refuse_if_needed

Batch = TypeVar("Batch")


@overload
def feed(
    loader: Iterable[Batch],
    device: Any = "auto",
    prefetch_depth: int = 2,
    *,
    sharded: bool = False,
    native: bool = True,
    resumable: bool = False,
    pictures: bool = False,
    group: ProcessGroup | None = None,
) -> Feed[Batch]: ...
@overload
def feed(
    loader: Iterable[Batch],
    device: Any = "auto",
    prefetch_depth: int = 2,
    *,
    sharded: bool = False,
    native: bool = True,
    resumable: bool = False,
    pictures: bool = False,
    group: Iterable[Any],
) -> Feed[list[Batch]]: ...
def feed(
    loader: Iterable[Any],
    device: Any = "auto",
    prefetch_depth: int = 2,
    *,
    sharded: bool = False,
    native: bool = True,
    resumable: bool = False,
    pictures: bool = False,
    group: Any = None,
) -> Feed[Any]:
    """Wrap a loader so that its batches arrive on a device, `prefetch_depth` of them ahead.

    Each batch becomes one packed transfer on a copy stream. When it is handed out, PyTorch's current stream waits for
    it, and the host does not. Batches stay valid for as long as they are kept.

    Order, length, errors and state are the loader's. If a batch raises, the exception comes in that batch's place, and
    the next `next()` goes on as the loader does. If the loader has `state_dict`, `load_state_dict` and `set_epoch`, the
    feed has them too; its state leaves out the batches that are read ahead. A feed around a DataLoader whose sampler is
    `penstock.Sampler` has a state of its own. Around a loader that Accelerate prepared, batches go to its device.

    If the loader is a plain DataLoader of a TensorDataset, its samples are gathered natively, without worker processes.
    The tensors may change between epochs, but not while one is under way. Workers of other DataLoaders put their
    batches into shared memory, which a GPU reads where it lies. docs/python.md says more of both.

    All your code runs on the thread that iterates. The loader is asked for `prefetch_depth` more batches before one is
    handed out, so it must not overwrite a batch that it has yielded. Iterate within one stream context: a batch's
    memory belongs to the stream that was current when it was sent.

    Args:
        loader: Any iterable of batches, such as a DataLoader. A batch is any nest that `to_device` takes. If the loader
            wraps one with workers, it must pass on its `num_workers`.
        device: As in `to_device`. If it is a list of devices, each gets every batch, and an iteration gives lists with
            one batch for each. With a ProcessGroup, each of its processes feeds an equal DataLoader, whose samples must
            be gathered natively; seed PyTorch alike in all of them. With `penstock.relayed`, the links of other devices
            help to feed one. If a device fails or has no memory for a batch, the error comes in that batch's place.
        prefetch_depth: Batches ahead, 0 and up. With 0 nothing overlaps.
        sharded: True says that the processes that train together share the samples out. Otherwise a NotShardedWarning
            comes once if nothing seems to shard them.
        native: False: the DataLoader makes the batches of a TensorDataset. `describe()` says what was done, and why.
        resumable: Ask for a state. If samples are gathered natively, it is also kept for PyTorch's SequentialSampler,
            RandomSampler and DistributedSampler.
        pictures: The dataset is torchvision's ImageFolder, or a Subset of one, and penstock decodes its pictures: see
            `Pictures`. Samples, order and targets are the loader's; pixels and random numbers are penstock's own.
        group: Another spelling of a list of devices or a ProcessGroup.

    Raises:
        InvalidArgument: A value does not fit, no state can be kept, or a transform of pictures is not done here.
        DeviceError: It is called in a DataLoader's worker process, or the device fails.
        Error: When iterating, if the samplers of a ProcessGroup differ.

    Examples:
        >>> for x, y in penstock.feed(loader, device="auto"):
        ...     train_step(x, y)
    """
    return Feed(**locals())


class Feed(Generic[Batch]):
    """The result of `feed`: an iterable with the length and the attributes of the loader that it wraps.

    Attributes whose names begin with an underscore stay the loader's own. Assigning to an attribute of the loader
    assigns to the loader. A feed can be pickled if its loader can; the copy's statistics begin at 0. Takes and raises
    what `feed` does.

    Examples:
        >>> fed = penstock.feed(loader, device="auto")
        >>> len(fed), fed.batch_size  # the loader's
        (10, 64)
    """

    _options: dict[str, Any] = feed.__kwdefaults__  # the defaults, by name
    _own = frozenset({"loader", "device", "devices", "prefetch_depth", *_options})

    def __new__(cls, loader: Any, *arguments: Any, **options: Any) -> Feed:
        kind = kind_of(Feed, cls._unwrapped(loader), options.get("resumable", False)) if cls is Feed else cls
        return object.__new__(kind)

    def __init__(self, loader: Iterable[Any], device: Any = "auto", prefetch_depth: int = 2, **options: Any):
        unknown = options.keys() - self._options.keys()
        if unknown:
            raise TypeError(f"a feed has no option {', '.join(sorted(unknown))}")
        loader = self._unwrapped(loader)
        self.prefetch_depth = whole("prefetch_depth", prefetch_depth, 0, what="a number of batches")
        _others.refuse_what_gives_no_batches(loader)
        self.loader = loader
        for name in self._options.keys() - {"group"}:
            setattr(self, name, bool(options.get(name, self._options[name])))
        self._set_destination(device, options.get("group"))
        # A device that cannot be opened is refused here.
        self._destination.members  # noqa: B018
        self._order = self._find_order()
        self._state: Any = None
        self._turn = 0  # of the iterator whose state is the feed's
        is_asked_below = _others.is_prepared(loader)
        if (self.pictures and not is_asked_below) or self._destination.processes is not None:
            tensors = tensors_of(self)
            if isinstance(tensors, str):
                refuse_if_needed(self, tensors)

    @staticmethod
    def _unwrapped(loader: Any) -> Any:
        return loader.__dict__["loader"] if issubclass(type(loader), Feed) else loader

    def _set_destination(self, device: Any, group: Any) -> None:
        self._destination = destination = Destination(device, group)
        self.device, self.devices = destination.name, destination.specs

    @property
    def group(self) -> Any:
        """The devices that all get each batch, or the ProcessGroup; None for one device."""
        return self._destination.specs if self._destination.together else self._destination.processes

    def _find_order(self) -> Any:
        """What keeps this feed's place; None if its loader does, or nobody. Raises InvalidArgument if nobody can and
        `resumable` asks for it."""
        if _others.keeps_state(self.loader):
            return None
        order = sampler_of(self.loader)
        if order is None and self.resumable:
            if may_overtake(self.loader):
                raise unresumable("batches of its workers may overtake each other", "Leave in_order=False out")
            tensors = tensors_of(self)
            if isinstance(tensors, str):
                raise unresumable(tensors)
            order = torch_order_of(self.loader)
        return order

    @property
    def _needs_native(self) -> bool:
        """True if the place can be kept only while samples are gathered natively."""
        return isinstance(self._order, TorchOrder)

    @property
    def _is_resumed(self) -> bool:
        """True if the next epoch goes on in PyTorch's order, which drew its seeds before."""
        return self._needs_native and self._order._beginning()["consumed"] > 0

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Batch]:
        return self._ways.begin(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "loader" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name in _STATE_NAMES:
            raise AttributeError(f"{type(self.loader).__name__} has no working {name}")
        if name == "dataset" and not _others.is_prepared(self.loader):
            _others.refuse_to_be_rebuilt(sys._getframe(1))
        return getattr(self.loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name.startswith("_") or name in self._own or not exists(self.loader, name)):
            setattr(self.loader, name, value)
            return
        if name in ("loader", "native") and self.__dict__.get("_order") is not None:
            raise InvalidArgument(
                f"This feed keeps its place by its DataLoader's sampler, so that its {name} cannot be replaced: make "
                "another feed."
            )
        object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple:
        again = functools.partial(feed, **self._chosen())
        device = self._destination.name if self._destination.is_one_device else self._destination.given
        return again, (self.loader, device, self.prefetch_depth)

    def _chosen(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._options if name != "group"}

    def __repr__(self) -> str:
        dataset = attribute(self.loader, "dataset")
        of = "" if dataset is None else f" of a {type(dataset).__name__}"
        chosen = {name: value for name, value in self._chosen().items() if value is not self._options[name]}
        options = ["", *(f"{name}={value}" for name, value in chosen.items())]
        return (
            f"<penstock.feed of a {type(self.loader).__name__}{of} on {self._destination.name}, "
            f"prefetch_depth={self.prefetch_depth}{', '.join(options)}>"
        )

    def _repr_html_(self) -> str:
        return lines_as_html(repr(self)[1:-1], self.describe())

    def stats(self) -> FeedStatistics:
        """The account of this feed so far. It goes on with the feed: each figure is the one at the time of reading. If
        some batches were gathered natively and others not, it is the account of those like the latest."""
        return FeedStatistics(self._destination.name, lambda: self._counted.stats(), lambda: self._counted.timeline())

    def device_stats(self) -> list[_core.FeedStatistics]:
        """Of a group of devices, if samples are gathered natively: as Loader.device_stats. If not, `describe()` says
        how many bytes each link has carried, and this is an InvalidArgument."""
        if self._destination.group is None:
            raise InvalidArgument("This feed has one device, over its own link: use stats().")
        if self._ways.native.counted is None:
            raise InvalidArgument(
                "No account of each device is kept, since the batches are those that the loader makes: stats() is the "
                "account of all, and describe() says how many bytes each link has carried."
            )
        return self._ways.native.counted.device_stats()

    def describe(self) -> list[str]:
        """Lines that say how the batches are made, and why. They hold for the epoch that is under way, or else the next
        one. May make the native loader, as iterating does."""
        return self._ways.describe(self)

    @functools.cached_property
    def _account(self) -> _core.FeedAccount:
        return _core.FeedAccount(self._destination.engine, self.prefetch_depth)

    @functools.cached_property
    def _ways(self) -> Ways:
        return Ways(self._destination)

    @functools.cached_property
    def _pictures(self) -> dict[str, Any]:
        """See picture_rows."""
        return {}

    @property
    def _counted(self) -> Any:
        """What has the account of the latest iteration."""
        return self._ways.native.counted or self._account

    def _beginning(self) -> Any:
        """The state in which the next iteration begins; None: that of the loader."""

    def _follow(self) -> Callable[[Any], Any] | None:
        """Called before an iteration: what tells the state after the batch that its source has just given. None: there
        is no state."""

    def _begin_turn(self, beginning: Any) -> int:
        """From here on, the feed's state is that of the iterator with this number."""
        self._state = beginning
        self._turn += 1
        return self._turn

    def _note(self, turn: int, state: Any) -> None:
        if turn == self._turn:
            self._state = state

    def _warn(self) -> None:
        if not self.sharded and self._destination.processes is None:  # whose processes need the same samples
            _others.warn_unless_sharded(self.loader, "penstock.feed")
        _others.warn_of_lost_accumulation(self.loader, "penstock.feed")


_STATE_NAMES = frozenset({"state_dict", "load_state_dict", "set_epoch"})
