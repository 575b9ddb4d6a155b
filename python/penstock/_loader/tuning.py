"""Tuning: what a Loader decides by itself, for experiments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .. import _core, _others
from .._checks import whole

_UINT32 = 2**32 - 1


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What a `Loader` decides by itself, and experiments may decide otherwise: `tuning=penstock.Tuning(gather="host")`.

    Args:
        gather: "automatic"; "host": threads gather the samples; "zero-copy": a kernel reads them from your arrays;
            "copy-engine": the GPU's copy engines fetch them, best for samples of 64 KiB and more.
        gather_blocks: Blocks of that kernel; 0: as measured best. Few leave room for your kernels. If given,
            "automatic" does not choose "copy-engine".
        narrow: Integers cross the link in the narrowest type that holds them all.
        row_budget_bytes: Arrays in memory with samples of 64 bytes or less, such as the columns of a table, are copied
            into rows at the beginning, and travel together. This is the most locked host memory that the rows take; 0:
            an eighth of the machine's, shared between the processes of torchrun on it. What does not fit is read in
            place.
        threads: How many gather; 0: at most 8.
        when_full: What `next()` does while all batches that the budget allows are held: "wait" for one to be dropped,
            for at most 10 s, or "fail" at once. Then OutOfMemory names the held batches.

    Raises:
        InvalidArgument: From the Loader, for a value that is none of these.

    Examples:
        >>> tuning = penstock.Tuning(gather="host", threads=2)
        >>> len(list(penstock.Loader(images, 64, device="host", tuning=tuning)))
        10
    """

    gather: Literal["automatic", "host", "zero-copy", "copy-engine"] = "automatic"
    gather_blocks: int = 0
    narrow: bool = True
    row_budget_bytes: int = 0
    threads: int = 0
    when_full: Literal["wait", "fail"] = "wait"


def native_options(tuning: Tuning) -> dict[str, Any]:
    """What the C++ side takes. Raises InvalidArgument for numbers that do not fit."""
    row_budget = whole("row_budget_bytes", tuning.row_budget_bytes, 0, what="a number of bytes")
    return {
        "gather": tuning.gather,
        "gather_blocks": whole("gather_blocks", tuning.gather_blocks, 0, _UINT32, what="a number of blocks"),
        "narrow": bool(tuning.narrow),
        "row_budget_bytes": row_budget
        or _core.default_row_budget(_core.host_memory_bytes()) // _others.processes_of_host(),
        "threads": whole("threads", tuning.threads, 0, _UINT32, what="a number of threads"),
        "when_full": str(tuning.when_full),
    }
