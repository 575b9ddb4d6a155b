"""ReplayBuffer: rows that processes write while others sample them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _core
from .._checks import dtype_name, numpy_for, whole
from .._destination import Destination
from .._engines import close_at_exit
from .._errors import Error, InvalidArgument
from .sampler import UINT64


class ReplayBuffer:
    """The latest `capacity` rows that processes of a host have written, sampled at random onto a device.

    The rows lie in shared memory, which a GPU reads by itself: the first `sample()` locks all of it. It is freed with
    the last process that has the buffer. Pass the buffer to other processes, by fork or pickled, while the process that
    pickles it lives. All may write and sample. Writers wait for nobody: a row that is overwritten while it is sampled
    is drawn anew, and a process that is killed within a row leaves no trace of it.

    `len()`: rows that may be sampled. Draws are uniform, with replacement, and a batch ahead: a row that is added may
    come a batch later. They follow from `seed`, the rows that are there, and the number of samplers before: one is made
    for each process, batch size and `offsets`.

    Args:
        fields: Of each name, the shape and the dtype of a row's value, or an example with both: an array, a tensor, a
            Gymnasium space.
        capacity: How many rows are kept.
        device: As in `to_device`, one.
        seed: Of the draws.

    Raises:
        InvalidArgument: Fields are no numbers of NumPy, or an argument does not fit.
        OutOfMemory: The host has less memory.

    Examples:
        >>> buffer = penstock.ReplayBuffer({"obs": ((4,), "float32"), "reward": ((), "float32")}, 1000, device="host")
        >>> buffer.add(obs=[0, 0, 0, 1], reward=1.0)  # in any process
        >>> tuple(buffer.sample(256)["obs"].shape)  # on the device
        (256, 4)
    """

    def __init__(self, fields: Mapping[str, Any], capacity: int, *, device: Any = "auto", seed: int = 0):
        self._fields = {name: _shape_and_dtype(name, given) for name, given in fields.items()}
        self.capacity = whole("capacity", capacity, 1, what="a number of rows")
        self._device, self._seed = device, whole("seed", seed, 0, UINT64)
        self._open(None)

    def _open(self, file: int | None) -> None:
        fields = [(name, dtype, shape) for name, (shape, dtype) in self._fields.items()]
        self._rows = _core.ReplayRows(fields, self.capacity, file)
        self._samplers: dict[Any, _core.NativeLoader] = {}
        close_at_exit(self)

    def add(self, rows: Mapping[str, Any] | None = None, /, *, env: Any = None, **fields: Any) -> None:
        """Adds a row, or several at once: then each value has an axis for them first. `rows`: a dict, in place of
        `fields`. Other dtypes are converted within NumPy's "same_kind", as float64 to float32.

        `env`: the environment of the row, or of each: 0 to 65535. For the `offsets` of `sample`, a row follows the
        latest one of its environment. By default, rows added at once are of the environments 0, 1, 2, ... For several
        steps of one environment, give its number. Each process has environments of its own, and one thread at a time
        adds rows of an environment.
        """
        rows = fields if rows is None else rows
        if rows.keys() != self._fields.keys():
            raise InvalidArgument(f"A row has the fields {', '.join(self._fields)}, and these are {', '.join(rows)}.")
        arrays = [_as_stored(name, rows[name], *self._fields[name]) for name in self._fields]
        if len({len(array) for array in arrays}) != 1:
            raise InvalidArgument(f"The fields have different numbers of rows: {[len(array) for array in arrays]}.")
        environments = list(env) if hasattr(env, "__len__") else [env] * len(arrays[0])
        if len(environments) != len(arrays[0]):
            raise InvalidArgument(f"`env` names {len(environments)} environments for {len(arrays[0])} rows.")
        if env is None:
            environments = list(range(len(environments)))
        self._rows.add(arrays, [whole("env", each, 0, 65_535) for each in environments])

    def sample(self, batch_size: int, offsets: Sequence[int] | None = None) -> dict[str, Any]:
        """A batch on the device, by field: tensors or arrays as those of a `Loader`, whose memory is used again once
        they are gone. Blocks until the device has read the rows.

        `offsets`: the rows of each sample, on an axis behind that of the samples. (0, 1) has a row and the next one of
        its environment, range(4) what 3-step returns need, (-3, -2, -1, 0) stacks four frames. They may span the end of
        an episode, and none is older than `capacity` rows.

        Raises InvalidArgument if no sample can be drawn. Each pair of arguments keeps memory on the device.
        """
        key = os.getpid(), batch_size, offsets if offsets is None else tuple(offsets)
        if key not in self._samplers:
            self._samplers[key] = self._sampler(*key[1:])
        sampler, made = self._samplers[key], []
        try:
            sampler.next_into(made)
        except InvalidArgument:
            sampler.start_epoch(sampler.state_dict()["epoch"] + 1)  # rows may come
            raise
        return dict(zip(self._fields, made[0], strict=True))

    def _sampler(self, batch_size: int, offsets: tuple[int, ...] | None) -> _core.NativeLoader:
        batch_size = whole("batch_size", batch_size, 1, 2**32, what="a number of samples")
        if offsets is not None:
            offsets = [whole("an offset", each, -(2**40), 2**40) for each in offsets]
        destination = Destination(self._device)
        if not destination.is_one_device:
            raise InvalidArgument("A ReplayBuffer is sampled to one device, over its own link.")
        return self._rows.sample(destination.native, batch_size, offsets, self._seed)

    def describe(self) -> list[str]:
        """A line for each field once it was sampled: how it travels, and why."""
        return next((sampler.describe() for sampler in self._samplers.values()), [])

    def close(self) -> None:
        """Ends sampling in this process. Held batches stay valid."""
        for (process, *_), sampler in self._samplers.items():
            if process == os.getpid():
                sampler.close()

    def __len__(self) -> int:
        return len(self._rows)

    def __reduce__(self) -> tuple:
        state = {**self.__dict__, "_rows": None, "_samplers": None}
        return _opened, (state, os.getpid(), self._rows.file)


def _opened(state: dict[str, Any], process: int, file: int) -> ReplayBuffer:
    buffer = ReplayBuffer.__new__(ReplayBuffer)
    buffer.__dict__.update(state)
    try:
        with open(f"/proc/{process}/fd/{file}", "r+b", buffering=0) as pages:
            buffer._open(pages.fileno())
    except OSError as error:
        raise Error(
            f"This ReplayBuffer was pickled by process {process}, which does not give its memory: {error}. Unpickle it "
            "while that process runs, on its host and in its container."
        ) from None
    return buffer


def _shape_and_dtype(name: str, given: Any) -> tuple[tuple[int, ...], str]:
    numpy = numpy_for("ReplayBuffer")
    try:
        shape, dtype = (given.shape, given.dtype) if hasattr(given, "dtype") else given
        return tuple(shape), numpy.dtype(dtype_name(name, dtype)).name
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"Field '{name}' is (shape, NumPy's dtype), or an example with both, not {given!r}."
        ) from None


def _as_stored(name: str, value: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """The value as NumPy's array of rows."""
    numpy = numpy_for("ReplayBuffer")
    try:
        array = numpy.asarray(numpy.asarray(value).astype(dtype, casting="same_kind", copy=False), order="C")
    except (TypeError, ValueError, RuntimeError) as error:  # on a GPU, with a gradient, of another kind
        raise InvalidArgument(f"Field '{name}' takes {dtype} in host memory: {error}") from None
    rows = array[None] if array.shape == shape else array
    if rows.ndim != len(shape) + 1 or rows.shape[1:] != shape:
        raise InvalidArgument(f"Field '{name}' takes a row of shape {shape}, or several, not {array.shape}.")
    return rows
