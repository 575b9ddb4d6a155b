"""`penstock doctor loader FILE.py:NAME`, run by doctor/command/doctor.cpp in its own Python or the PATH's python3."""

from __future__ import annotations

import importlib
import inspect
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from .._errors import InvalidArgument
from .examination import examine
from .progress import Progress

INTERRUPTED = 130
PATIENCE = 5.0  # seconds in which the examination may end by itself after a signal


def main(file: str, name: str, seconds: str, step_ms: str, descriptor: str) -> int:
    """Prints the verdict, and writes its JSON to the descriptor, if there is one. Returns the exit status.

    SIGINT is blocked until here, as Python's own start would end with a traceback.
    """
    try:
        _end_at_once()
        loader = _load(file, name)
        step_seconds = float(step_ms) / 1e3 if step_ms else None
        with Progress() as progress:
            _end_workers_first(progress)
            verdict = examine(loader, progress, seconds=float(seconds), step_seconds=step_seconds)
        print(verdict, flush=True)
        if descriptor:
            with open(int(descriptor), "w") as out:
                out.write(json.dumps(verdict.as_dict(), indent=2) + "\n")
    except KeyboardInterrupt:
        return INTERRUPTED
    except InvalidArgument as error:
        if not _is_of_doctor(error):
            raise
        _refuse(f"{file}:{name}: {error}")
    return 0


def _end_at_once() -> None:
    """A signal ends the process without a word. While modules are imported, an exception may be caught by anyone."""
    _on_signals(signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _end_workers_first(progress: Progress) -> None:
    """A signal interrupts the examination, which ends its workers. Later signals change nothing.

    The interrupt may strike where PyTorch has just taken a lock, which it then asks for again as it ends its workers.
    So after some seconds the workers are killed, and the process ends without further ado.
    """
    owner = os.getpid()
    stopped = threading.Event()

    def end_at_last() -> None:
        stopped.wait()
        time.sleep(PATIENCE)
        for worker in multiprocessing.active_children():
            worker.kill()
            worker.join(1)
        os._exit(INTERRUPTED)

    def stop(number: int, frame: Any) -> None:
        if os.getpid() != owner:
            os._exit(0)  # of a worker, PyTorch takes another status for a failure
        if not progress.is_stopped:
            progress.is_stopped = True
            stopped.set()
            raise KeyboardInterrupt

    threading.Thread(target=end_at_last, daemon=True).start()
    _on_signals(stop)


def _on_signals(action: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, action)


def _load(file: str, name: str) -> Any:
    """The object of this name, or what it returns if it can be called. The file is a module, as if it were imported."""
    sys.argv = [file]
    module = _import(file)
    if not hasattr(module, name):
        _refuse(
            f'{file} defines no {name}. If it does so below `if __name__ == "__main__":`, move it to the level of the '
            "module, or into a function without arguments that returns the loader."
        )
    found = getattr(module, name)
    return _call(f"{file}:{name}", found) if callable(found) and not _is_loader(found) else found


def _import(file: str) -> ModuleType:
    """The module of the file: by itself or, if its relative imports fail so, as a part of its package."""
    path = Path(os.path.abspath(file))
    folder, names = path.parent, [path.stem]
    others = set(sys.modules)
    sys.path.insert(0, str(folder))
    if path.stem not in others or not _is_package(folder):
        try:
            return _import_as(path.stem, file, others)
        except ImportError as error:
            if not _is_relative(error):
                raise
    sys.path.insert(0, "")
    while True:
        names.insert(0, folder.name)
        if not folder.name.isidentifier():
            _refuse(
                f"{file} imports relatively, but its folder cannot be a package: rename the folder, or import by names."
            )
        folder = folder.parent
        if _is_package(folder):
            continue
        sys.path[0] = str(folder)
        try:
            return _import_as(".".join(names), file, others)
        except ImportError as error:
            if "attempted relative import beyond top-level package" not in str(error):
                raise


def _import_as(name: str, file: str, others: set[str]) -> ModuleType:
    """The module of the file, by this name. The others were imported before the file."""
    package = name.partition(".")[0]
    if package in others:
        what = "file" if package == name else "folder"
        _refuse(f"{file}: Python has a module {package} of its own. Rename the {what}.")
    try:
        module = importlib.import_module(name)
    except SystemExit as end:
        _refuse(
            f"{file} ends itself ({_code(end)}) when it is imported without arguments. Put what ends it, and what "
            'needs arguments, below `if __name__ == "__main__":`, or give the loader a file of its own.'
        )
    if not os.path.samefile(module.__file__ or "/", file):
        _refuse(f"{file}: Python finds {module.__file__} in its place. Rename the file.")
    return module


def _is_relative(error: BaseException | None) -> bool:
    """True if a relative import failed for want of a package, also if what was tried in its place failed then."""
    if error is None:
        return False
    return "attempted relative import" in str(error) or _is_relative(error.__context__)


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").exists()


def _is_loader(found: Any) -> bool:
    """A subclass of DataLoader may be callable."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(found, data.DataLoader)


def _call(name: str, function: Any) -> Any:
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # a decorator may supply arguments
    except (TypeError, ValueError):
        signature = inspect.Signature()  # some objects do not tell their arguments
    try:
        signature.bind()
    except TypeError:
        _refuse(
            f"{name} needs arguments: {signature}. Pass the name of a function that needs none, such as one that calls "
            "this one."
        )
    try:
        return function()
    except SystemExit as end:
        _refuse(
            f"{name} ends itself ({_code(end)}) when it is called without arguments. Pass the name of a function that "
            "returns the loader."
        )


def _code(end: SystemExit) -> Any:
    return 0 if end.code is None else end.code


def _is_of_doctor(error: InvalidArgument) -> bool:
    """False if the user's own code raised it, such as a dataset that uses penstock."""
    *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__") == examine.__module__


def _refuse(message: str) -> NoReturn:
    sys.exit("penstock: " + " ".join(message.split()))
