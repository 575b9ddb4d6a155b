"""The ways in which feed gets batches to the device, in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .._destination import Destination
from .draws import not_for_processes
from .iterator import PlainWay
from .native import NativeWay
from .pictures import not_decoded
from .resume import unresumable
from .workers import WorkersWay


class Ways:
    """The samples are gathered natively, or else the loader's workers fill slots, or else its batches are sent as they
    are."""

    def __init__(self, destination: Destination):
        self.native = NativeWay(destination)
        self.workers = WorkersWay(destination)
        self._all = self.native, self.workers, PlainWay(self.workers)

    def begin(self, feed: Any) -> Iterator[Any]:
        """The feed's next epoch. Raises InvalidArgument if its batches must be gathered natively, and cannot be."""
        for way in self._all:
            epoch = way.begin(feed)
            if epoch is not None:
                return epoch
            if way is self.native:
                refuse_if_needed(feed, str(way.why))
        raise AssertionError("the plain way takes all loaders")

    def describe(self, feed: Any) -> list[str]:
        """The answers of the ways, down to the first that makes the batches."""
        lines = []
        for way in self._all:
            why = way.why_not(feed)
            lines += way.describe(feed, why)
            if why is None:
                break
        if way is not self.native and feed._destination.group is not None:
            lines += feed._destination.describe_links()
        return lines


def refuse_if_needed(feed: Any, why: str) -> None:
    """Raises InvalidArgument, with the reason, if the feed's batches must be gathered natively."""
    if feed._destination.processes is not None:
        raise not_for_processes(why)
    if feed.pictures:
        raise not_decoded(why)
    if feed._needs_native:
        raise unresumable(why)
