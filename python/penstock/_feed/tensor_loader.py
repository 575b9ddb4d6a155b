"""The C++ loader that gathers the batches of a feed around tensors."""

from __future__ import annotations

from .. import _core
from .._destination import Destination
from .._engines import close_at_exit
from .draws import EpochBatches, RowsOfBatches, refusal_of
from .tensors import Tensors


class TensorLoader:
    """A native loader of tensors, for one epoch after the other. The C++ loader asks it for the batches' indices."""

    def __init__(self, destination: Destination, prefetch_depth: int, tensors: Tensors, most: int):
        self._memory = tensors.memory()
        self._most = most
        self._prefetch_depth = prefetch_depth
        self._members = len(destination.members)
        self._number = 0
        self.rows = RowsOfBatches(most, refusal_of(destination, tensors))
        self._native = _core.NativeLoader(
            destination.native,
            list(zip(tensors.names, tensors.arrays, strict=True)),
            list(tensors.options),
            batch_size=most,
            batch_sampler=self.rows,
            prefetch_depth=prefetch_depth,
            # The device reads locked memory. Such memory must not be freed before it is unlocked, and PyTorch frees
            # a tensor's memory when it moves it: into shared memory, say, for a spawned process. There it stays.
            gather="automatic" if all(array.is_shared() for array in tensors.in_memory) else "host",
            data_may_change=True,
            device_budget_bytes=min(engine.memory_bytes for engine in destination.engines),
            when_full="fail",
        )
        # Appends the arrays of the next batch, or None at the end of the epoch. False if the tensors are not as they
        # were.
        self.next_into = self._native.next_into
        self.describe = self._native.describe
        self.stats = self._native.stats
        self.timeline = self._native.timeline
        close_at_exit(self)

    def serves(self, prefetch_depth: int, tensors: Tensors, most: int) -> bool:
        """True if it reads these tensors, has room for their batches, and is as far ahead."""
        return self._most >= most and self._prefetch_depth == prefetch_depth and self._memory == tensors.memory()

    def begin(self, batches: EpochBatches, tensors: Tensors) -> _core.TensorWatch:
        """Begins an epoch. Gives what sees whether PyTorch writes to a tensor from now on, or gives it other memory."""
        self.rows.begin(batches, tensors)
        watch = _core.TensorWatch(tensors.in_memory)
        self._native.start_epoch(self._number)  # costs nothing if all of the epoch before was handed out
        return watch

    def end(self) -> None:
        """Nothing reads the tensors from here on, until the next epoch."""
        self._number += 1
        self._native.leave_epoch()
        self.rows.begin(None, None)

    def device_stats(self) -> list[_core.FeedStatistics]:
        return [self._native.member_stats(member) for member in range(self._members)]

    def close(self) -> None:
        self._native.close()
