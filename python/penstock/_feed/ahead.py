"""`penstock run --feed`: copies the batches of a program's DataLoaders ahead, without an edit of the program.

The program gets the batches that it would get, on the host. It is watched which of their tensors it copies to a device
as they are. From then on feed has these tensors on the device ahead of the loop, and `tensor.to(device)` and
`tensor.cuda()` give a copy of what is there already, if the tensor has not changed. So a program that looks at a batch
on the host, now and then or always, sees what it would see. Whatever is in doubt goes as it does without penstock.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import os
import pathlib
import pickle
import random
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

import torch
from torch.compiler import is_compiling

from .wrapper import feed

_WATCHED = 3  # batches
_LATE = 2  # batches that an iterator has given, whose tensors may still be copied
_MOST_MISSES = 3  # batches on end that were sent for nothing

_device_types = {"cuda"}  # to which a copy is worth while
_accounts: dict[Any, _Account] = {}  # by the lines that made DataLoaders, and whether these have workers
_folder = ""
_published = 0.0


class _Account:
    """What is known of the DataLoaders that a line makes, and what was done for them."""

    def __init__(self, place: str, has_workers: bool):
        self.place = place
        self.batches = self.fed = self.misses = 0
        self.watched: list[_Batch] = []
        self.device: torch.device | None = None  # to which its batches are fed
        self.sent: set[int] = set()  # the places of their tensors that are
        # Why they are left alone from here on. Workers read ahead in any case.
        self.why = "" if has_workers else "it has no workers, which could make batches ahead of the program"

    def judge(self, batch: _Batch) -> None:
        """Called when the program has had its time to copy the batch."""
        if batch.is_watched and not (self.device or self.why):
            self.watched.append(batch)
            if len(self.watched) == _WATCHED:
                self._decide()
        elif batch.sends:
            self.misses = 0 if batch.is_fed else self.misses + 1
            if self.misses == _MOST_MISSES:
                self.why = batch.why or "the program stopped copying its batches"

    def _decide(self) -> None:
        devices = {device for batch in self.watched for each in batch.went.values() for device in each}
        self.sent = set.intersection(*(set(batch.went) for batch in self.watched))
        if len(devices) > 1:
            self.why = "they went to several devices"
        elif self.sent:
            (self.device,) = devices
        else:
            reasons = (batch.why for batch in self.watched if batch.why)
            self.why = next(reasons, "its batches are not copied to a GPU as they come")
        self.watched.clear()


class _Batch:
    """A batch of a DataLoader: the tensors in it, by their places, and what became of them."""

    def __init__(self, content: Any, account: _Account):
        self.content, self.account = content, account
        self.tensors = {i: tensor for i, tensor in enumerate(_tensors(content)) if _is_plain(tensor)}
        self.versions = {i: tensor._version for i, tensor in self.tensors.items()}
        self.is_watched = account.device is None
        self.sends = [] if account.why else [i for i in self.tensors if i in account.sent]
        self.went: dict[int, set[torch.device]] = collections.defaultdict(set)
        self.stream: Any = None
        self.is_fed = False
        self.why = ""

    def hand_out(self, there: Mapping[int, Any]) -> Any:
        """What the program gets. `there`: what it is given, or what is compared, when it copies its own tensors."""
        for i, copy in there.items():
            tensor, key = self.tensors[i], id(self.tensors[i])
            alive = weakref.ref(tensor, lambda _, key=key: _handed.pop(key, None))
            _handed[key] = _Handed(alive, self, i, copy, tensor.untyped_storage().data_ptr())
        content, self.content, self.tensors = self.content, None, {}
        return content

    def retire(self) -> None:
        _forget(lambda handed: handed.batch is self)
        self.account.judge(self)


class _Handed(NamedTuple):
    """A tensor that the program has, and its copy: on the host while it is watched, then on the device."""

    alive: Callable[[], Any]
    batch: _Batch
    i: int
    copy: Any
    memory: int

    def copy_to(self, device: torch.device, tensor: Any) -> Any:
        """The tensor's copy on the device. None: PyTorch is to make it."""
        batch = self.batch
        if tensor._version != batch.versions[self.i] or (batch.is_watched and not _are_equal(tensor, self.copy)):
            batch.why = "its batches changed before they were copied"
        elif batch.is_watched:
            batch.went[self.i].add(device)
            return None
        elif device != batch.account.device:
            batch.why = "they went to several devices"
        elif _stream_of(device) != batch.stream:
            batch.why = "they are copied on another stream than that of the loop"
        elif self.copy.stride() == tensor.stride():
            batch.account.fed += not batch.is_fed
            batch.is_fed = True
            _handed.pop(id(tensor), None)
            return self.copy.clone()  # whose memory is its own: the tensors that feed sends together share theirs
        _handed.pop(id(tensor), None)
        return None


