"""The line about calls that take seconds."""

import io
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import penstock
import safetensors_files as files
from penstock import _progress
from penstock._loader.columns import Fields
from penstock._move import weights as _weights


class Terminal(io.StringIO):
    def __init__(self):
        super().__init__()
        self.drawn = threading.Event()

    def isatty(self):
        return True

    def write(self, text):
        self.drawn.set()
        return super().write(text)


@pytest.fixture
def terminal(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(_progress, "sys", SimpleNamespace(stderr=stream))  # pytest sets its own in each phase
    monkeypatch.setattr(_progress, "PATIENCE_S", 0)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return stream


def test_it_is_drawn_on_a_terminal_and_removed(terminal):
    with _progress.Progress(lambda seconds: "x" * 1000):
        assert terminal.drawn.wait(60)
    assert terminal.getvalue().startswith("\r" + "x" * 100 + "\033[K")
    assert terminal.getvalue().endswith("\r\033[K")


def test_it_is_drawn_by_the_first_process_alone_and_not_into_files(terminal, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert _progress.Progress(lambda seconds: "").__enter__()._thread is None
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setattr(_progress.sys, "stderr", io.StringIO())
    assert _progress.Progress(lambda seconds: "").__enter__()._thread is None
    monkeypatch.setattr(_progress.sys, "stderr", None)
    assert _progress.Progress(lambda seconds: "").__enter__()._thread is None


def test_a_text_that_fails_does_not_fail_the_call(terminal):
    failed = threading.Event()

    def text(seconds):
        failed.set()
        raise OSError("no terminal any more")

    with _progress.Progress(text):
        assert failed.wait(60)


def test_a_load_says_how_many_bytes_it_has_read(terminal, monkeypatch, tmp_path):
    path = files.write(tmp_path / "a", {"w": ("U8", (300_000_000,), bytes(300_000_000))})
    wait = _weights._wait

    def wait_and_look(load, step):
        result = wait(load, step)
        terminal.drawn.clear()
        assert terminal.drawn.wait(60)
        return result

    monkeypatch.setattr(_weights, "_wait", wait_and_look)
    assert penstock.load_safetensors(path, "host")["w"].shape == (300_000_000,)
    assert "load_safetensors: 0.3 of 0.3 GB, " in terminal.getvalue()


def wait_for(says, terminal):
    while says not in terminal.getvalue():
        terminal.drawn.clear()
        assert terminal.drawn.wait(60)


def test_a_shared_dataset_says_what_it_does(terminal):
    def make():
        wait_for("SharedDataset 'dataset': makes the data, ", terminal)
        return np.arange(5)

    penstock.SharedDataset(make)


def test_a_loader_says_what_it_does(terminal, monkeypatch):
    class Slow:
        def __array__(self, dtype=None, copy=None):
            wait_for("Loader: reads and converts the data, ", terminal)
            return np.arange(5)

    def named(fields):
        wait_for("Loader: prepares memory for host, ", terminal)
        return as_ever(fields)

    as_ever = Fields.named
    monkeypatch.setattr(Fields, "named", named)
    assert len(penstock.Loader({"x": Slow()}, 5, device="host")) == 1
    assert terminal.getvalue().endswith("\r\033[K")
