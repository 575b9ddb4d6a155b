"""Loader: arrays of the host, shuffled and batched onto a device by the C++ side."""

from __future__ import annotations

import atexit
import html
import os
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import _core
from ._engines import engine_for
from ._errors import InvalidArgument

_open: weakref.WeakSet[Loader] = weakref.WeakSet()


class Loader:
    """Feeds arrays to a device, epoch after epoch: shuffled, batched, and ahead of whoever consumes them.

    `data`: one array, or a tuple, list or dict of them; the first axis of each counts samples. NumPy arrays, memory
    maps and PyTorch tensors are read where they lie, without a copy, so they must not change meanwhile; others are
    converted to NumPy. Batches have the same structure. Samples are 0 to the number of samples less one, in the order
    that `seed` and the epoch give.

    A batch is PyTorch tensors where PyTorch is imported, otherwise NumPy arrays on "host" and `penstock.Array` on a
    GPU. Its memory is a slot of a ring, which goes back to the loader when the last tensor of the batch (and of views
    of it) is gone, and the work then queued on the stream of the loop is done: keep what you want to keep by a clone.
    Later work of PyTorch's current stream waits for the batch; the host does not.

    - `batch_size`, `shuffle`, `seed`, `drop_last`: as in PyTorch. One iteration is one epoch.
    - `to`: deliver wider types: a name for all fields with axes besides that of samples which can be widened to it
      ("float32" of uint8 images; labels stay), or a dict or a sequence that names it for each field.
    - `scale`, `shift`: value * scale + shift in float32, for the fields that `to` widens: a number, one number for
      each extent of `channel_axis` (of a sample's axes), or a dict of these.
    - `rank`, `world_size`: this process's share, by the rules of DistributedSampler. `distributed=True` takes them
      from the environment that torchrun sets.
    - `residency`: how much stays on the device: "none", "all", "auto", or a fraction.
    - `prefetch_depth`: batches ahead, 1 to 64.
    - `gather`: "automatic"; "host": threads copy samples together; "zero-copy": a kernel reads them out of your arrays,
      with `gather_blocks` blocks (0: as measured best; few leave room for your kernels; where given, "automatic" takes
      no copy engine); "copy-engine": the GPU's copy engines do, best for samples of 32 KiB and more.
    - `narrow`: integers cross the link in the narrowest type that holds them all.
    - `device_budget_bytes`: most device memory to take; 0: half of what is free. `threads`: 0: as processors allow.

    Raises InvalidArgument for what does not fit, OutOfMemory where the budget is too small.
    """

    def __init__(
        self,
        data: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        device: Any = "auto",
        *,
        to: Any = None,
        scale: Any = None,
        shift: Any = None,
        channel_axis: int = 0,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        distributed: bool = False,
        prefetch_depth: int = 2,
        residency: str | float = "none",
        gather: str = "automatic",
        gather_blocks: int = 0,
        narrow: bool = True,
        device_budget_bytes: int = 0,
        threads: int = 0,
    ):
        names, arrays, self._rebuild = _fields(data)
        rank, world_size = _shard(rank, world_size, distributed)
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise InvalidArgument(f"batch_size is a number of samples, 1 or more, not {batch_size!r}.")
        engine = engine_for(device)
        self.device = engine.spec
        self.batch_size = batch_size
        self._native = _core.NativeLoader(
            engine,
            list(zip(names, arrays, strict=True)),
            _field_options(names, arrays, to, scale, shift, channel_axis),
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
            prefetch_depth=prefetch_depth,
            residency=str(residency),
            gather=gather,
            gather_blocks=gather_blocks,
            narrow=narrow,
            device_budget_bytes=device_budget_bytes,
            threads=threads,
        )
        # The epoch that the next iteration begins, or None where it goes on where the loader stands.
        self._next_epoch: int | None = None
        _open.add(self)

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return self._native.batches_per_epoch

    def __iter__(self) -> Iterator[Any]:
        native, rebuild = self._native, self._rebuild
        if self._next_epoch is not None:
            native.start_epoch(self._next_epoch)
        epoch = native.state_dict()["epoch"]
        self._next_epoch = epoch + 1
        while True:
            arrays = native.next()
            if arrays is None:
                return
            batch = rebuild(arrays)
            arrays.clear()
            # Not held here while the loop asks for the next one: its slot would come back later.
            holder = [batch]
            del batch
            yield holder.pop()

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of `epoch`."""
        self._next_epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, after the batches that were handed out: plain numbers, the same on every rank that has
        taken as many batches."""
        return self._native.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on where `state` was taken, also at another world size. Raises InvalidArgument where
        the dataset, the seed or shuffling differ."""
        self._native.load_state_dict(dict(state))
        self._next_epoch = None

    def describe(self) -> list[str]:
        """A line for each field: how it travels, and why."""
        return self._native.describe()

    def stats(self) -> LoaderStatistics:
        """What the loader did so far, the account that `penstock feed` prints."""
        return LoaderStatistics(self._native.stats(), self._native.timeline())

    def close(self) -> None:
        """Stops the loader's threads. Batches that are held stay valid; iterating raises Closed."""
        self._native.close()

    def __repr__(self) -> str:
        return f"<penstock.Loader on {self.device}: {'; '.join(self.describe())}; {len(self)} batches>"


