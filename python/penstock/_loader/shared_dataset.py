"""SharedDataset: one copy of a dataset for all processes of a host."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .. import _core, _others
from .._checks import whole
from .._errors import InvalidArgument
from .._progress import Progress
from .columns import fields_of

Path = str | os.PathLike


class SharedDataset:
    """A dataset in memory that all processes of a host share, in one copy: pass it to a `Loader`.

    Every process of the host makes its SharedDatasets in the same order. Blocks until the samples are in memory. Ctrl-C
    is heard meanwhile, except by `make`. While arrays are copied they take memory twice, then once; files take it once.
    Host memory is freed with the last process, also if all are killed. Its pages lie on all NUMA nodes in turn.

    Args:
        make: A callable without arguments that returns what `Loader` takes: an array, a dict or tuple of arrays, a
            table. It is called in one process of the host: the first one to come. Or the path of a file, or several
            paths: .npy, .npz and .safetensors files, or directories of these. They are read straight into the shared
            memory, and `data` is a dict of their arrays by name.
        name: A name for this one, if the order of the processes differs.
        processes: How many processes of this host share it. By default torchrun says so, or Open MPI.
        job: A text that only this job's processes have. By default it follows from what torchrun sets.

    Raises:
        Exception: What `make` raises. Processes that wait for another raise Error, which names it; one that comes later
            makes the data itself.
        InvalidArgument: A Loader does not take the data, its class of tuples is not imported here, or the number of
            processes or the job is not known.
        Unsupported: A process of another container has this job's name.
        OutOfMemory: The host has less memory than the data.

    Examples:
        >>> shared = penstock.SharedDataset(lambda: {"x": images, "y": labels}, processes=1)
        >>> len(penstock.Loader(shared, batch_size=64, shuffle=True, device="host"))
        10
    """

    def __init__(
        self,
        make: Callable[[], Any] | Path | Iterable[Path],
        *,
        name: str = "dataset",
        processes: int | None = None,
        job: str | None = None,
    ):
        give = _giver(make)
        processes = _local_processes() if processes is None else whole("processes", processes, 1)
        if job is None:
            job = _job() if processes > 1 else ""
        turn = next(_turns.setdefault(str(name), itertools.count()))
        doing = "waits for the process that makes the data"

        def make_here() -> tuple[bytes, list, list]:
            nonlocal doing
            doing = "makes the data"
            given = give()
            doing = "brings the data to shared memory"
            return given

        with Progress(lambda seconds: f"SharedDataset '{name}': {doing}, {seconds:.0f} s"):
            self._fields = fields = _core.share_dataset(f"{job} {name} {turn}", processes, make_here)
        # What another process says is data, and never code.
        note = json.loads(fields.note)
        if note is None:  # files; NumPy lacks bfloat16
            tensors = [i for i, (_, dtype) in enumerate(fields.fields) if dtype == "bfloat16"]
            note = {"keys": [name for name, _ in fields.fields], "type": None, "tensors": tensors}
        self.data = _built(note, [_array(fields, i, i in note["tensors"]) for i in range(len(fields.fields))])
        """The arrays, as `make` returned them. They lie in the shared memory: do not write to them."""

    @property
    def nbytes(self) -> int:
        """Bytes of the shared memory."""
        return self._fields.nbytes

    @property
    def made_here(self) -> bool:
        """True in the process that made the dataset."""
        return self._fields.made_here

    def __reduce__(self) -> Any:
        raise TypeError("A SharedDataset cannot be pickled: make it in each process, which then shares the memory.")

    def __repr__(self) -> str:
        where = "made here" if self.made_here else "made by another process"
        names = ", ".join(name for name, _ in self._fields.fields)
        return f"<penstock.SharedDataset of {names}: {self.nbytes} bytes, {where}>"


# How many datasets of each name this process has shared: they have keys of their own.
_turns: dict[str, itertools.count] = {}


def _giver(make: Any) -> Callable[[], tuple[bytes, list, list]]:
    """What gives C++ the note, the arrays by name, and the paths."""
    if callable(make):
        return lambda: _given(make())
    paths = [make] if isinstance(make, (str, os.PathLike)) else make
    if isinstance(paths, Iterable) and not isinstance(paths, Mapping):
        paths = list(paths)
        if paths and all(isinstance(path, (str, os.PathLike)) for path in paths):
            return lambda: _given_files([os.fspath(path) for path in paths])
    raise InvalidArgument(
        "SharedDataset takes a callable that returns the data, or paths of files, not "
        f"{type(make).__name__}. The data itself would be in each process already: pass `lambda: ...`."
    )


def _given(data: Any) -> tuple[bytes, list, list]:
    tensordict = getattr(sys.modules.get("tensordict"), "TensorDictBase", SharedDataset)
    if isinstance(data, (SharedDataset, tensordict)):
        raise InvalidArgument(f"A SharedDataset holds plain arrays: return a dict of them, not {type(data).__name__}.")
    fields = fields_of(data)
    torch = sys.modules.get("torch")
    tensors = [i for i, array in enumerate(fields.arrays) if torch is not None and isinstance(array, torch.Tensor)]
    note = {"keys": None, "type": None, "tensors": tensors}
    skeleton = fields.build(list(range(len(fields.arrays))))
    if isinstance(skeleton, Mapping):
        note["keys"] = list(skeleton)
    elif not isinstance(skeleton, int):
        note["type"] = [type(skeleton).__module__, type(skeleton).__qualname__]
    for key in note["keys"] or []:
        if type(key) not in (str, int):
            raise InvalidArgument(f"The keys of a SharedDataset's dict are texts or whole numbers, not {key!r}.")
    if note["type"] is not None:
        _sequence(*note["type"])
    return json.dumps(note).encode(), fields.named(), []


def _given_files(paths: list[str]) -> tuple[bytes, list, list]:
    return json.dumps(None).encode(), [], paths


def _array(fields: _core.SharedFields, number: int, is_tensor: bool) -> Any:
    if is_tensor:
        import torch  # noqa: F401

        return fields.array(number, for_torch=True)
    import numpy  # noqa: F401

    array = fields.array(number, for_torch=False)
    array.setflags(write=False)
    return array


def _built(note: dict[str, Any], arrays: list[Any]) -> Any:
    """The arrays in the structure that `make` returned."""
    if note["keys"] is not None:
        return dict(zip(note["keys"], arrays, strict=True))
    if note["type"] is None:
        return arrays[0]
    kind = _sequence(*note["type"])
    return kind(*arrays) if hasattr(kind, "_fields") else kind(arrays)


def _sequence(module: str, name: str) -> type:
    """A list, a tuple, or a class of these that this process has imported."""
    kind = getattr(sys.modules.get(module), "__dict__", {}).get(name)
    if isinstance(kind, type) and issubclass(kind, (list, tuple)):
        return kind
    raise InvalidArgument(
        f"The shared data is a {name}, which a process does not find in the modules that it has imported: import "
        f"{module} in all of them, or return a dict of arrays."
    )


def _local_processes() -> int:
    """The processes of this host, as torchrun and Open MPI say."""
    for variable in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"):
        if variable in os.environ:
            try:
                return whole(variable, int(os.environ[variable]), 1)
            except ValueError:
                raise InvalidArgument(f"{variable} is {os.environ[variable]!r}: pass processes=.") from None
    if _others.processes() > 1 or os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
        raise InvalidArgument(
            "Several processes run, and LOCAL_WORLD_SIZE, which torchrun sets, does not say how many of them are on "
            "this host: pass processes=."
        )
    return 1


def _job() -> str:
    """What only the processes of this job have in common."""
    environment = os.environ
    if "MASTER_ADDR" in environment and "MASTER_PORT" in environment:
        parts = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
        return " ".join(environment.get(part, "") for part in parts)
    for variable in ("PMIX_NAMESPACE", "SLURM_STEP_ID"):
        if variable in environment:
            return f"{environment.get('SLURM_JOB_ID', '')} {environment[variable]}"
    raise InvalidArgument(
        "Several processes share this dataset, and nothing says which job they belong to: start them with torchrun, or "
        "pass job=, a text that only they have."
    )
