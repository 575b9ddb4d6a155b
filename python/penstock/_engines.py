"""One engine for each device of this process. It is opened when it is first needed, and closed at exit."""

from __future__ import annotations

import atexit
import os
import pathlib
import sys
import threading
import weakref
from collections.abc import Iterable
from typing import Any

from . import _core, _others
from ._errors import Closed, DeviceError, InvalidArgument

_engines: dict[str, _core.Engine] = {}
_groups: dict[tuple[str, ...], _core.Group] = {}
_users: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.Lock()
_ending = False  # the program; guarded by the lock
_owner = os.getpid()


def resolve(device: Any) -> str:
    """The name of a device, one for each. "auto" is a GPU if there is one, otherwise the host. "cuda" is PyTorch's
    current GPU if PyTorch uses one, otherwise the first. "cpu" is the host, and so is "host:0". Also takes a
    `torch.device` or the number of a GPU."""
    name = f"cuda:{device}" if isinstance(device, int) and not isinstance(device, bool) else str(device)
    if name == "auto":
        name = _core.inventory()[0][0].backend
    if name == "cpu" or name.startswith("cpu:"):
        name = "host"
    if name == "host:0" or name.startswith("host:0,"):
        name = f"host:{name[7:]}".rstrip(":")
    if name == "cuda":
        torch = sys.modules.get("torch")
        initialized = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
        name = f"cuda:{torch.cuda.current_device() if initialized else 0}"
    return name


def engine_for(device: Any) -> _core.Engine:
    """The engine of a device. Opens it at the first call. Raises InvalidArgument for an unknown device, DeviceError in
    a worker process of a DataLoader and in a process forked from one that had opened the device, and Closed while the
    program ends."""
    _refuse_worker()
    spec = resolve(device)
    with _lock:
        engine = _engines.get(spec)
        if _ending:
            raise closed(f"penstock opens {spec} no more: the program is ending.")
        if engine is None:
            _core.share_processors(_others.processes_on_these_processors())
            engine = _engines[spec] = _core.Engine(spec, _cache_directory())
        elif os.getpid() != _owner:
            raise DeviceError(
                f"This process was forked after penstock had opened {spec}, and a device cannot be used on both "
                "sides of a fork. Use penstock in the parent only, or start processes with the 'spawn' method."
            )
    return engine


def engine_of_gpu(index: int) -> _core.Engine:
    return engine_for(f"cuda:{index}")


def engines_of(name: str, devices: Any) -> list[_core.Engine]:
    """The engines of a list of devices. Raises InvalidArgument, with the argument's `name`, for anything else."""
    if isinstance(devices, str) or not isinstance(devices, Iterable):
        raise InvalidArgument(f"{name} is a list of devices, such as ['cuda:0', 'cuda:1'], not {devices!r}.")
    return [engine_for(device) for device in devices]


def neighbours_of(engine: _core.Engine) -> list[_core.Engine]:
    """The engines of the other devices that reach its memory: of the GPUs that this process sees, all of which are
    opened, or of the host devices that are open."""
    if engine.is_cuda:
        gpus = [device.index for device in _core.inventory()[0] if device.backend == "cuda"]
        others = [engine_for(f"cuda:{index}") for index in gpus if index != engine.index]
    else:
        others = [other for other in host_engines() if other is not engine]
    return [other for other in others if other.reaches(engine)]


def relays_of(engine: _core.Engine, relay: Any) -> list[_core.Engine]:
    """The engines of the devices whose links help to fill that of `engine`: none, a list of them, or all ("auto")."""
    if relay is None:
        return []
    return neighbours_of(engine) if relay == "auto" else engines_of("relay", relay)


def group_for(engines: list[_core.Engine]) -> _core.Group:
    """What sends to several devices over the links of all. Made at the first call for these engines in this order.
    Raises InvalidArgument for devices that cannot be in one group."""
    key = tuple(engine.spec for engine in engines)
    with _lock:
        group = _groups.get(key)
        if group is None:
            group = _groups[key] = _core.Group(engines, _cache_directory())
    return group


def is_forked() -> bool:
    """True in a process forked from one that had opened a device."""
    return bool(_engines) and os.getpid() != _owner


def reap() -> None:
    """Lets go of the host memory that devices have read, of batches that nobody waits for. Does not block."""
    for engine in list(_engines.values()):
        engine.in_flight()


def host_engines() -> list[_core.Engine]:
    """The engines of open host devices. Their memory looks like any other memory of the host."""
    return [engine for engine in list(_engines.values()) if not engine.is_cuda]


def _refuse_worker() -> None:
    module = sys.modules.get("torch.utils.data")
    if module is not None and module.get_worker_info() is not None and _is_worker(module):
        raise DeviceError(
            "penstock cannot open a device in a worker process of a DataLoader. Let workers yield host tensors, and "
            "wrap the DataLoader in penstock.feed(), in the process that trains."
        )


def _is_worker(data: Any) -> bool:
    """True if this process is a DataLoader's worker. If a thread of it is one, PyTorch's worker info says the same."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code is not data._utils.worker._worker_loop.__code__:
        frame = frame.f_back
    return frame is not None


def _cache_directory() -> pathlib.Path | None:
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return pathlib.Path(base)
    home = os.environ.get("HOME", "")
    return pathlib.Path(home) / ".cache" if os.path.isabs(home) else None


def _forked() -> None:
    global _lock
    _lock = threading.Lock()
    if not _engines:
        global _owner
        _owner = os.getpid()


def close_at_exit(user: Any) -> None:
    """Calls `user.close()` before the engines are closed, if it is still there."""
    with _lock:
        _users.add(user)


def closed(message: str) -> BaseException:
    """A Closed. In a thread that works on while the program ends, what ends the thread, as `sys.exit()` does: if it
    printed a traceback then, Python could find the lock of `sys.stderr` held by it, and abort."""
    is_left = _ending and threading.current_thread() is not threading.main_thread()
    return SystemExit(message) if is_left else Closed(message)


@atexit.register
def _close_all() -> None:
    global _ending
    with _lock:
        _ending = True
        users = list(_users)
    for user in users:
        user.close()
    if os.getpid() == _owner:
        for opened in [*_groups.values(), *_engines.values()]:
            opened.close()


os.register_at_fork(after_in_child=_forked)