class LoaderStatistics:
    """What a Loader did: the attributes of the C++ side's FeedStatistics, and `timeline`, a list of BatchTimes."""

    def __init__(self, statistics: _core.LoaderStatistics, timeline: list[_core.BatchTimes]):
        self._statistics = statistics
        self.timeline = timeline

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._statistics, name)

    def __str__(self) -> str:
        return str(self._statistics)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def plot(self, axes: Any = None) -> Any:
        """Draw when each batch was gathered, moved and waited for; needs matplotlib. Returns the axes."""
        from ._plots import draw_lanes

        lanes = [
            ("gather", [(t.gather_begin, t.gather_end) for t in self.timeline]),
            ("transfer", [(t.transfer_begin, t.transfer_end) for t in self.timeline]),
            ("stall", [(t.asked, t.arrived) for t in self.timeline]),
        ]
        return draw_lanes(lanes, axes)


def _fields(data: Any) -> tuple[list[str], list[Any], Any]:
    """Names, arrays, and what makes a batch of a list of arrays."""
    if isinstance(data, Mapping):
        names = [str(name) for name in data]
        return names, [_array(a, n) for n, a in zip(names, data.values(), strict=True)], _rebuild_dict(list(data))
    if hasattr(data, "tensors"):  # a TensorDataset
        data = tuple(data.tensors)
    if isinstance(data, list | tuple) and not _is_array(data):
        if not data:
            raise InvalidArgument("A Loader needs at least one array.")
        names = list(getattr(data, "_fields", [f"field{i}" for i in range(len(data))]))
        build = type(data) if type(data) in (list, tuple) else lambda arrays: type(data)(*arrays)
        return names, [_array(a, n) for n, a in zip(names, data, strict=True)], build
    return ["data"], [_array(data, "data")], lambda arrays: arrays[0]


def _rebuild_dict(keys: list[Any]) -> Any:
    return lambda arrays: dict(zip(keys, arrays, strict=True))


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") or hasattr(value, "__dlpack__")


def _array(value: Any, name: str) -> Any:
    """The array as the C++ side reads it: a tensor or a NumPy array without gaps."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            raise InvalidArgument(f"Field '{name}' is on {value.device} already; a Loader feeds arrays of the host.")
        return value.detach().as_subclass(torch.Tensor).contiguous().resolve_conj().resolve_neg()
    import numpy

    array = numpy.asarray(value)
    if array.dtype.kind not in "biuf":
        raise InvalidArgument(f"Field '{name}' holds {array.dtype}; a Loader takes bool, integer and float types.")
    if array.ndim == 0:
        raise InvalidArgument(f"Field '{name}' is a scalar; its first axis has to count samples.")
    return numpy.ascontiguousarray(array, array.dtype.newbyteorder("="))


def _field_options(names: list[str], arrays: list[Any], to: Any, scale: Any, shift: Any, channel_axis: int) -> list:
    stored = [str(array.dtype).removeprefix("torch.") for array in arrays]
    if isinstance(to, Mapping):
        unknown = set(map(str, to)) - set(names)
        if unknown:
            raise InvalidArgument(f"`to` names no field of this dataset: {', '.join(sorted(unknown))}.")
        wanted = [to.get(name) for name in names]
    elif to is None or isinstance(to, str) or not isinstance(to, Sequence):
        name = None if to is None else _dtype_name(to)
        wanted = [
            name if name is not None and array.ndim > 1 and _core.can_widen(dtype, name) else None
            for array, dtype in zip(arrays, stored, strict=True)
        ]
        if name is not None and not any(wanted):
            raise InvalidArgument(f"No field can be widened to {name}: they are {', '.join(stored)}.")
    else:
        if len(to) != len(names):
            raise InvalidArgument(f"`to` has {len(to)} entries for {len(names)} fields.")
        wanted = list(to)
    options = []
    for name, target in zip(names, wanted, strict=True):
        scales, shifts = (_numbers(value, name, target is not None) for value in (scale, shift))
        if target is not None or scales or shifts:
            options.append((name, None if target is None else _dtype_name(target), scales, shifts, channel_axis))
    return options


def _dtype_name(dtype: Any) -> str:
    if isinstance(dtype, str):
        return dtype
    if str(dtype).startswith("torch."):
        return str(dtype).removeprefix("torch.")
    import numpy

    return numpy.dtype(dtype).name


def _numbers(value: Any, name: str, widened: bool) -> list[float]:
    if isinstance(value, Mapping):
        value = value.get(name)
    elif not widened:
        value = None
    if value is None:
        return []
    return [float(value)] if isinstance(value, int | float) else [float(v) for v in value]


def _shard(rank: int | None, world_size: int | None, distributed: bool) -> tuple[int, int]:
    if distributed:
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
    return (0, 1) if rank is None or world_size is None else (rank, world_size)


@atexit.register
def _close_all() -> None:
    for loader in list(_open):
        loader.close()
