"""One epoch of a feed around a loader that makes the batches itself."""

from __future__ import annotations

import collections
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from .. import _core
from .._errors import note
from .._move.transfers import expander_for
from .slots import Received
from .stages import Watch, watch_batches, why_unknown, workers_of
from .static import refuse_unless_garbage, why_not_static
from .workers import WorkerEpoch

if TYPE_CHECKING:
    from .wrapper import Feed

_END = object()
_AT_ONCE = (KeyboardInterrupt, SystemExit)  # handlers of signals raise them, whatever batch is under way


def _nothing() -> None:
    pass


class FeedIterator:
    """One epoch of a feed. Asks the loader for no batch before the first `next()`. One thread at a time."""

    def __init__(self, feed: Feed[Any], source: Iterator[Any] | None = None, turn: int = 0):
        """`source`: what is left of a native epoch, in this turn; None: the loader's next epoch, from `start` on."""
        self._feed = feed
        self._account = _core.FeedIteration(feed._account)
        self._receivers = feed._receivers
        refuse = why_not_static if feed.static else None
        self._expand = [expander_for(engine, refuse) for engine in self._receivers.engines]
        self._fixed = feed._static.of(feed._sets) if feed.static else None
        # If workers make the batches, this process's threads are free to move them.
        self._pin = not getattr(feed.loader, "num_workers", 0)
        self._source = source
        self._watch: Watch | None = None
        self._state_after = None if source is None else lambda rest: rest.batches.state(rest.batches.samples)
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

    def start(self) -> FeedIterator:
        """Begins the epoch; from here on this iterator's state is the feed's."""
        feed, account = self._feed, self._account
        feed._warn()
        feed._native.counted = None
        beginning = feed._beginning()
        self._state_after = feed._follow()
        self._listen = getattr(self._state_after, "listen", _nothing)
        account.ask(0)
        try:
            account.load()
            self._listen()
            self._source = self._begin_source()
            account.loaded()
        finally:
            account.leave(False)
        self._turn = feed._begin_turn(beginning)
        return self

    def _begin_source(self) -> Iterator[Any]:
        feed, why = self._feed, ""
        source = feed._workers.begin(feed)
        if source is None:
            source = iter(feed.loader)
            self._watch = watch_batches(source)
            if self._watch is None:
                why = why_unknown(feed.loader, feed._workers.why_ordinary())
        feed._account.no_stages(why)
        feed._account.of_workers(*workers_of(feed.loader))
        return source

    def _note_stages(self, batch: Any) -> None:
        stages = batch.stages if type(batch) is Received else self._watch and self._watch.take()
        if stages is None:
            self._account.unstaged()
        else:
            self._account.staged(*stages)

    def _fill(self) -> None:
        feed, account = self._feed, self._account
        while self._reads and len(self._pending) <= feed.prefetch_depth and self._may_read():
            try:
                if self._fixed is not None and not self._fixed.next_is_free():
                    if self._pending:
                        return
                    refuse_unless_garbage(self._fixed.next_is_free)
                account.load()
                try:
                    self._listen()
                    batch = next(self._source, _END)  # type: ignore[arg-type]
                finally:
                    account.loaded()
                if batch is _END:
                    self._reads = False
                    return
                self._note_stages(batch)
                state = None if self._state_after is None else self._state_after(self._source)
                slot = None
                if type(batch) is Received:
                    batch, slot = self._source.pool.open(batch)  # type: ignore[union-attr]
                flight = self._send(batch, slot)
                del batch
                if slot is not None:
                    self._source.pool.sent(slot, flight)  # type: ignore[union-attr]
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
        return not self._pending or not isinstance(self._source, WorkerEpoch) or self._source.is_ready()

    def _send(self, batch: Any, slot: Any) -> Any:
        before = sum(expand.pin_seconds for expand in self._expand)
        if self._receivers.together:
            flight = self._account.send_to_all(self._receivers.group, batch, self._expand, slot)
        else:
            flight = self._account.send(batch, self._expand[0], self._pin, slot, self._fixed)
        self._account.pinned(sum(expand.pin_seconds for expand in self._expand) - before)
        return flight

    def close(self) -> None:
        """Ends the epoch here: drops the loader's iterator and the batches that were read ahead."""
        self._over = True
        self._reads = False
        self._pending.clear()
        source, self._source = self._source, None
        if isinstance(source, Generator) and source is not self._feed.loader:
            source.close()
