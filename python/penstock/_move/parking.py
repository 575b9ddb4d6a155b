"""park and swap: state leaves the GPU, and comes back as it was."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Literal

from .. import _core
from .._engines import engine_of_gpu, group_for, relays_of
from .._errors import Closed, InvalidArgument, OutOfMemory, note, out_of_memory
from .parts import PAGEABLE, PINNED, Found, Part, Where, find_storages, make_parts, refuse_fixed, with_blocks

Skip = Literal["frozen", "unchanged"]
FROZEN: Literal["frozen"] = "frozen"
UNCHANGED: Literal["unchanged"] = "unchanged"


@dataclasses.dataclass(frozen=True)
class ParkStatistics:
    """What a Parked holds, and what its latest trips took. A trip that was not made has zeros. See docs/park.md.

    Examples:
        >>> statistics = penstock.park(model).stats()
        >>> print(f"{statistics.host_bytes} bytes on the host, {statistics.down_gbps:.0f} GB/s")
        0 bytes on the host, 0 GB/s
    """

    bytes: int = 0
    """Of the storages that are parked."""
    host_bytes: int = 0
    """Held on the host for them, in memory or in a file."""
    down_bytes: int = 0
    """That the latest `park` copied to the host."""
    down_seconds: float = 0.0
    """Of the latest `park`; with the time to pin memory, if it took some."""
    up_bytes: int = 0
    up_seconds: float = 0.0
    """Of the latest `resume`. If `offload` had begun it ahead, only of the wait for its end."""
    down_link_gbps: float = 0.0
    """What the links carry at best, as `penstock link` has measured them; 0 if it has not."""
    up_link_gbps: float = 0.0
    skipped: dict[str, int] = dataclasses.field(default_factory=dict)
    """Bytes that the latest `park` did not copy, by reason: "frozen", "unchanged", "on the host"."""

    @property
    def down_gbps(self) -> float:
        return self.down_bytes / self.down_seconds / 1e9 if self.down_seconds else 0.0

    @property
    def up_gbps(self) -> float:
        return self.up_bytes / self.up_seconds / 1e9 if self.up_seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Every figure by name."""
        return {**dataclasses.asdict(self), "down_gbps": self.down_gbps, "up_gbps": self.up_gbps}


