"""Starts a program in one process, or in several that form a group."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import torch

HERE = pathlib.Path(__file__).parent
# The programs' helpers lie here, and beside it.
PATHS = [str(HERE), str(HERE.parent)]
if not importlib.util.find_spec("lightning"):
    PATHS.append(str(HERE / "older_lightning"))


def launch(processes, arguments, directory):
    """If the program fails, raises with its output. If there are not enough GPUs, processes get none."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes] if processes > 1 else []
    path = os.pathsep.join(filter(None, [*PATHS, os.environ.get("PYTHONPATH")]))
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=path)
    if torch.cuda.device_count() < processes:
        environment |= {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [str(word) for word in [sys.executable, *launcher, *arguments]],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
