"""The recipes of docs/frameworks.md, as they stand there: with one process and with two, broken off and resumed."""

import importlib.util
import itertools
import json
import os
import pathlib
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from recipe import LENGTH

HERE = pathlib.Path(__file__).parent
BATCH = 4


@dataclass
class Recipe:
    """A block of a section, and what it needs."""

    section: str
    block: int
    needs: str
    resumes: bool = False
    epochs: int = 1


RECIPES = {
    "Lightning": Recipe("Lightning", 1, "lightning torchdata", resumes=True, epochs=2),
    "Lightning, its strategy": Recipe("Lightning", 2, "lightning", epochs=2),
    "Accelerate": Recipe("Accelerate", 0, "accelerate"),
    "Accelerate, resumed": Recipe("Accelerate", 1, "accelerate", resumes=True, epochs=2),
    "transformers": Recipe("The Trainer of transformers", 0, "transformers accelerate", resumes=True, epochs=2),
    "torchdata": Recipe("torchdata", 0, "torchdata", resumes=True, epochs=2),
    "PyTorch Geometric": Recipe("PyTorch Geometric", 1, "torch_geometric torchdata", resumes=True, epochs=2),
    "datasets": Recipe("Hugging Face datasets", 0, "datasets torchdata", resumes=True, epochs=2),
    "datasets, Loader": Recipe("Hugging Face datasets", 1, "datasets", resumes=True, epochs=2),
    "datasets, streamed": Recipe("Hugging Face datasets", 2, "datasets torchdata"),
    "WebDataset": Recipe("WebDataset", 0, "webdataset", resumes=True),
    "TensorDict": Recipe("TensorDict", 0, "tensordict torchdata", resumes=True, epochs=2),
    "TensorDict, Loader": Recipe("TensorDict", 1, "tensordict"),
}


def run(recipe, processes, limits, directory):
    """What each process wrote down, for each of its runs."""
    directory.mkdir()
    arguments = [HERE / "recipe.py", "docs/frameworks.md", recipe.section, recipe.block]
    arguments += ["--limits", *limits, "--output", directory]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes] if processes > 1 else []
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
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
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(processes)]


def required(recipe):
    for package in recipe.needs.split():
        if package == "lightning" and importlib.util.find_spec("pytorch_lightning"):
            continue
        if not importlib.util.find_spec(package):
            pytest.skip(f"{package} is not installed")


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("name", RECIPES)
def test_recipe(name, processes, tmp_path):
    recipe = RECIPES[name]
    required(recipe)
    length = LENGTH // BATCH // processes
    # Three resumes in one epoch, then one at its very end.
    limits = [0, "anew", 2, 1, 1, length - 4, 0] if recipe.resumes else [0]
    ranks = run(recipe, processes, limits, tmp_path / "run")
    whole = [runs[0]["steps"] for runs in ranks]
    for epoch in range(recipe.epochs):
        shares = [steps[epoch * length : (epoch + 1) * length] for steps in whole]
        ids = sorted(itertools.chain.from_iterable(itertools.chain.from_iterable(shares)))
        assert ids == list(range(LENGTH)), "each sample on one of the ranks, once"
    for runs in ranks:
        assert len(runs[0]["steps"]) == recipe.epochs * length
        if recipe.resumes:
            assert [len(run["steps"]) for run in runs[1:-1]] == limits[2:-1]
            assert list(itertools.chain.from_iterable(run["steps"] for run in runs[1:])) == runs[0]["steps"]