class Parked:
    """State that `park` took off the GPU. Its bytes are here: keep it until `resume`. Thread-safe.

    Takes and raises what `park` does.

    Examples:
        >>> state = penstock.park([model, optimizer])
        >>> state.resume()
        >>> assert not state.is_parked
    """

    def __init__(self, things: Any, where: Where = PINNED, skip: Skip | None = None) -> None:
        if where not in (PINNED, PAGEABLE) and not (isinstance(where, os.PathLike) and os.path.isdir(where)):
            raise InvalidArgument(f"where is 'pinned', 'pageable' or the pathlib.Path of a folder, not {where!r}.")
        if skip not in (None, FROZEN, UNCHANGED):
            raise InvalidArgument(f"skip is 'frozen', 'unchanged' or None, not {skip!r}.")
        if "torch" not in sys.modules:
            raise TypeError(f"park takes tensors of PyTorch and what holds some, not a {type(things).__name__}.")
        self._things = things
        self._where = os.fsdecode(where)
        self._skip = skip
        self._parts: list[Part] = []
        self._stats = ParkStatistics()
        self._process = os.getpid()
        self._lock = threading.RLock()

    @property
    def is_parked(self) -> bool:
        """True until `resume` has brought everything back."""
        return any(part.is_down for part in self._parts)

    def park(self) -> Parked:
        """Take the state off the GPU, as `penstock.park` does. Does nothing if it is parked."""
        with self._held():
            if not self.is_parked:
                self._leave()
        return self

    def resume(self, relay: Any = None) -> None:
        """Bring the state back. Blocks until it is there. Does nothing if it is there already.

        `relay`: other devices whose links carry a part of large tensors, or "auto": see `to_device`.

        Memory on the device comes from PyTorch's allocator, behind the work that is queued on PyTorch's current stream.
        The memory on the host stays, for the next `park`. Raises OutOfMemory, with the bytes, if there is no room on
        the device. After that and any other error everything stays parked, and a later `resume` may succeed.
        """
        with self._held():
            if self.is_parked:
                self._come_back(relay)

    def stats(self) -> ParkStatistics:
        """What it holds, and what the latest trips took."""
        return self._stats

    def __repr__(self) -> str:
        stats, state = self._stats, "parked" if self.is_parked else "resumed"
        rates = f"down {stats.down_gbps:.1f} GB/s, up {stats.up_gbps:.1f} GB/s"
        return f"<penstock.Parked: {state}, {stats.bytes / 1e9:.3f} GB, {rates}>"

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        if self._process != os.getpid():
            raise Closed("This state was parked by another process, from which this one was forked: resume it there.")
        with self._lock:
            yield

    def _leave(self) -> None:
        began = time.perf_counter()
        found, skipped = self._plan()
        try:
            with _arriving() as passages:
                for part in with_blocks(self._parts):
                    passages.append(part.down())
            for part in self._parts:
                part.empty()
        except BaseException as error:
            self._undo(error)
            raise
        self._has_left(found, skipped, began)

    def _come_back(self, relay: Any) -> None:
        began = time.perf_counter()
        groups = {engine: _group_to(engine, relay) for engine in {part.engine for part in self._parts}}
        with self._parked_unless_all_come(), _arriving() as passages:
            for part in self._parts:
                passages.append(part.up(groups[part.engine]))
        self._has_come(began)

    @contextlib.contextmanager
    def _parked_unless_all_come(self) -> Iterator[None]:
        """After an error everything is on the host."""
        try:
            yield
        except BaseException as error:
            for part in self._parts:
                part.empty()
            if not isinstance(error, OutOfMemory):
                raise
            refused = out_of_memory(
                f"There is no room on the device for the {self._stats.bytes} bytes of what was parked. They stay "
                f"parked: free memory there, and call resume() again. {error}"
            )
            refused.asked = self._stats.bytes
            raise refused from error

    def _undo(self, error: BaseException) -> None:
        """After an error while it leaves: what has left comes back."""
        gone = [part for part in self._parts if part.is_down]
        try:
            with _arriving() as passages:
                for part in gone:
                    passages.append(part.up())
        except BaseException as again:
            for part in gone:
                part.empty()
            error.parked = self  # type: ignore[attr-defined]
            note(error, f"A part has left, and did not come back ({again}). Call `parked.resume()` of this exception.")

    def _plan(self) -> tuple[dict[int, Found], dict[str, int]]:
        """Makes the parts those of what is to be parked now. Raises before anything is moved."""
        found: dict[int, Found] = {}
        skipped: dict[str, int] = {}
        engines: dict[Any, _core.Engine | None] = {}
        for each in find_storages(self._things):
            device = each.storage.device
            if device not in engines:
                engines[device] = engine_of(device)
            if engines[device] is None:
                skipped["on the host"] = skipped.get("on the host", 0) + each.storage.nbytes()
            else:
                found[each.storage._cdata] = each
        for part in self._parts:  # without storages that are gone or have changed their size
            part.slots = [s for s in part.slots if s.key in found and s.bytes == found[s.key].storage.nbytes()]
        self._parts = [part for part in self._parts if part.slots]
        kept = {slot.key for part in self._parts for slot in part.slots}
        new = [each for key, each in found.items() if key not in kept]
        refuse_fixed(new, engines)
        parts = make_parts(new, engines, self._where)
        _refuse_without_room(parts, self._where)
        self._parts += parts
        self._stamp(found, engines)
        stays = 0
        for slot in (slot for part in self._parts for slot in part.slots):
            if slot.stamp != found[slot.key].stamp:
                slot.stamp = None
            stays += slot.bytes if slot.stamp is not None else 0
        return found, {**skipped, str(self._skip): stays} if stays else skipped

    def _stamp(self, found: dict[int, Found], engines: dict[Any, _core.Engine | None]) -> None:
        """Notes what tells whether the bytes have changed."""
        if self._skip == FROZEN:
            for each in found.values():
                each.stamp_frozen()
        elif self._skip == UNCHANGED:
            for device, engine in engines.items():
                there = [each for each in found.values() if each.storage.device == device]
                pieces = [(each.storage.data_ptr(), each.storage.nbytes()) for each in there]
                aligned = [place for place, (address, _) in enumerate(pieces) if address % 16 == 0]
                if aligned:
                    hashes = _core.hash_pieces(engine, [pieces[place] for place in aligned])
                    for place, each in zip(aligned, hashes, strict=True):
                        there[place].stamp = each

    def _has_left(self, found: dict[int, Found], skipped: dict[str, int], began: float) -> None:
        for part in self._parts:
            for slot in part.slots:
                slot.note(found[slot.key])
        whole = sum(part.bytes for part in self._parts)
        links = [engine.ceilings for engine in {part.engine for part in self._parts}]
        self._stats = dataclasses.replace(
            self._stats,
            bytes=whole,
            host_bytes=sum(part.host_bytes for part in self._parts),
            down_bytes=whole - skipped.get(str(self._skip), 0),
            down_seconds=time.perf_counter() - began,
            skipped=skipped,
            down_link_gbps=sum(down for down, _ in links) / 1e9,
            up_link_gbps=sum(up for _, up in links) / 1e9,
        )

    def _has_come(self, began: float) -> None:
        seconds = time.perf_counter() - began
        self._stats = dataclasses.replace(self._stats, up_bytes=self._stats.bytes, up_seconds=seconds)
        if self._where not in (PINNED, PAGEABLE) and self._skip is None:
            self._parts = []  # and their files


