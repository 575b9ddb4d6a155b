"""Functions that several tests use."""

import collections.abc
import dataclasses
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import penstock
from penstock import _core
from penstock._doctor.verdict import Timings
from penstock._move.transfers import expander_for

HAS_GPU = any(device.backend == "cuda" for device in penstock.devices())

gpu = pytest.mark.skipif(not HAS_GPU, reason="no GPU")
two_gpus = pytest.mark.skipif(
    sum(device.backend == "cuda" for device in penstock.devices()) < 2, reason="fewer than two NVIDIA GPUs"
)


def same(a, b) -> bool:
    """Same structure, types, dtypes, shapes and bytes, wherever the arrays lie."""
    import torch

    a, b = penstock.to_host(a), penstock.to_host(b)
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        # NumPy has two names for the same type, and PyTorch one.
        a, b = (torch.as_tensor(x.astype(x.dtype.name) if isinstance(x, np.ndarray) else x) for x in (a, b))
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.cpu(), b.cpu())
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, collections.abc.Mapping):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if dataclasses.is_dataclass(a):
        return same(vars(a), vars(b))
    return a == b


def groups_of(*numbers) -> dict[str, list[str]]:
    """Groups of the host devices with these numbers: plain ones, ones whose copies are late, and slow links."""
    names = [f"host:{number}" for number in numbers]
    late, links = ([f"{name},{options}" for name in names] for options in ("late=1", "link=0.5,peer=2"))
    return {"plain": names[:2], "late": late, "links": links[:2]}


def send_to(engine, tree, pin=False):
    """A nest on its way to an engine's device: like to_device, but does not wait for the sources."""
    return _core.Destination.device(engine).send(tree, [expander_for(engine)], pin)


def random_bytes(random, count):
    import torch

    return torch.from_numpy(random.integers(0, 256, count, dtype=np.uint8))


def times(**changed) -> Timings:
    """What an examination of a DataLoader measured: two workers of which fetch takes 20 ms a batch, collate 4 and
    transport 2. Four workers give twice as much."""
    planted = {
        "workers": 2,
        "samples": 8.0,
        "whole": 0.012,
        "fetch": 0.020,
        "collate": 0.004,
        "transport": 0.002,
        "without": {"fetch": 0.003, "collate": 0.010, "transport": 0.0115},
        "by_workers": {0: 0.024, 1: 0.024, 2: 0.012, 4: 0.006, 8: 0.0059},
        "batches": 1000,
    }
    return Timings(**(planted | changed))


def place(device: str) -> str:
    """PyTorch's name for the device."""
    return device if device.startswith("cuda") else "cpu"


def is_gpu(device: str) -> bool:
    return device.startswith("cuda")


def forgotten(path) -> bool:
    """Has the page cache forget a file. False if its file system has no other place for it."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            os.preadv(file.fileno(), [bytearray(1)], path.stat().st_size - 1, os.RWF_NOWAIT)
        except BlockingIOError:
            return True
        except OSError:
            pass
    return False


def run_program(text, *arguments, **environment) -> subprocess.CompletedProcess:
    """What came of a program of Python, whose variables of the environment are these besides."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", text, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=os.environ | environment)


def run_command(*arguments) -> subprocess.CompletedProcess:
    """What came of this package's command, without the program that an installed package has."""
    return run_program("import sys, penstock._command as command; sys.exit(command.main())", *arguments)


def run_in_threads(work, each) -> None:
    """Runs `work`, with each of these or so many times without any, in threads at once, and waits for all of them. What
    it raises there is for itself to keep."""
    arguments = [()] * each if isinstance(each, int) else [(one,) for one in each]
    threads = [threading.Thread(target=work, args=own) for own in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
