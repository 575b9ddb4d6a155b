"""Processes that torchrun would start."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import textwrap
import time

ROUNDS = int(os.environ.get("PENSTOCK_ROUNDS", "4"))
# A process of these tests that does not end by then hangs.
PATIENCE_S = 600


def start(body, ranks, tmp_path, job=None, **variables):
    """Processes that torchrun would start, each running `body`, which writes JSON to its own file."""
    script = textwrap.dedent(
        """
        import json, os, signal, sys, time
        import numpy as np
        import penstock
        rank = int(os.environ["RANK"])
        def together(name):
            "Waits until all ranks are here."
            tell(f"{name}{rank}")
            for other in range(int(os.environ["WORLD_SIZE"])):
                wait_for(f"{name}{other}")
        def tell(name):
            "Says to the other processes that this has been reached."
            open(os.environ["DIRECTORY"] + "/" + name, "w").close()
        def wait_for(name):
            while not os.path.exists(os.environ["DIRECTORY"] + "/" + name):
                time.sleep(0.01)
        def answer(**values):
            with open(sys.argv[1], "w") as file:
                json.dump(values, file)
        """
    ) + textwrap.dedent(body)
    processes = []
    for rank in range(ranks):
        environment = {
            **os.environ,
            **{"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)},
            **{"MASTER_ADDR": "localhost", "MASTER_PORT": f"{job or tmp_path}", "DIRECTORY": str(tmp_path)},
            **variables,
        }
        command = [sys.executable, "-c", script, str(tmp_path / f"answer{rank}")]
        processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    return processes


def program(helpers, text, device="host:{rank}"):
    """A program for `start`, with these helpers in Python, on a device of its own."""
    return f'DEVICE = "{device}".format(rank=rank, late=rank % 2)\n' + helpers + textwrap.dedent(text)


def run_program(helpers, text, ranks, tmp_path, device="host:{rank}", patience=PATIENCE_S, **more):
    """The answers of so many processes that run such a program."""
    return answers(start(program(helpers, text, device), ranks, tmp_path, **more), tmp_path, patience)


def answers(processes, tmp_path, patience=PATIENCE_S):
    """What the processes wrote, once all have ended well. None of them outlives this."""
    try:
        for process in processes:
            _, errors = process.communicate(timeout=patience)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    return [json.loads((tmp_path / f"answer{rank}").read_text()) for rank in range(len(processes))]


def run_in_time(made, run, tmp_path):
    """What the processes say that `run` starts with so many seconds of patience in a folder, and these seconds. On a
    busy machine they may need longer to come together: the first then says that the fact `made` is false."""
    for seconds in 1, 4, 16:
        folder = tmp_path / str(seconds)
        folder.mkdir()
        said = run(f"SECONDS = {seconds}\n", folder)
        if said[0][made]:
            break
    return *said, seconds


def kill_in_turn(body, ranks, printed, within_s, tmp_path):
    """In several rounds, kills one of the processes."""
    chance = random.Random(3)
    for turn in range(ROUNDS):
        kill_one(body, ranks, printed, chance, within_s, tmp_path / str(turn))


def kill_one(body, ranks, printed, chance, within_s, folder):
    """Kills one of the processes within so many seconds after all have printed a line. The others end well, with the
    right bytes, and name it."""
    folder.mkdir()
    processes = start(body, ranks, folder)
    for process in processes:
        while process.stderr.readline().strip() != printed:
            assert process.poll() is None
    victim = processes.pop(chance.randrange(ranks))
    time.sleep(chance.random() * within_s)
    victim.send_signal(signal.SIGKILL)
    victim.communicate(timeout=PATIENCE_S)
    for process in processes:
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors
    said = [path.read_text() for path in folder.glob("answer*")]
    assert len(said) == ranks - 1
    for text_of_one in said:
        assert '"right": true' in text_of_one
        assert f"PID {victim.pid}" in text_of_one, text_of_one
    assert not list(pathlib.Path("/dev/shm").glob("penstock*"))
