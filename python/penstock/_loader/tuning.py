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

    - `gather`: "automatic"; "host": threads gather the samples; "zero-copy": a kernel reads them from your arrays, with
      `gather_blocks` blocks (0: as measured best; few leave room for your kernels; if given, "automatic" does not
      choose "copy-engine"); "copy-engine": the GPU's copy engines fetch them, best for samples of 64 KiB and more.
    - `narrow`: integers cross the link in the narrowest type that holds them all.
    - `row_budget_bytes`: arrays in memory with samples of 64 bytes or less, such as the columns of a table, are copied
      into rows at the beginning, a row for each sample, and travel together. This is the most locked host memory that
      the rows take; 0: an eighth of the machine's, shared between the processes that torchrun started on it. What
      does not fit is read where it lies.
    - `threads`: how many gather; 0: at most 8.
    - `when_full`: what `next()` does while all batches that the budget allows are held: "wait" for one to be dropped,
      for at most 10 s, or "fail" at once. Then OutOfMemory names the held batches.
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
