"""feed(static=True): batches are the same arrays again and again, at fixed addresses, as captured graphs need them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

from .. import _core
from .._errors import InvalidArgument


class StaticBatches:
    """The memory of a feed's batches."""

    def __init__(self) -> None:
        self._fixed: _core.FixedBatches | None = None

    def of(self, sets: int) -> _core.FixedBatches:
        """In so many sets. They stay the same for as long as their number does."""
        if self._fixed is None or self._fixed.sets != sets:
            self._fixed = _core.FixedBatches(sets, mark)
        return self._fixed


def check(engine: _core.Engine, prefetch_depth: int) -> None:
    """Raises InvalidArgument if batches cannot be static."""
    if prefetch_depth == 0:
        raise InvalidArgument(
            "static=True needs a prefetch_depth of 1 or more: while a batch is in use, the next one arrives elsewhere."
        )
    if engine.is_cuda and "torch" not in sys.modules:
        raise InvalidArgument("static=True is for PyTorch, which this program has not imported.")
    if "torch" in sys.modules:
        import torch._dynamo  # noqa: F401  # takes a second, which is then not the first batch's


def why_not_static(value: Any) -> str:
    """Why this object, which moves itself or lies elsewhere, cannot be in a static batch."""
    return (
        "static=True delivers plain arrays of the host, at fixed addresses, and this "
        f"{type(value).__name__} is not one: it moves itself, or lies elsewhere. penstock.register_batch_type tells "
        "which arrays a type has."
    )


def refuse_unless_garbage(is_free: Callable[[], bool]) -> None:
    """For a batch that seems to be kept. Raises InvalidArgument unless what keeps it is garbage in a cycle."""
    gc.collect()
    if not is_free():
        _core.refuse_kept()


def mark(array: Any) -> None:
    """Tells torch.compile that the tensor's address stays, so that a captured graph reads it there."""
    import torch._dynamo

    torch._dynamo.mark_static_address(array)
