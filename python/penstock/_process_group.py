"""ProcessGroup: processes of a host that need the same batches."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from . import _core, _others
from ._checks import whole
from ._errors import InvalidArgument
from ._loader.sampler import share
from ._loader.shared_dataset import _job, _local_processes


class ProcessGroup:
    """Processes of one host, one device each, that need the same batches, as ranks of tensor parallelism do.

    Each brings its part of a batch over its own link, and copies the parts of the others from their GPUs' memory. The
    processes make the same Loaders in the same order, with the same data, and ask for equally many batches. Pass it to
    `feed`, around equal DataLoaders, to `to_device` and to `load_safetensors`, too. docs/distributed.md says more.

    Args:
        ranks: The ranks of the group's processes, as torch.distributed counts them, or a process group of
            torch.distributed. By default all processes of the job; they are on this host then. If there are several
            groups, each with its own samples, pass the Loader `rank`, the number of the group, and `world_size`.
        rank: This process's place in the group, if neither torch.distributed nor torchrun says so.
        processes: The number of processes in the group, likewise.
        name: A name, if the processes do not make their Loaders in the same order.
        job: As in SharedDataset.
        timeout: Seconds that a process waits for another that lives and does not do its part.

    Raises:
        InvalidArgument: This process is not one of `ranks`, or ranks or job are not known.
        Error: From what it is passed to, if another process ends.

    Examples:
        >>> group = penstock.ProcessGroup(rank=0, processes=1)  # torchrun sets these
        >>> for batch in penstock.Loader(images, 64, shuffle=True, seed=1, device=group):
        ...     pass
    """

    def __init__(
        self,
        ranks: Any = None,
        *,
        rank: int | None = None,
        processes: int | None = None,
        name: str = "group",
        job: str | None = None,
        timeout: float = 600,
    ):
        if rank is not None or processes is not None:
            if ranks is not None or rank is None or processes is None:
                raise InvalidArgument("Pass `ranks`, or both `rank` and `processes`.")
            self.size = whole("processes", processes, 1)
            self.rank = whole("rank", rank, 0, self.size - 1, what="a place in the group")
            members = "all"
        else:
            if _others.processes() <= 1 and "RANK" not in os.environ:
                raise InvalidArgument(
                    "A ProcessGroup reads RANK and WORLD_SIZE, which torchrun sets. Start with torchrun, or pass rank= "
                    "and processes=."
                )
            own, world = share(None, None, True)
            numbers = _ranks(ranks, world)
            if own not in numbers:
                raise InvalidArgument(f"This process has rank {own}, and the group has ranks {numbers}.")
            self.size, self.rank = len(numbers), numbers.index(own)
            members = ",".join(map(str, numbers))
        if not timeout > 0:
            raise InvalidArgument(f"timeout is a number of seconds above 0, not {timeout!r}.")
        if job is None:
            job = _job() if self.size > 1 else ""
        self._board = _core.GroupBoard(
            key=f"group {job} {name} of {members}",
            rank=self.rank,
            processes=self.size,
            timeout_seconds=min(float(timeout), 1e9),
        )

    def place(self, engine: _core.Engine) -> _core.Destination:
        """This process's place where the processes meet to make a Loader, or to transfer something."""
        return _core.Destination.rank(engine, self._board)

    def refuse(self, distributed: bool, relay: Any) -> None:
        """Raises InvalidArgument for arguments of a Loader that do not fit a group."""
        if relay is not None:
            raise InvalidArgument("A ProcessGroup uses the links of its processes' devices. Leave out relay.")
        if distributed and self.size > 1:
            raise InvalidArgument(
                "distributed=True shares out the samples among all processes, and those of a group need the same ones. "
                "Leave it out. If there are several groups, pass rank, this one's number, and world_size, their number."
            )

    def __reduce__(self) -> Any:
        raise TypeError("A ProcessGroup cannot be pickled: make it in each process.")

    def __repr__(self) -> str:
        return f"<penstock.ProcessGroup: rank {self.rank} of {self.size}>"


def _ranks(ranks: Any, world: int) -> list[int]:
    if ranks is None:
        if world > 1 and _local_processes() != world:
            raise InvalidArgument(
                "The processes of a group are on one host, and this job has several. Pass `ranks`, those of the group."
            )
        return list(range(world))
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and isinstance(ranks, torch.distributed.ProcessGroup):
        return torch.distributed.get_process_group_ranks(ranks)
    if isinstance(ranks, str) or not isinstance(ranks, Iterable):
        raise InvalidArgument(f"ranks are numbers, or a process group of torch.distributed, not {ranks!r}.")
    numbers = [whole("ranks", rank, 0, world - 1, what="a rank of this job") for rank in ranks]
    if len(set(numbers)) != len(numbers):
        raise InvalidArgument(f"Each rank is in a group once: {numbers}.")
    return numbers