def park(things: Any, where: Where = PINNED, *, skip: Skip | None = None) -> Parked:
    """Take the tensors of modules, optimizers and nests off their GPUs, and return what brings them back.

    Their storages are copied to memory of the host and emptied; PyTorch's allocator then has the GPU's memory.
    Parameters, buffers, gradients and optimizer state stay the same objects, with their views, ties and hooks.
    `Parked.resume()` gives each storage memory and its bytes again, at another address. If CUDA graphs are to replay,
    make the tensors in a region of `penstock.memory_saver`, and pause the region instead. Until the resume PyTorch,
    from 2.12 on, raises an error for what uses them. docs/park.md says more.

    The copies come after the work that is queued on PyTorch's current stream; work on other streams must be done.
    Blocks until the bytes are on the host. Only one thread may use the tensors meanwhile. After an error all is as it
    was.

    Args:
        things: A module, an optimizer, or any nest of these and of tensors. Tensors on the host stay there.
        where: "pinned" is page-locked memory of penstock's pools, of the exact size, at the speed of the link. The
            Parked keeps it for its next `park()`, which pins nothing. "pageable" is ordinary memory. A pathlib.Path is
            a folder: the bytes go to files there without names, through pinned staging memory. The files are gone after
            `resume`, or with the process if it ends first. With `skip` the Parked keeps them.
        skip: What a later `park()` of the same Parked does not copy again, since the copy on the host is valid.
            "frozen": parameters that require no gradient and that PyTorch has not written since. PyTorch counts no
            writes through `.data` nor by kernels of other libraries: leave it out if frozen parameters may be written
            that way. "unchanged": storages with the same hash as at the last `park()`. The device computes hashes of
            128 bits at each `park()`. If one word of 8 bytes has changed, the hash has, too; otherwise a change is
            missed once in 2^128 times.

    Raises:
        InvalidArgument: A tensor cannot be parked, and the error names it: it is in memory of another library or
            process or of a CUDA graph, sparse, or parked already. Or `where` or `skip` is none of these.
        TypeError: It is something else.
        Error: OutOfMemory if the host has no room, DeviceError, or one of a file, as in `save_safetensors`.

    Examples:
        >>> state = penstock.park([model, optimizer])  # another model may use the GPU now
        >>> state.resume()
    """
    return Parked(things, where, skip).park()


@contextlib.contextmanager
def parked(things: Any, where: Where = PINNED) -> Iterator[Parked]:
    """A context in which `things` are parked. They come back at its end.

    Args:
        things, where: As in `park`.

    Raises:
        Error, TypeError: As `park`, and at the end as `Parked.resume`.

    Examples:
        >>> with penstock.parked(model) as state:
        ...     print(state.stats().bytes, "bytes of the GPU are free")
        0 bytes of the GPU are free
    """
    state = park(things, where)
    try:
        yield state
    finally:
        state.resume()


