"""Loader: the C++ side shuffles and batches arrays of the host onto a device."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NoReturn

from .. import _core, _others
from .._checks import whole
from .._destination import Destination
from .._engines import close_at_exit
from .._errors import Closed, InvalidArgument
from .._progress import Progress
from .._statistics import FeedStatistics, lines_as_html
from .columns import Samples, fields_of, is_table
from .conversions import convert, field_options, targets_of
from .packs import Packs
from .parquet import Parquet, parquet_files
from .sampler import UINT64, checked_state, share
from .samplers import batches_of
from .shared_dataset import SharedDataset
from .tokens import Draws, Tokens
from .tuning import Tuning, native_options

# Arguments of DataLoader that a Loader does not take, and what to write instead.
_NOT_TAKEN = {
    **dict.fromkeys(
        ("num_workers", "worker_init_fn", "persistent_workers", "multiprocessing_context", "timeout"),
        "its threads read the arrays in place, without worker processes. Leave it out; `penstock.Tuning(threads=...)` "
        "limits them",
    ),
    **dict.fromkeys(("pin_memory", "pin_memory_device"), "it locks memory by itself. Leave it out"),
    "channel_axis": "`scale` and `shift` are for the axis of a sample that is as long as they are. Leave it out",
    "prefetch_factor": "`prefetch_depth` is the number of all batches that run ahead. Use that",
    "generator": "the order follows from `seed` and the epoch. Pass `seed`, or a sampler with a generator",
    "collate_fn": "samples are batched as they are stored. For your own, use penstock.feed(DataLoader(...))",
}

_NOT_PICKLED = {"self", "group", "relay", "not_taken"}  # `device` says what group and relay do
_TUNED = frozenset(field.name for field in dataclasses.fields(Tuning))


class Loader:
    """Feeds arrays to a device, epoch after epoch: shuffled, batched, and ahead of the consumer.

    A batch is PyTorch tensors if PyTorch is imported, otherwise NumPy arrays on "host" and `penstock.Array` on a GPU,
    in the structure of `data`. Its memory is a slot of a ring. The slot goes back to the loader when the last tensor of
    the batch and the last view of it are gone, and the work then queued on the loop's stream is done. To keep data for
    longer, clone it. Later work of PyTorch's current stream waits for the batch; the host does not.

    One iteration is one epoch, and one iterator is in use at a time: `iter()` ends the one before it, whose `next()`
    then raises Closed. For two loops at once, make two Loaders. The order of the samples follows from `seed` and the
    epoch. A Loader can be pickled with its data; the copy goes on where this one stands, or begins anew if it has a
    sampler. docs/loader.md says how it works.

    Args:
        data: One array, or a tuple, list or dict of them, a TensorDataset or a TensorDict; the first axis of each
            counts samples. NumPy arrays, memory maps and PyTorch tensors without gaps are read in place, so they must
            not change meanwhile. Others are copied once. A table (pandas, polars, Arrow, a Hugging Face dataset,
            anything with an Arrow C stream) becomes a dict of its columns, each in its own type. Within a tuple, list
            or dict it becomes a matrix of its columns: `(frame[names], frame["target"])`. The path of a .npy file
            stands for its array; that of a .npz or .safetensors file, alone, for a dict of its arrays. Or what
            `Pictures`, `tokens` and `SharedDataset` give.
        batch_size, shuffle, seed, drop_last: As in PyTorch. None is a batch size of 1.
        device: As in `to_device`. If it is a list of devices, each gets every batch, and an iteration gives lists with
            one batch for each. With a `ProcessGroup`, each of its processes has one device, and all get the same
            batches; samplers must then give the same indices in all of them. With `penstock.relayed`, the links of
            others help to feed a device; `residency` is then refused.
        features, target: Columns of a table. A batch is then a matrix of the columns that `features` lists, or a pair
            of it and the target: one column, or a matrix of a list. If one of them is None, the features are all
            others.
        fill_null: What stands for the nulls of a table or of Parquet files, which are refused otherwise: a number, or a
            dict of numbers by columns. In pandas, NaN are nulls, too. Such columns are copied.
        group, relay: Other spellings of `device`: a list of devices or a ProcessGroup, and `over` of `relayed`.
        sampler, batch_sampler: As in PyTorch, an iterable of indices, or of batches of them, which may repeat, and
            begins anew with each iteration. It is asked on the thread that iterates, `prefetch_depth` batches ahead,
            and must not use the Loader. Its exception comes in the place of the batch. `batch_size` is that of the
            largest batch, if the batch sampler has no attribute of this name. There is then no `state_dict()`, and
            `shuffle`, `seed` and a share of several processes are an error.
        to: Deliver wider types. A name is for all fields that can be widened to it, except fields without axes besides
            that of samples: "float32" is for uint8 images, and labels stay. A dict or a sequence names a type for each
            field. For a float type, float64, bools and wide integers are copied once, converted; a name alone means
            those of tables, and float64 of any array with axes. Integers that the type would round are refused.
        scale, shift: value * scale + shift in float32, for fields that `to` delivers as float32, float16 or bfloat16: a
            number, or as many as one axis of a sample is long (the channels), or a dict of these.
        rank, world_size: This process's share, by the rules of DistributedSampler.
        distributed: True takes both from torch.distributed if that is in use, otherwise from what torchrun sets.
        residency: How much stays on the device: "none", "all", "auto", or a fraction.
        prefetch_depth: Batches ahead, 1 to 64.
        memory: Host memory for samples of files that are read from a disk, as a number of bytes or "8GiB": later epochs
            do not read those again. None: the system's page cache keeps them, unless the files are larger than the
            memory that is free. With shuffled Parquet files: for three windows of rows; None is 1 GiB.
        device_budget_bytes: Most device memory; 0: half of the free memory.
        pack: For samples of different lengths, such as tokens of texts: `{"input_ids": 65_536}`, the values of a batch
            at most. Data is a table, or a dict, of columns of lists or of pairs (values, offsets). A batch is a dict:
            the values of whole samples side by side; `cu_seqlens`, int32, where each begins, and the end; `max_seqlen`,
            a number; `positions()`. `len()` is the number of packs of the current epoch. See docs/feeding-what.md.
        pad: "longest", for such data: a batch is a dict of matrices of `batch_size` samples, with zeros behind them up
            to the longest, and of `lengths`, int32.
        tuning: A `penstock.Tuning`, for experiments.

    Attributes:
        device, devices: Where batches go; `devices` are those of a group, or `device` and those that relay to it.
        dataset: What is fed. It has a length, and gives single samples.
        batch_size, drop_last: As given; those of the batch sampler, if there is one.

    Raises:
        InvalidArgument: Arguments do not fit.
        OutOfMemory: The budget is too small.
        Error: When iterating, if samplers of a ProcessGroup differ.

    Examples:
        >>> batches = penstock.Loader((images, labels), 64, shuffle=True, device="host", to="float32", scale=1 / 255)
        >>> for x, y in batches:
        ...     train_step(x, y)
    """

    def __init__(
        self,
        data: Any,
        batch_size: int | None = None,
        shuffle: bool = False,
        device: Any = "auto",
        *,
        features: Any = None,
        target: Any = None,
        fill_null: Any = None,
        group: Any = None,
        relay: Any = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        to: Any = None,
        scale: Any = None,
        shift: Any = None,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        distributed: bool = False,
        prefetch_depth: int = 2,
        residency: Literal["none", "all", "auto"] | float = "none",
        memory: int | str | None = None,
        device_budget_bytes: int = 0,
        pack: Any = None,
        pad: Literal["longest"] | None = None,
        tuning: Tuning | None = None,
        **not_taken: NoReturn,
    ):
        arguments = {name: value for name, value in locals().items() if name not in _NOT_PICKLED}
        for name in not_taken:
            _refuse(name)
        tuning = Tuning() if tuning is None else tuning
        if not isinstance(tuning, Tuning):
            raise InvalidArgument(f"tuning is a penstock.Tuning, not {tuning!r}.")
        self._source: Draws | Packs | Parquet | None = None
        files = parquet_files(data)
        if files is not None and (pack, pad, sampler, batch_sampler) != (None,) * 4:
            raise InvalidArgument(
                "Parquet files are read in the order of `shuffle`, `seed` and the epoch, without a sampler, `pack` or "
                "`pad`. If they fit into memory, pass a table: pyarrow.parquet.read_table(...)."
            )
        windows = isinstance(data, Tokens) and bool(data.weights) and (features, target) == (None, None)
        packs = pack is not None or pad is not None
        if (packs or windows) and (sampler, batch_sampler) != (None, None):
            raise InvalidArgument(
                "Packs, and windows at random positions, follow from `seed` and the epoch: leave the sampler out."
            )
        if fill_null is not None and (packs or (files is None and not is_table(data))):
            raise InvalidArgument("`fill_null` is for a table and for Parquet files, without `pack` and `pad`.")
        order = {"shuffle": bool(shuffle), "seed": whole("seed", seed, 0, UINT64)}
        with Progress(lambda seconds: f"Loader: reads and converts the data, {seconds:.0f} s"):
            if files is not None:
                self._source = Parquet(files, features, target, fill_null)
            elif packs:
                self._source = Packs(data, pack, pad, batch_size, **order, drop_last=bool(drop_last))
            elif windows:
                self._source = Draws(data, order["seed"])
                order["shuffle"] = True  # so that the parts of a mixture are
            if self._source is None:
                given = data.data if isinstance(data, SharedDataset) else data
                fields = fields_of(given, features, target, fill_null)
            else:
                fields = self._source.fields
            targets = self._source.targets(to) if packs else targets_of(fields, to)
            fields = convert(fields, targets, scale, shift)
        kept = {"data": data, "to": to}  # for pickling
        if fields.is_table:  # only the columns that were made of it are kept
            kept = {"data": fields.build(fields.arrays), "to": targets}
            kept |= dict.fromkeys(("features", "target", "fill_null"))
        self._destination = destination = Destination(device, group, relay)
        self._arguments = {**arguments, **kept, "tuning": tuning, "device": destination.given}
        processes = destination.processes
        if processes is not None:
            processes.refuse(distributed, None)
        together = destination.together
        self._build = (lambda each: [fields.build(arrays) for arrays in each]) if together else fields.build
        self._shares = rank is not None or world_size is not None or distributed or processes is not None
        self.dataset = Samples(self._source.samples if packs else fields)
        self.drop_last = bool(drop_last)
        # A share of 0 of 1 is all samples, and says that no warning is wanted.
        decided = {"shuffle": shuffle, "seed": seed, "rank": rank, "distributed": distributed}
        decided["world_size"] = None if world_size == 1 else world_size
        self._batches, self.batch_size = batches_of(
            sampler, batch_sampler, batch_size, self.drop_last, self.dataset, decided
        )
        rank, world_size = share(rank, world_size, distributed)
        self.devices = [engine.spec for engine in destination.members]
        self.device = " and ".join(engine.spec for engine in destination.engines)
        options = field_options(fields, targets, scale, shift)
        for engine in destination.engines:
            _need_bfloat16(engine, options)
        in_order = isinstance(self._source, Parquet)
        with Progress(lambda seconds: f"Loader: prepares memory for {self.device}, {seconds:.0f} s"):
            if in_order:
                batch = self.batch_size * world_size
                named = self._source.stream(fields.arrays, **order, memory=memory, batch=batch)
            else:
                named = fields.named()
            self._native = _core.NativeLoader(
                destination.native,
                named,
                options,
                batch_size=1 if packs else self.batch_size,
                **{**order, "shuffle": order["shuffle"] and not in_order},  # the files' windows are shuffled
                drop_last=self.drop_last and self._batches is None,
                batch_sampler=self._batches,
                rank=rank,
                world_size=world_size,
                prefetch_depth=whole("prefetch_depth", prefetch_depth, 1, 64, what="a number of batches"),
                residency=str(residency),
                data_may_change=False,
                memory=None if memory is None else str(memory),
                device_budget_bytes=whole("device_budget_bytes", device_budget_bytes, 0, what="a number of bytes"),
                **native_options(tuning),
            )
        # The epoch that the next iteration begins; None if it goes on where the loader stands.
        self._next_epoch: int | None = None
        # True if state_dict() is the beginning of that epoch, not the place after the batches handed out.
        self._at_beginning = False
        self._loaded_epoch: int | None = None
        self._made = _Made()
        self._turn = 0
        self._warned = False
        close_at_exit(self)

    def __len__(self) -> int:
        """Batches of a whole epoch. TypeError if a sampler is given that has no length."""
        return self._native.batches_per_epoch if self._batches is None else len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        self._turn += 1
        return LoaderIterator(self, self._turn)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of `epoch`. If a state of that epoch was loaded, it goes on where that was taken. A
        sampler that takes the epoch is told."""
        epoch = whole("epoch", epoch, 0, UINT64)
        if self._batches is not None:
            self._batches.set_epoch(epoch)
        if epoch == self._loaded_epoch:
            return
        self._next_epoch = epoch
        self._loaded_epoch = None
        self._at_beginning = True

    def state_dict(self) -> dict[str, Any]:
        """The place after the batches that were handed out, in plain numbers. They are the same on every rank that has
        taken as many batches. After a complete iteration it is the beginning of the next epoch. Raises InvalidArgument
        if a sampler is given."""
        self._refuse_state()
        state = self._native.state_dict(handed_out=not self._made.arrays)
        if self._source is not None:
            state |= self._source.signature
        return {**state, "epoch": self._next_epoch, "consumed": 0} if self._at_beginning else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on where `state` was taken, also at another world size. Earlier iterators end.
        Raises InvalidArgument if the dataset, the seed or shuffling differ, or if it is not a Loader's state."""
        self._refuse_state()
        checked = checked_state(state)
        here = {} if self._source is None else self._source.signature
        there = {key: state[key] for key in ("pack", "parquet", "tokens") if key in state}
        if there != here:
            raise InvalidArgument(
                f"The state is of {there or 'samples'}, and this Loader of {here or 'samples'} (pack: values, samples "
                "of a matrix, samples at most; parquet: version of the order, seed, rows of a window, row groups; "
                "tokens: windows of each part of a mixture): give both the same data, `pack`, `pad`, `batch_size`, "
                "`shuffle`, `seed` and `memory`."
            )
        none_made = _Made()
        self._native.load_state_dict(checked)
        self._made = none_made
        self._next_epoch = None
        self._at_beginning = False
        self._loaded_epoch = checked["epoch"]
        self._turn += 1

    def describe(self) -> list[str]:
        """A line for each field: how it travels, and why. If there are several devices, the last line says how many
        bytes each link has carried. With a ProcessGroup, the first line says what part this process brings. With `pack`
        or `pad`, the last line says how full the batches of this epoch are; with Parquet files, how they are read."""
        lines = self._native.describe()
        return lines if self._source is None else [*lines, self._source.describe(self._native.state_dict()["epoch"])]

    def stats(self) -> FeedStatistics:
        """The loader's account so far, which `penstock feed` also prints."""
        figures, timeline = self._native.stats(), self._native.timeline()
        return FeedStatistics(self.device, lambda: figures, lambda: timeline)

    def device_stats(self) -> list[_core.FeedStatistics]:
        """Of a group, or with relays: the account of the parts that each of `devices` has pulled over its own link.
        `link_bytes` is what the link has carried. The consumer is not your step, but the copies to the devices that
        receive."""
        if self._destination.group is None:
            raise InvalidArgument("This Loader feeds one device over its own link: use stats().")
        return [self._native.member_stats(member) for member in range(len(self.devices))]

    def close(self) -> None:
        """Stops the loader's threads. Held batches stay valid; iterating raises Closed."""
        self._native.close()

    def __reduce__(self) -> tuple:
        return _again, (self._arguments, self.state_dict() if self._batches is None else None)

    def __repr__(self) -> str:
        if "_native" not in self.__dict__:  # a debugger looks at one whose constructor fails
            return object.__repr__(self)
        batches = f"{len(self)} batches" if self._batches is None else "batches of a sampler"
        return f"<penstock.Loader on {self.device}: {'; '.join(self.describe())}; {batches}>"

    def _repr_html_(self) -> str:
        batches = "a sampler's batches" if self._batches is not None else f"{len(self)} batches of {self.batch_size}"
        return lines_as_html(f"penstock.Loader on {self.device}: {batches}", self.describe())

    def _refuse_state(self) -> None:
        if self._batches is not None:
            raise InvalidArgument(
                "A Loader with a sampler has no state: the sampler chooses the samples. Keep the sampler's state, and "
                "count the batches that you have used."
            )

    def _begin(self) -> int:
        """Goes to the epoch of the next iteration, and returns it."""
        if not self._warned:
            self._warned = True
            if not self._shares:
                owner = None if self._batches is None else self._batches.owner
                _others.warn_unless_sharded(owner, "penstock.Loader")
            _others.warn_of_lost_accumulation(None, "penstock.Loader")
        if self._next_epoch is not None:
            self._native.start_epoch(self._next_epoch)
        return self._native.state_dict()["epoch"]


