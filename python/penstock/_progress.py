"""A line on the terminal, or in the notebook, about a call that takes seconds."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 2.0  # before anything is shown
BETWEEN_S = 0.5


class Progress:
    """Shows `text(seconds)` on standard error while it is entered, and removes it at the end.

    Shows nothing if standard error is a file or a pipe, or if torchrun started this process and it is not the first one
    of the host.
    """

    def __init__(self, text: Callable[[float], str]) -> None:
        self._text = text
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        if _is_watched(sys.stderr) and os.environ.get("LOCAL_RANK", "0") == "0":
            self._thread = threading.Thread(
                target=self._draw, args=(sys.stderr,), name="penstock-progress", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _draw(self, stream: Any) -> None:
        began, drawn = time.monotonic(), False
        with contextlib.suppress(Exception):  # a stream that was closed meanwhile
            while not self._ended.wait(BETWEEN_S if drawn else PATIENCE_S):
                stream.write(f"\r{self._text(time.monotonic() - began)[:100]}\033[K")
                stream.flush()
                drawn = True
            if drawn:
                stream.write("\r\033[K")
                stream.flush()


def _is_watched(stream: Any) -> bool:
    """True for a terminal, and for the output of a notebook's cell."""
    try:
        return type(stream).__module__.startswith("ipykernel.") or stream.isatty()
    except Exception:
        return False
