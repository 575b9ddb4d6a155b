"""Trains in several processes, kills some at random, goes on at another world size, and counts samples.

elastic_ranks.py ROUNDS SEED

A round ends with a kill. What is saved is what all ranks had done by then, as after a checkpoint of a training step.
The next round has another number of ranks, other batches, and feeds of another kind. Raises if a sample of an epoch is
lost or comes twice, if a rank fails or hangs, or if processes or open files are left.
Prints figures.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import json
import os
import random
import select
import signal
import socket
import sys
import time
import traceback

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

import penstock

EPOCHS = 2
MOST_RANKS = 4
SECONDS = 300  # without a word from a rank are a hang
PR_SET_CHILD_SUBREAPER = 36


class Made(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.tensor(index), torch.full((50,), float(index))


def loader_of(job, way, size, rank, world):
    count = job["count"]
    ids = torch.arange(count)
    rows = TensorDataset(ids, ids[:, None].expand(count, 50).float().contiguous())
    if way == "DistributedSampler":
        sampler = DistributedSampler(rows, world, rank, shuffle=job["shuffle"], seed=job["seed"])
        return penstock.feed(DataLoader(rows, size, sampler=sampler), "host", resumable=True)
    options = {"shuffle": job["shuffle"], "seed": job["seed"], "rank": rank, "world_size": world}
    if way == "Loader":
        return penstock.Loader(rows, size, device="host", **options)
    data = rows if way == "native" else Made(count)
    workers = int(way.removeprefix("workers ")) if way.startswith("workers") else 0
    loader = DataLoader(data, size, sampler=penstock.Sampler(data, **options), num_workers=workers)
    return penstock.feed(loader, "host", prefetch_depth=1 + rank % 3)


def train(line, job, loader, saved):
    """A rank: says which samples a step has and what it would save, and waits until it may go on."""

    def step(**record):
        line.sendall(json.dumps(record).encode() + b"\n")
        line.recv(1)

    if saved["state"] is not None:
        loader.load_state_dict(saved["state"])
    for epoch in range(saved["epoch"], EPOCHS):
        loader.set_epoch(epoch)
        for ids, values in loader:
            assert torch.equal(values, ids[:, None].expand(-1, 50).float()), "the bytes of these samples"
            step(ids=ids.tolist(), saved={"epoch": epoch, "state": loader.state_dict()})
        step(ids=[], saved={"epoch": epoch + 1, "state": loader.state_dict()})


def start(job, way, size, rank, world, saved, lines):
    ours, theirs = socket.socketpair()
    process = os.fork()
    if process == 0:
        os.setpgid(0, 0)
        for line in (ours, *lines):
            line.close()
        try:
            train(theirs, job, loader_of(job, way, size, rank, world), saved)
        except BaseException:
            with contextlib.suppress(OSError):  # nobody listens
                theirs.sendall(json.dumps({"error": traceback.format_exc()}).encode() + b"\n")
        finally:
            os._exit(0)
    os.setpgid(process, process)  # here too: whoever comes first
    theirs.close()
    return process, ours


def record_of(line):
    text = b""
    while not text.endswith(b"\n"):
        if not select.select([line], [], [], SECONDS)[0]:
            raise TimeoutError("a rank hangs")
        part = line.recv(1 << 16)
        if not part:
            raise RuntimeError("a rank has ended by itself")
        text += part
    record = json.loads(text)
    if "error" in record:
        raise RuntimeError(record["error"])
    return record


def one_round(chance, job, saved, seen, kills_after):
    """What is saved after a round. `kills_after`: so many records a rank is killed; None: none is."""
    world, size = chance.randint(1, MOST_RANKS), chance.randint(1, 9)
    ways = ["DistributedSampler"] if job["torch"] else ["native", "ordinary", "workers 1", "workers 2", "Loader"]
    way = chance.choice(ways)
    processes, lines = [], []
    for rank in range(world):
        process, line = start(job, way, size, rank, world, saved, lines)
        processes.append(process)
        lines.append(line)
    killed, records = False, 0
    while not killed and saved["epoch"] < EPOCHS:
        step = {}
        for rank in chance.sample(range(world), world):
            if records == kills_after:
                time.sleep(chance.random() / 100)
                for victim in chance.sample(processes, chance.randint(1, world)):
                    os.kill(victim, signal.SIGKILL)
                killed = True
                break
            step[rank] = record_of(lines[rank])
            records += 1
        if len(step) == world:
            assert all(step[rank]["saved"] == step[0]["saved"] for rank in step), "the same state on all ranks"
            before, saved = saved["epoch"], step[0]["saved"]
            shares = [step[rank]["ids"] for rank in range(world)]
            seen[before] += [index for row in zip(*shares, strict=True) for index in row]
            if saved["epoch"] > before:
                check(job, before, seen[before])
            for line in lines:
                if not killed:
                    line.sendall(b".")
    for process in processes:
        if killed:
            # As torchrun ends the other ranks. A worker of PyTorch whose process is killed while it starts never ends
            # by itself: it takes the one that adopts it for its parent.
            os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
    for line in lines:
        line.close()
    return saved, way, killed


def check(job, epoch, seen):
    """Each sample of the epoch once, in its order, and then what fills the last step."""
    count = job["count"]
    if job["torch"]:
        data = range(count)
        sampler = DistributedSampler(data, 1, 0, shuffle=job["shuffle"], seed=job["seed"])
    else:
        sampler = penstock.Sampler(count, shuffle=job["shuffle"], seed=job["seed"])
    sampler.set_epoch(epoch)
    order = list(sampler)
    assert sorted(order) == list(range(count))
    assert seen[:count] == order, f"epoch {epoch} of {job}: {seen}"
    assert seen[count:] == order[: len(seen) - count] and len(seen) - count < MOST_RANKS


def open_files():
    return len(os.listdir("/proc/self/fd"))


def main(rounds, seed):
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # workers of killed ranks become children of this process
    torch.set_num_threads(1)
    chance = random.Random(seed)
    before = open_files()
    figures = collections.Counter()
    while figures["kills"] < rounds:
        job = {"count": chance.randint(40, 150), "shuffle": chance.random() < 0.8, "seed": chance.randrange(2**63)}
        job["torch"] = chance.random() < 0.25
        if job["torch"]:
            job["seed"] %= 2**32
        saved, seen = {"epoch": 0, "state": None}, collections.defaultdict(list)
        while saved["epoch"] < EPOCHS:
            kills_after = chance.randrange(1, 40) if figures["kills"] < rounds else None
            saved, way, killed = one_round(chance, job, saved, seen, kills_after)
            figures[way.split()[0]] += 1
            figures["kills"] += killed
        figures["epochs"] += EPOCHS
        figures["samples"] += EPOCHS * job["count"]
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.05)
        except ChildProcessError:
            break
    else:
        raise TimeoutError("processes are left")
    assert open_files() == before, (before, open_files())
    print(json.dumps(figures))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