_handed: dict[int, _Handed] = {}  # by the ids of the tensors


class _Source:
    """The loader that is fed: it gives each batch with those of its tensors that are sent."""

    num_workers = 1

    def __init__(self, read: Callable[[Any], Any], iterator: Any, account: _Account):
        self._read, self._iterator, self._account = read, weakref.ref(iterator), account
        self.latest: _Batch | None = None  # None: the DataLoader has raised something

    def __iter__(self) -> _Source:
        return self

    def read(self) -> Any:
        return self._read(self._iterator())

    def __next__(self) -> Any:
        self.latest = None
        self.latest = batch = _Batch(self.read(), self._account)
        return batch, [batch.tensors[i] for i in batch.sends]


class _Epoch:
    """What a DataLoader's iterator gives in one epoch."""

    def __init__(self, source: _Source, account: _Account):
        self._source, self._account = source, account
        self._fed: Any = None
        self._stream: Any = None
        self._given: collections.deque[_Batch] = collections.deque()

    def next(self) -> Any:
        account = self._account
        if self._fed is None and account.device and not account.why:
            self._begin(account.device)
        if self._fed is not None:
            batch, there = self._next_fed()
        elif account.why:
            return self._source.read()
        else:
            batch = self._next_watched()
            there = {i: tensor.clone() for i, tensor in batch.tensors.items()}
        account.batches += 1
        self._given.append(batch)
        if len(self._given) > _LATE:
            self._given.popleft().retire()
        return batch.hand_out(there)

    def _next_watched(self) -> _Batch:
        before = _random_states() if self._given else None  # samplers draw their seeds as they begin
        batch, _ = next(self._source)
        if before is not None and before != _random_states():
            self._account.why = "reading ahead would change the program's random numbers: its sampler draws from them"
        return batch

    def _begin(self, device: torch.device) -> None:
        """Puts feed around what is left of the epoch."""
        try:
            fed: Any = feed(self._source, device, sharded=True)
            fed._warn = lambda: None  # of what the program does not know
            self._fed, self._stream = iter(fed), _stream_of(device)
        except Exception as error:
            self._account.why = f"penstock cannot feed {device}: {error}"

    def _next_fed(self) -> tuple[_Batch, dict[int, Any]]:
        account = self._account
        try:
            batch, there = next(self._fed)
        except Exception as error:
            if self._source.latest is None:
                raise
            batch, there = self._source.latest, []
            account.why = f"a batch could not be sent: {error}"
        batch.stream = self._stream if _stream_of(account.device) == self._stream else None
        return batch, {} if account.why else dict(zip(batch.sends, there, strict=True))

    def __del__(self) -> None:
        if not sys.is_finalizing():
            while self._given:
                self._given.popleft().retire()
            _publish(at_once=False)


def follow(module: Any, folder: str) -> None:
    """From here on, DataLoaders are followed. What was done is written into the folder, for `penstock run`. `module`:
    torch.utils.data.dataloader."""
    global _folder
    _folder = folder
    Finalize(None, _publish, exitpriority=0)
    os.register_at_fork(after_in_child=_accounts.clear)
    loader, iterator, tensor = module.DataLoader, module._BaseDataLoaderIter, vars(torch)["Tensor"]
    make, begin, read = loader.__init__, loader.__iter__, iterator.__next__

    @functools.wraps(make)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        vars(self)["_penstock_place"] = _place(self)
        make(self, *arguments, **options)

    @functools.wraps(begin)
    def __iter__(self: Any) -> Any:
        inner = begin(self)
        if not isinstance(inner, iterator):
            return inner
        vars(inner).pop("_penstock_epoch", None)
        if sys._getframe(1).f_globals.get("__name__", "").startswith("penstock."):
            return inner
        place, has_workers = vars(self).get("_penstock_place") or _place(self), self.num_workers > 0
        account = _accounts.setdefault((place, has_workers), _Account(place, has_workers))
        if not account.why:
            vars(inner)["_penstock_epoch"] = _Epoch(_Source(read, inner, account), account)
        return inner

    @functools.wraps(read)
    def __next__(self: Any) -> Any:
        epoch = vars(self).get("_penstock_epoch")
        return read(self) if epoch is None else epoch.next()

    loader.__init__, loader.__iter__, iterator.__next__ = __init__, __iter__, __next__
    _look_first(tensor, "to", functools.partial(_copy_of, _target))
    _look_first(tensor, "cuda", functools.partial(_copy_of, _cuda_target))
    _look_first(tensor, "numpy", _expose)


