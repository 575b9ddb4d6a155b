"""What feed's ways to get batches have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Way:
    """One of feed's ways. They are asked in order: the first that can makes an epoch's batches."""

    why: str | None = None
    """Why it did not make those of the latest epoch."""

    def why_not(self, feed: Any) -> str | None:
        """Why it cannot make the batches of the epoch that is under way, or else of the next one. None if it can."""
        return None

    def begin(self, feed: Any) -> Iterator[Any] | None:
        """The feed's next epoch, an iterator of batches on the device. None if it cannot: `why` says why."""
        raise NotImplementedError

    def describe(self, feed: Any, why: str | None) -> list[str]:
        """Its part of `feed.describe()`, given the answer of `why_not`."""
        return []
