"""Ranks that are killed, and trainings that go on at another world size."""

import json
import os
import pathlib
import subprocess
import sys

import penstock

HERE = pathlib.Path(__file__).parent
COUNT = 67  # samples under torchrun
ROUNDS = int(os.environ.get("PENSTOCK_ROUNDS", "8"))


def run(*arguments, seconds):
    return subprocess.run(
        [str(word) for word in [sys.executable, *arguments]],
        env=dict(os.environ, OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def test_ranks_that_are_killed_at_random_lose_no_sample(random):
    """Set PENSTOCK_ROUNDS to do more."""
    seed = int(random.integers(2**31))
    done = run(HERE / "elastic_ranks.py", ROUNDS, seed, seconds=600 + 60 * ROUNDS)
    assert done.returncode == 0, f"seed {seed}: {done.stdout} {done.stderr}"
    figures = json.loads(done.stdout)
    print(figures)
    assert figures["kills"] == ROUNDS and figures["samples"] >= 40 * figures["epochs"] > 0


def torchrun(processes, restarts, directory, kills):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--monitor-interval", 0.1]
    launcher += ["--nproc-per-node", processes, "--max-restarts", restarts]
    return run(*launcher, HERE / "elastic_torchrun.py", directory, COUNT, kills, seconds=600)


def test_torchruns_restarts_lose_no_sample(tmp_path):
    """A start with one rank, which is killed. Then one with two: it loses one, and torchrun restarts it."""
    assert torchrun(1, 0, tmp_path, kills=2).returncode != 0
    done = torchrun(2, 1, tmp_path, kills=2)
    assert done.returncode == 0, done.stderr[-6000:]
    saved = json.loads((tmp_path / "checkpoint.json").read_text())
    assert saved["starts"] == 3
    assert {len(shares) for _, shares in saved["steps"]} == {1, 2}
    for epoch in range(2):
        sampler = penstock.Sampler(COUNT, shuffle=True, seed=1)
        sampler.set_epoch(epoch)
        order = list(sampler)
        steps = [shares for of, shares in saved["steps"] if of == epoch]
        seen = [index for shares in steps for row in zip(*shares, strict=True) for index in row]
        assert seen[:COUNT] == order and seen[COUNT:] == order[: len(seen) - COUNT] and len(seen) - COUNT < 2
