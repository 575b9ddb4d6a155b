"""What `penstock doctor loader` shows on standard error while it measures."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any

from .examination import Watch

PATIENCE = 60.0  # seconds without a batch until that is told


class Progress(Watch):
    """Draws what is measured if the descriptor is a terminal, and tells on any if no batch comes.

    If `is_stopped`, the next batch raises KeyboardInterrupt, and so does the end: other code may have caught the first
    one, or raised another error for it.
    """

    def __init__(self, descriptor: int = 2, patience: float = PATIENCE):
        self._descriptor = descriptor
        self._patience = patience
        self._draws = os.isatty(descriptor)
        self._what = ""
        self._timeout = 0.0
        self._last = time.monotonic()
        self._is_told = True
        self.is_stopped = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._wait, daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._ended.set()
        self._thread.join()
        self._draw("")
        if self.is_stopped:
            raise KeyboardInterrupt

    def begins(self, what: str, number: int, most: int, timeout: float) -> None:
        self._what = what
        self._timeout = timeout
        self.arrived()
        self._is_told = False
        self._draw(f"measuring {what}, {number} of at most {most}")

    def arrived(self) -> None:
        self._last = time.monotonic()
        if self.is_stopped:
            raise KeyboardInterrupt

    def look(self) -> None:
        """Tells once in a run if no batch has come for too long."""
        if self._is_told or time.monotonic() - self._last < self._patience:
            return
        self._is_told = True
        self._draw("")
        end = "it is waited for until you interrupt this"
        if self._timeout:
            end = f"this run is given up after {self._timeout:.0f} s without one"
        self._write(
            f"penstock: no batch has come for {self._patience:.0f} s, measuring {self._what}. The loader may hang, or "
            f"be slow: {end}.\n"
        )

    def _wait(self) -> None:
        while not self._ended.wait(self._patience / 10):
            self.look()

    def _draw(self, text: str) -> None:
        if self._draws:
            columns = os.get_terminal_size(self._descriptor).columns or 80
            self._write(f"\r{text[: columns - 1]}\033[K")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # there is no other place to report it
            os.write(self._descriptor, text.encode())
