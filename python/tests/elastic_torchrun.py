"""A training under torchrun that saves every step, and whose ranks are killed at random.

torchrun ... elastic_torchrun.py DIRECTORY COUNT KILLS

Rank 0 saves what all ranks have trained on, and the feed's state. Each start of the group reads it and goes on. One
rank of each of the first KILLS starts kills itself at a random step, before or after it is saved.
"""

import itertools
import json
import os
import pathlib
import random
import signal
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

import penstock

directory, count, kills = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
data = TensorDataset(torch.arange(count))
sampler = penstock.Sampler(data, shuffle=True, seed=1, distributed=True)
loader = penstock.feed(DataLoader(data, 1 + world, sampler=sampler), "host")
checkpoint = directory / "checkpoint.json"
saved = {"steps": [], "starts": 0, "loader": loader.state_dict()}
if checkpoint.exists():
    saved = json.loads(checkpoint.read_text())
    loader.load_state_dict(saved["loader"])
saved["starts"] += 1
chance = random.Random(saved["starts"])  # the same on all ranks
victim, steps, late = chance.randrange(world), chance.randint(1, 4), chance.random() < 0.5


meetings = itertools.count()


def write(path, value):
    path.with_suffix(f".{rank}").write_text(json.dumps(value))
    os.replace(path.with_suffix(f".{rank}"), path)


def gather(value=None):
    """What each rank gives. Waits for all: for ever, if one is killed, until torchrun ends this one."""
    meeting = directory / f"{saved['starts']}-{next(meetings)}"
    meeting.mkdir(exist_ok=True)
    write(meeting / f"{rank}.json", value)
    while not all((meeting / f"{one}.json").exists() for one in range(world)):
        time.sleep(0.001)
    return [json.loads((meeting / f"{one}.json").read_text()) for one in range(world)]


def save():
    if rank == 0:
        write(checkpoint, saved)
    gather()


def kill_now(is_saved):
    if saved["starts"] <= kills and (rank, number, is_saved) == (victim, steps, late):
        os.kill(os.getpid(), signal.SIGKILL)


gather()  # all have read it
save()
number = 0
while loader.state_dict()["epoch"] < 2:
    epoch = loader.state_dict()["epoch"]
    for (ids,) in loader:
        number += 1
        kill_now(is_saved=False)
        shares = gather([ids.tolist(), loader.state_dict()])
        assert all(state == shares[0][1] for _, state in shares)
        saved["steps"].append([epoch, [share for share, _ in shares]])
        saved["loader"] = loader.state_dict()
        save()
        kill_now(is_saved=True)
