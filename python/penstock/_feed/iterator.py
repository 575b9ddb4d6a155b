"""feed's plain way, and what it shares with the workers' way: the loader makes the batches, which are read ahead."""

from __future__ import annotations

import collections
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from .. import _core
from .._errors import note
from .._move.transfers import expander_for
from .slots import Received
from .stages import FetchWatch, watch_batches, why_unknown, workers_of
from .way import Way

if TYPE_CHECKING:
    from .wrapper import Feed

_AT_ONCE = (KeyboardInterrupt, SystemExit)  # handlers of signals raise them, whatever batch is under way


def _nothing() -> None:
    pass


class PlainSource:
    """Gives what an iterator gives, as a batch that came in no slot."""

    def __init__(self, iterator: Iterator[Any], watch: FetchWatch | None = None, why_no_stages: str = ""):
        self.iterator = iterator
        self.why_no_stages = why_no_stages  # of batches; empty: they are timed
        self._watch = watch

    def __next__(self) -> Received:
        batch = next(self.iterator)
        return Received(batch, None, 0, self._watch and self._watch.take())

    def is_ready(self) -> bool:
        """True if the next batch is there, or would not come any sooner if it were asked for later."""
        return True

    def sent(self, slot: Any, flight: Any) -> None:
        """Called when a batch is on its way and its host arrays are dropped."""


class FeedIterator:
    """One epoch of a feed. Asks the loader for no batch before the first `next()`. One thread at a time."""

    def __init__(
        self, feed: Feed[Any], source: Any = None, turn: int = 0, state_after: Callable[[Any], Any] | None = None
    ):
        """`source`: what is left of a native epoch, in this turn, and the state after each batch; None: see `start`."""
        self._feed = feed
        self._account = _core.FeedIteration(feed._account)
        self._destination = feed._destination.native
        self._expand = [expander_for(engine) for engine in feed._destination.engines]
        # If workers make the batches, this process's threads are free to move them.
        self._pin = not getattr(feed.loader, "num_workers", 0)
        self._source = source
        self._state_after = state_after
        self._listen: Callable[[], None] = _nothing
        self._pending: collections.deque[Any] = collections.deque()
        self._turn = turn
        self._reads = True
        self._over = False

    def __iter__(self) -> FeedIterator:
        return self

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        try:
            self._account.ask(len(self._pending))
            return self._next()
        finally:
            self._account.leave(self._over)

    def _next(self) -> Any:
        self._fill()
        feed = self._feed
        if not self._pending:
            self.close()
            feed._note(self._turn, None)
            raise StopIteration
        item = self._pending.popleft()
        if isinstance(item, BaseException):
            self._reads = True
            try:
                if isinstance(item, StopIteration):  # from a batch's own code: it would end the loop silently
                    raise RuntimeError("a batch raised StopIteration while it was sent") from item
                raise item
            finally:
                del item
        flight, state = item
        batch = self._account.land(flight)
        feed._note(self._turn, state)
        return batch

    def start(self, begin: Callable[[Any], Any]) -> FeedIterator:
        """Begins the epoch, of the source that `begin` makes of the loader. From here on this iterator's state is the
        feed's."""
        feed, account = self._feed, self._account
        feed._warn()
        feed._ways.native.counted = None
        beginning = feed._beginning()
        self._state_after = feed._follow()
        self._listen = getattr(self._state_after, "listen", _nothing)
        account.ask(0)
        try:
            account.load()
            self._listen()
            self._source = begin(feed.loader)
            feed._account.no_stages(self._source.why_no_stages)
            feed._account.of_workers(*workers_of(feed.loader))
            account.loaded()
        finally:
            account.leave(False)
        self._turn = feed._begin_turn(beginning)
        return self

    def _fill(self) -> None:
        feed, account = self._feed, self._account
        while self._reads and len(self._pending) <= feed.prefetch_depth and self._may_read():
            try:
                account.load()
                try:
                    self._listen()
                    received = next(self._source, None)
                finally:
                    account.loaded()
                if received is None:
                    self._reads = False
                    return
                if received.stages is None:
                    account.unstaged()
                else:
                    account.staged(*received.stages)
                state = None if self._state_after is None else self._state_after(self._source.iterator)
                slot = received.slot
                flight = self._send(received.batch, slot)
                del received
                self._source.sent(slot, flight)
                slot = None
            except _AT_ONCE:
                raise
            except BaseException as error:
                number = feed._account.batches + sum(not isinstance(item, BaseException) for item in self._pending)
                note(error, f"raised while penstock.feed asked for batch {number} and sent it")
                self._pending.append(error)
                self._reads = False
            else:
                self._pending.append((flight, state))

    def _may_read(self) -> bool:
        """False if there is a batch to hand out, and its user would have to wait for workers to make another one."""
        return not self._pending or self._source.is_ready()

    def _send(self, batch: Any, slot: Any) -> Any:
        before = sum(expand.pin_seconds for expand in self._expand)
        flight = self._account.send(self._destination, batch, self._expand, self._pin, slot)
        self._account.pinned(sum(expand.pin_seconds for expand in self._expand) - before)
        return flight

    def close(self) -> None:
        """Ends the epoch here: drops the loader's iterator and the batches that were read ahead."""
        self._over = True
        self._reads = False
        self._pending.clear()
        source, self._source = self._source, None
        iterator = getattr(source, "iterator", None)
        if isinstance(iterator, Generator) and iterator is not self._feed.loader:
            iterator.close()


class PlainWay(Way):
    """Takes the batches from any loader's own iterator."""

    def __init__(self, workers: Way):
        self._workers = workers  # which were asked before

    def begin(self, feed: Any) -> FeedIterator:
        return FeedIterator(feed).start(self._source)

    def _source(self, loader: Any) -> PlainSource:
        iterator = iter(loader)
        watch = watch_batches(iterator)
        return PlainSource(iterator, watch, why_unknown(loader, self._workers.why) if watch is None else "")