class _Made(threading.local):
    """The arrays of a batch that this thread has taken, and not handed out yet; None: the end of the epoch. So a signal
    loses no batch."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []


class LoaderIterator:
    """One epoch of a Loader. Begins it at the first `next()`."""

    def __init__(self, loader: Loader, turn: int):
        self._loader = loader
        self._turn = turn
        self._begun = False
        self._over = False

    def __iter__(self) -> LoaderIterator:
        return self

    def __next__(self) -> Any:
        loader = self._loader
        if self._over:
            raise StopIteration
        if self._turn != loader._turn:
            raise Closed(
                "This iterator has ended: a newer one of this Loader was begun, or a state was loaded. For two loops "
                "at once, make two Loaders."
            )
        if not self._begun:
            epoch, made = loader._begin(), _Made()
            loader._next_epoch, loader._at_beginning, loader._loaded_epoch = epoch + 1, False, None
            loader._made, self._begun = made, True
        made = loader._made
        if not made.arrays:
            loader._native.next_into(made.arrays)
        arrays, none_made = made.arrays[0], []
        if arrays is None:
            self._over, loader._at_beginning, made.arrays = True, True, none_made
            raise StopIteration
        batch = loader._build(arrays)
        loader._at_beginning, made.arrays = False, none_made  # the last step: see draw_into
        return batch


def _again(arguments: dict[str, Any], state: dict[str, Any] | None) -> Loader:
    loader = Loader(**arguments)
    if state is not None:
        loader.load_state_dict(state)
    return loader


def _refuse(name: str) -> None:
    if name in _TUNED:
        raise TypeError(f"Loader() takes {name} in `tuning`: write Loader(..., tuning=penstock.Tuning({name}=...)).")
    if name in _NOT_TAKEN:
        raise InvalidArgument(f"A Loader does not take {name}: {_NOT_TAKEN[name]}.")
    raise TypeError(f"Loader() got an unexpected keyword argument {name!r}")


def _need_bfloat16(engine: _core.Engine, options: list) -> None:
    if engine.is_cuda or "torch" in sys.modules or all(target != "bfloat16" for _, target, *_ in options):
        return
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        raise InvalidArgument(
            'NumPy has no bfloat16: import torch, or install ml_dtypes, to get it on "host", or deliver float32.'
        ) from None