def swap(out: Any, in_: Parked) -> Parked:
    """Park `out` while `in_` comes back, and return what brings `out` back.

    Both directions of the link are used at once. A part of `in_` takes memory once parts of `out` have freed as much,
    so both need not fit on the GPU. Blocks until both are done. After an error both are as they were.

    Args:
        out: What `park` takes, or a Parked that was resumed, whose memory on the host is used again.
        in_: A Parked.

    Raises:
        InvalidArgument: Both are the same state.
        TypeError: `in_` is no Parked, or `out` is nothing that `park` takes.
        Error: As `park` and `Parked.resume`.

    Examples:
        >>> waiting = penstock.park(decoder)
        >>> waiting = penstock.swap(encoder, waiting)  # the decoder is back, and the encoder is parked
        >>> waiting.resume()
    """
    if not isinstance(in_, Parked):
        raise TypeError(f"swap brings back a penstock.Parked, not a {type(in_).__name__}.")
    leaving = out if isinstance(out, Parked) else Parked(out)
    if leaving is in_:
        raise InvalidArgument("swap takes two states: what leaves is what comes back.")
    first, second = sorted((leaving, in_), key=id)
    with first._held(), second._held():
        if leaving.is_parked or not in_.is_parked:
            leaving.park()
            in_.resume()
        else:
            _exchange(leaving, in_)
    return leaving


def _exchange(leaving: Parked, coming: Parked) -> None:
    began = time.perf_counter()
    found, skipped = leaving._plan()
    for _ in with_blocks(leaving._parts):
        pass  # takes memory of the host before anything is moved
    waiting = list(coming._parts)
    room: dict[str, int] = {}
    try:
        with coming._parked_unless_all_come(), _arriving() as passages:
            for part in leaving._parts:
                passages.append(part.down())
            for part, down in zip(leaving._parts, tuple(passages), strict=True):
                down.wait()
                part.empty()
                room[part.engine.spec] = room.get(part.engine.spec, 0) + part.bytes
                while waiting and waiting[0].bytes <= room.get(waiting[0].engine.spec, 0):
                    room[waiting[0].engine.spec] -= waiting[0].bytes
                    passages.append(waiting.pop(0).up())
            passages += [part.up() for part in waiting]
    except BaseException as error:
        leaving._undo(error)
        raise
    leaving._has_left(found, skipped, began)
    coming._has_come(began)


def engine_of(device: Any) -> _core.Engine | None:
    """The engine that moves what is on a device of PyTorch; None if it is not on a GPU."""
    return engine_of_gpu(device.index) if device.type == "cuda" else None


def _group_to(engine: _core.Engine, relay: Any) -> _core.Group | None:
    """What sends to a device over its own link and those of others. None if there are no others."""
    others = [other for other in relays_of(engine, relay) if other is not engine]
    return group_for([engine, *others]) if others else None


def _refuse_without_room(parts: list[Part], where: str) -> None:
    if where not in (PINNED, PAGEABLE):
        for part in parts:
            part.block()  # takes the room
        return
    asked, free, pinned = sum(part.host_bytes for part in parts), _core.free_host_memory_bytes(), ""
    if where == PINNED:
        for engine in {part.engine for part in parts}:
            free, holders = engine.pinned_memory()
            pinned = f" Of pinned memory, {holders}." if holders else ""
    if asked <= free:
        return
    refused = out_of_memory(
        f"{asked} bytes are to be parked, and penstock may take {free} more of the host. Nothing was moved. Free "
        "memory there, raise the container's limit, or park less: docs/memory.md says how much may be taken in all."
        + pinned
    )
    refused.asked, refused.free = asked, free
    raise refused


@contextlib.contextmanager
def _arriving() -> Iterator[list[_core.Passage]]:
    """Waits at its end until all has arrived; after an error until nothing is on its way any more."""
    passages: list[_core.Passage] = []
    try:
        yield passages
        for passage in passages:
            passage.wait()
    except BaseException:
        for passage in passages:
            with contextlib.suppress(Exception):  # what failed has ended
                passage.wait()
        raise
