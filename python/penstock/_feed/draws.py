"""Which samples the batches of an epoch have, for the C++ loader that gathers them, and for the loader's own way."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .._destination import Destination
from .._errors import InvalidArgument
from .._loader.sampler import draw_into
from .._loader.samplers import Several, iterate
from .pictures import not_decoded
from .tensors import Tensors

_END = object()


class EpochBatches:
    """The batches that the sampler gives in one epoch, in draws: a draw is a batch, Several, or the sampler's error.
    Those that were not handed out are kept. `done`: the batches that were. `samples`: those of these batches, if the
    feed keeps its place, in the order that `order` begins with the first draw. `seed`: of the epoch's workers."""

    def __init__(self, batch_sampler: Any, order: Any):
        self.keeps_place = order is not None
        self.done = self.samples = 0
        self._order = order
        self._draw: Any = None
        self._source = iterate(batch_sampler, self._begin if self.keeps_place else None)
        self.seed = 0
        # The number of the first draw that is kept, the number of its first batch, and the draws.
        self._kept: tuple[int, int, list[Any]] = 0, 0, []

    def _begin(self) -> Iterator[Any]:
        if self._draw is None:  # unless Ctrl-C came below
            self._draw = self._order._begin()
        return self._draw.pieces()

    @functools.cached_property
    def reading_epoch(self) -> int:
        """Of which the random numbers of pictures follow. If the place is kept, it follows from the place, so that an
        epoch that is resumed has the same. Only after a draw."""
        if not self.keeps_place:
            return self.seed
        place = {**self._draw.after(0), "consumed": None}
        return int.from_bytes(hashlib.blake2b(repr(sorted(place.items())).encode(), digest_size=8).digest(), "big")

    def draw_ahead(self, count: int) -> None:
        """Draws so many batches, at least. Raises the sampler's error."""
        draws = self._kept[2]
        while count > 0:
            drawn = len(draws)
            self._ask_for(draws)
            if len(draws) == drawn:
                return
            if isinstance(draws[-1], Exception):
                raise draws.pop()
            count -= len(draws[-1].rows) if type(draws[-1]) is Several else 1

    def ask(self, number: int) -> Any:
        """Draw `number` of the epoch, from 0. _END at its end. After Ctrl-C, the same number is asked for again."""
        first, _, draws = self._needed()
        if number - first == len(draws):
            self._ask_for(draws)
        return draws[number - first] if number - first < len(draws) else _END

    def take(self) -> Any:
        """The next batch, for the ordinary way: it counts as handed out. _END at the end of the epoch. Raises the
        sampler's error."""
        _, begin, draws = self._needed()
        if not draws:
            self._ask_for(draws)
        if not draws:
            return _END
        batch = draws[0].rows[self.done - begin] if type(draws[0]) is Several else draws[0]
        self.done += 1
        if isinstance(batch, Exception):
            raise batch
        if self.keeps_place:
            self.samples += len(batch)
        return batch

    def state(self, samples: int) -> Any:
        """The feed's state after so many samples; None if the feed keeps none."""
        return self._draw.after(samples) if self.keeps_place else None

    def _needed(self) -> tuple[int, int, list[Any]]:
        """Forgets the draws whose batches were all handed out."""
        if self.done == 0 and self._draw is not None:
            self._order._settle(self._draw)
        first, begin, draws = self._kept
        while draws:
            end = begin + (len(draws[0].rows) if type(draws[0]) is Several else 1)
            if end > self.done:
                break
            first, begin, draws = first + 1, end, draws[1:]
        self._kept = first, begin, draws
        return self._kept

    def _ask_for(self, draws: list[Any]) -> None:
        try:
            draw_into(draws, self._source)
        except Exception as error:
            draws.append(error)


class RowsOfBatches:
    """Gives the C++ loader the rows of the batches of one epoch after the other, as `Batches` of samplers.py."""

    def __init__(self, most: int, refusal: Callable[[str], Exception] | None):
        """`refusal`: makes the error if a batch is not simply rows. None: the rest is made in the ordinary way."""
        self.reading_epoch: int | None = None  # see Batches
        self.is_odd = False  # the epoch ends early, before a batch that is not simply rows of the tensors
        self._most = most
        self._refusal = refusal
        self._batches: EpochBatches | None = None
        self._tensors: Tensors | None = None
        self._error: BaseException | None = None  # Ctrl-C and the like: set by C++

    def begin(self, batches: EpochBatches | None, tensors: Tensors | None) -> None:
        self._batches, self._tensors, self.is_odd = batches, tensors, False

    def start(self) -> None:
        pass

    def next(self, number: int) -> Any:
        """The rows of the next batch, as an array of 64-bit numbers, or of the next batches, one in each row. None at
        the end, or if one is not simply rows of the tensors. With a refusal, that fails: False."""
        batch = self._batches.ask(number)  # type: ignore[union-attr]
        if batch is _END:
            return None
        if self._tensors.decodes:  # type: ignore[union-attr]
            self.reading_epoch = self._batches.reading_epoch  # type: ignore[union-attr]
        rows = None if isinstance(batch, Exception) else self._tensors.rows(batch)  # type: ignore[union-attr]
        if rows is not None and 0 < rows.shape[-1] <= self._most:
            return rows
        self.is_odd = True
        return None if self._refusal is None else False

    def fail(self) -> None:
        error, self._error = self._error, None
        raise refusal_of_next(self._batches, self._refusal) if error is None else error  # type: ignore[arg-type]


class Rest:
    """The iterator of the rest of an epoch, made as the DataLoader makes it."""

    def __init__(self, batches: EpochBatches, loader: Any):
        fetch = sys.modules["torch.utils.data"]._utils.fetch._MapDatasetFetcher
        self._fetch = fetch(loader.dataset, True, loader.collate_fn, loader.drop_last).fetch
        self.batches = batches

    def __next__(self) -> Any:
        batch = self.batches.take()
        if batch is _END:
            raise StopIteration
        return self._fetch(batch)


def not_for_processes(why: str) -> InvalidArgument:
    return InvalidArgument(
        f"A feed of a ProcessGroup gathers the samples natively, and cannot: {why}. Feed a plain DataLoader of a "
        "TensorDataset, or use Loader(data, group=...). Otherwise let each process feed its own share, and gather "
        "them with torch.distributed."
    )


def refusal_of(destination: Destination, tensors: Tensors) -> Callable[[str], Exception] | None:
    """Makes the error if batches must be gathered natively, and cannot be. None: they need not be."""
    if destination.processes is not None:
        return not_for_processes
    return not_decoded if tensors.decodes else None


def refusal_of_next(batches: EpochBatches, refusal: Callable[[str], Exception]) -> Exception:
    """The sampler's error in place of the next batch, or that it cannot be gathered natively."""
    try:
        batches.take()
    except Exception as error:
        return error
    return refusal(
        f"batch {batches.done - 1} of this epoch is not simply rows of its tensors, or these were written meanwhile"
    )
