"""feed's native way: a DataLoader of tensors, whose samples the C++ loader gathers as its sampler chooses them."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from .. import _core
from .._destination import Destination
from .._engines import is_forked
from .._errors import Closed, InvalidArgument, OutOfMemory, note
from .._loader.indices import draw_seed
from .draws import EpochBatches, Rest, refusal_of, refusal_of_next
from .iterator import FeedIterator, PlainSource
from .tensor_loader import TensorLoader
from .tensors import Tensors, most_in_a_batch, tensors_of
from .way import Way


class NativeWay(Way):
    """Has the loader that is made with the first epoch, and anew if the tensors' memory is another. It serves the epoch
    that was begun last; one that was begun before goes on in the ordinary way. Thread-safe."""

    def __init__(self, destination: Destination):
        self.lock = threading.RLock()
        self.counted: TensorLoader | None = None  # the loader of the latest epoch; None if that was an ordinary one
        self._destination = destination
        self._loader: TensorLoader | None = None
        self._latest: Callable[[], NativeEpoch | None] = lambda: None
        self._seed = 0  # of the latest epoch's workers
        self._seeded: Any = None  # the DataLoader whose persistent workers would have had their seed

    def why_not(self, feed: Any) -> str | None:
        """Makes the loader, unless an epoch is under way. Processes make theirs together, when an epoch begins."""
        with self.lock:
            tensors = tensors_of(feed)
            if isinstance(tensors, str):
                return tensors
            latest = self._latest()
            under_way = latest is not None and latest.is_native
            return None if under_way or self._destination.processes is not None else self._why_no_loader(feed, tensors)

    def begin(self, feed: Any) -> NativeEpoch | None:
        with self.lock:
            tensors = tensors_of(feed)
            if isinstance(tensors, str):
                self.why = tensors
                return None
            earlier = self._latest()
            if earlier is not None:
                earlier.go_on()
            beginning = feed._beginning()
            self.why = self._why_no_loader(feed, tensors)
            if self.why is not None:
                return None
            loader = feed.loader
            batches = EpochBatches(loader.batch_sampler, feed._order)
            batches.seed = self._seed = self._seed_workers(loader, feed._is_resumed)
            if loader.num_workers > 0:  # which have so many batches drawn when they start
                batches.draw_ahead(loader.num_workers * loader.prefetch_factor)
            epoch = NativeEpoch(feed, self, self._loader, batches, tensors, beginning)
            self._latest, self.counted = weakref.ref(epoch), self._loader
            return epoch

    def describe(self, feed: Any, why: str | None) -> list[str]:
        if why is not None:
            return [f"the batches are those that the loader makes: {why}"]
        loader = self._loader
        what = "pictures, which are decoded" if feed.pictures else "tensors, whose samples are gathered"
        lines = [f"the dataset is {what} without worker processes"]
        return lines + (["the processes have not met yet"] if loader is None else loader.describe())

    def _seed_workers(self, loader: Any, is_resumed: bool) -> int:
        """The epoch's seed. Takes as much from the random state as the loader's iterator does: it draws a seed for its
        workers. Persistent workers keep the first one. If an epoch is resumed, it was drawn at its beginning."""
        persistent = loader.persistent_workers and loader.num_workers > 0
        if not is_resumed and (not persistent or (self._seeded is not loader and loader._iterator is None)):
            seed = draw_seed(sys.modules["torch"], loader.generator)
        else:
            seed = self._seed + 1  # pictures differ from those of the epoch before
        self._seeded = loader if persistent else None
        return seed

    def _why_no_loader(self, feed: Any, tensors: Tensors) -> str | None:
        """Makes the loader for these tensors, unless there is one. Otherwise says why there is none."""
        most = most_in_a_batch(feed.loader, tensors.samples)
        if self._loader is not None:
            if self._loader.serves(feed.prefetch_depth, tensors, most):
                return None
            self._loader.close()
            self._loader = None
        try:
            self._loader = TensorLoader(self._destination, feed.prefetch_depth, tensors, most)
        except (InvalidArgument, OutOfMemory) as error:
            return str(error)
        return None


class NativeEpoch:
    """One epoch of a feed, gathered natively for as long as that gives the loader's own batches. Asks for no batch
    before the first `next()`. Once it is over or dropped, nothing reads the tensors."""

    def __init__(self, feed: Any, way: NativeWay, loader: Any, batches: EpochBatches, tensors: Tensors, beginning: Any):
        """Begins the epoch; from here on its state is the feed's."""
        self._feed, self._way, self._lock = feed, way, way.lock
        self._loader, self._batches = loader, batches
        self._together = feed._destination.together
        self._refusal = refusal_of(feed._destination, tensors)
        build = tensors.build
        together = self._together and build is not None
        self._build = (lambda each: [build(arrays) for arrays in each]) if together else build  # type: ignore[misc]
        self._ordinary: FeedIterator | None = None
        self._made: list[Any] = []  # the arrays of a batch that is not handed out yet; None: the end of the epoch
        self._newer = False  # another epoch has taken the loader, and this one must not go on without it
        self._over = False
        self._watch: _core.TensorWatch | None = loader.begin(batches, tensors)  # None: nothing is gathered natively
        self._turn = feed._begin_turn(beginning)
        feed._warn()

    def __iter__(self) -> NativeEpoch:
        return self

    @property
    def is_native(self) -> bool:
        return self._watch is not None

    def __next__(self) -> Any:
        made = self._made
        if (not made or made[0] is None) and not self._ask():
            return next(self._ordinary)  # type: ignore[arg-type]
        arrays, batches, none_made = self._made[0], self._batches, []
        batch = arrays if self._build is None else self._build(arrays)
        done = batches.done + 1
        if not batches.keeps_place:
            batches.done, self._made = done, none_made  # the last step: see draw_into
            return batch
        first = arrays[0][0] if self._together else arrays[0]
        feed, samples = self._feed, batches.samples + len(first)
        state = batches.state(samples)
        notes = feed.__dict__ if self._turn == feed._turn else {}
        notes["_state"], batches.samples, batches.done, self._made = state, samples, done, none_made  # the last step
        return batch

    def _ask(self) -> bool:
        """Has the next batch made. False if it is made in the ordinary way."""
        if self._ordinary is not None:
            return False
        with self._lock:
            if self._over:
                raise StopIteration
            if self._newer:
                raise Closed(
                    "This iterator has ended: a newer one of this feed, which gathers natively alone, was begun."
                )
            if self._watch is None:  # another epoch was begun meanwhile
                return False
            if not self._made and not self._make():
                if self._refusal is not None:
                    self.close()
                    raise refusal_of_next(self._batches, self._refusal)
                self.go_on()
                return False
            if self._made[0] is not None:
                return True
            if self._loader.rows.is_odd:
                self.go_on()
                return False
            self._feed._note(self._turn, None)
            self.close()
            raise StopIteration

    def _make(self) -> bool:
        """Has the native loader make the next batch, or the end of the epoch. False if the tensors have changed."""
        loader = self._loader
        try:
            return loader.next_into(self._made, self._watch)
        except Exception as error:
            if not loader.rows.is_odd:
                note(error, "raised while penstock.feed asked for a batch")
            self.close()
            raise

    def go_on(self) -> None:
        """The rest of the epoch is made in the ordinary way. If it must not be, the epoch ends."""
        if self._watch is None:
            return
        if self._refusal is not None:
            self._newer = True
        else:
            self._way.counted = None
            if self._ordinary is None:  # unless Ctrl-C came below
                batches = self._batches
                source = PlainSource(Rest(batches, self._feed.loader))
                self._ordinary = FeedIterator(self._feed, source, self._turn, lambda _: batches.state(batches.samples))
        self._end()

    def _end(self) -> None:
        """Nothing is gathered any more."""
        self._loader.end()
        self._watch = None  # afterwards: if Ctrl-C comes before, another epoch must not begin there

    def close(self) -> None:
        """Ends the epoch here."""
        with self._lock:
            self._over = True
            self._made = []
            if self._watch is not None:
                self._end()
            if self._ordinary is not None:
                self._ordinary.close()

    def __del__(self) -> None:
        if is_forked():  # another thread may have held the lock
            return
        with contextlib.suppress(Exception, SystemExit):  # the loader is closed
            self.close()