def _place(loader: Any) -> str:
    """Of the program's line, below the libraries that it calls."""
    frame = sys._getframe(2)
    while frame.f_back and frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is loader:
        frame = frame.f_back
    while frame.f_back and "/site-packages/" in frame.f_code.co_filename:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _tensors(content: Any) -> Iterator[Any]:
    if isinstance(content, torch.Tensor):
        yield content
    elif isinstance(content, Mapping | list | tuple):
        for part in content.values() if isinstance(content, Mapping) else content:
            yield from _tensors(part)


def _is_plain(tensor: Any) -> bool:
    """True of a tensor that feed sends as PyTorch would, and whose changes can be seen."""
    if type(tensor) is not torch.Tensor or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return False
    odd = tensor.requires_grad, tensor.is_quantized, tensor.is_inference(), tensor.is_conj(), tensor.is_neg()
    return not any(odd)


def _are_equal(one: Any, other: Any) -> bool:
    return torch.equal(*(tensor.reshape(-1).view(torch.uint8) for tensor in (one, other)))


def _stream_of(device: Any) -> Any:
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def _random_states() -> bytes:
    numpy = sys.modules.get("numpy.random")
    return pickle.dumps((torch.get_rng_state().tolist(), random.getstate(), numpy and numpy.get_state()))


def _forget(which: Callable[[_Handed], bool]) -> None:
    for key, handed in list(_handed.items()):
        if which(handed):
            _handed.pop(key, None)


def _look_first(tensor: Any, name: str, look: Callable[..., Any]) -> None:
    """Has a method of tensors give what `look` finds, or PyTorch's own result if that is None, as graphs always get."""
    plain, own = getattr(tensor, name), f"_penstock_{name}"

    @functools.wraps(plain)
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        if is_compiling():
            return getattr(self, own)(*arguments, **options)
        found = None
        if _handed:
            with contextlib.suppress(Exception):  # what is wrong, PyTorch's own says
                found = look(self, *arguments, **options)
        return plain(self, *arguments, **options) if found is None else found

    setattr(tensor, own, plain)
    setattr(tensor, name, method)


def _copy_of(target_of: Callable[..., Any], tensor: Any, *arguments: Any, **options: Any) -> Any:
    """What feed has brought to the device to which `tensor` is to be copied."""
    handed = _handed.get(id(tensor))
    if handed is None or handed.alive() is not tensor:
        return None
    device = target_of(tensor, *arguments, **options)
    return None if device is None else handed.copy_to(device, tensor)


def _expose(tensor: Any, *_: Any, **__: Any) -> None:
    """The tensor's memory is given to others, whose writing nobody sees."""
    memory = tensor.untyped_storage().data_ptr()
    _forget(lambda handed: handed.memory == memory)


def _target(tensor: Any, *arguments: Any, copy: bool = False, **options: Any) -> torch.device | None:
    """The device to which `tensor.to` with these arguments copies what is in it. None: it does something else."""
    device, dtype, _, layout = torch._C._nn._parse_to(*arguments, **options)
    as_it_is = dtype in (None, tensor.dtype) and layout in (None, torch.preserve_format)
    if device is None or device.type not in _device_types or not as_it_is:
        return None
    return torch.device("cuda", torch.cuda.current_device()) if device == torch.device("cuda") else device


def _cuda_target(tensor: Any, device: Any = None, non_blocking: bool = False, **options: Any) -> torch.device | None:
    return _target(tensor, "cuda" if device is None else device, **options)


def _publish(at_once: bool = True) -> None:
    """Writes what was done so far, so that it is known even if the process is killed."""
    global _published
    if not at_once and time.monotonic() < _published + 1:
        return
    _published = time.monotonic()
    rows = [
        {
            "place": account.place,
            "device": str(account.device or ""),
            "batches": account.batches,
            "fed": account.fed,
            "why": account.why or ("" if account.fed else "too few of its batches were seen"),
        }
        for account in _accounts.values()
    ]
    path = pathlib.Path(_folder, f"feed.{os.getpid()}.json")
    with contextlib.suppress(OSError):  # `penstock run` may have ended
        path.with_suffix(".new").write_text(json.dumps(rows))
        path.with_suffix(".new").replace(path)
