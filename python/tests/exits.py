"""exits.py KIND RUNS: children that are forked end while a daemon thread of theirs works. Prints their exit codes.

A child that hangs is killed, and its code is None.
"""

import collections
import faulthandler
import os
import random
import signal
import sys
import tempfile
import threading
import time

import numpy as np

import penstock

PATIENCE_S = 120
SLOW = "host:link=1"  # a modelled link, over which calls take long enough to be under way at the end


def feed(rows, width, **options):
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.zeros(rows, width))
    return over(penstock.feed(DataLoader(data, 4, **options), "host", native=not options))


def over(iterable):
    def run():
        for _ in iterable:
            working.set()

    return run


def one():
    x = np.zeros(4 << 20, np.float32)
    return lambda: penstock.to_device(x, SLOW)


def many():
    x = [np.zeros(1000, np.float32) for _ in range(4000)]
    return lambda: penstock.to_device(x, SLOW)


def back():
    x = penstock.to_device(np.zeros(4 << 20, np.float32), SLOW)
    return lambda: penstock.to_host(x)


def group():
    x, names = [np.zeros(1 << 20, np.float32)], ["host:1,link=1", "host:2,link=1"]
    return lambda: penstock.to_device(x, group=names)


def load():
    path = os.path.join(tempfile.mkdtemp(), "x.safetensors")
    penstock.save_safetensors({"x": np.zeros(1 << 20, np.float32)}, path)
    return lambda: penstock.load_safetensors(path, SLOW)


def save():
    path = os.path.join(tempfile.mkdtemp(), "x.safetensors")
    x = {"x": penstock.to_device(np.zeros(1 << 20, np.float32), SLOW)}
    return lambda: penstock.save_safetensors(x, path)


def shared():
    def make():
        working.set()
        return {"x": np.array([float(number) for number in range(30_000)])}

    return lambda: penstock.SharedDataset(make, processes=1)


def opened():
    names = iter(range(16))
    return lambda: penstock.to_device(np.zeros(10), f"host:{next(names, 0)}")


KINDS = {
    "one": one,
    "many": many,
    "back": back,
    "group": group,
    "load": load,
    "save": save,
    "opened": opened,
    "shared": shared,
    "loader": lambda: over(penstock.Loader({"x": np.zeros((9000, 256), np.float32)}, 64, device="host", shuffle=True)),
    "iterable": lambda: over(penstock.feed([np.zeros(1 << 16, np.float32)] * 50, SLOW)),
    # With PyTorch:
    "feed": lambda: feed(200, 1 << 12, timeout=0),
    "workers": lambda: feed(200, 1 << 12, num_workers=1),
    "native": lambda: feed(2000, 1 << 10),
}


def work_on(step):
    while True:
        step()
        working.set()


def ended(child):
    """Its exit code."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGABRT)  # faulthandler says where its threads are
    os.waitpid(child, 0)
    return None


faulthandler.enable()
working = threading.Event()
kind, runs = sys.argv[1], int(sys.argv[2])
codes = collections.Counter()
for _ in range(runs):
    child = os.fork()
    if child == 0:
        random.seed()
        threading.Thread(target=work_on, args=(KINDS[kind](),), daemon=True).start()
        working.wait()
        time.sleep(random.random() / 20)
        break
    codes[ended(child)] += 1
else:
    print(dict(codes))
