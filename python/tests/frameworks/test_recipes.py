"""The recipes of docs/frameworks.md, as they stand there: with one process and with two, broken off and resumed."""

import importlib.util
import itertools
import json
from dataclasses import dataclass

import pytest
from launch import HERE, launch
from recipe import LENGTH

BATCH = 4


@dataclass
class Recipe:
    """A block of a section, and what it needs."""

    section: str
    block: int
    needs: str
    resumes: bool = False
    epochs: int = 1
    length: int = LENGTH


RECIPES = {
    "Lightning": Recipe("Lightning", 1, "lightning torchdata", resumes=True, epochs=2),
    "Lightning, its strategy": Recipe("Lightning", 2, "lightning", epochs=2),
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
    arguments += ["--length", recipe.length, "--limits", *limits, "--output", directory]
    launch(processes, arguments, directory)
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


def test_default_checkpoints_and_overfitting(tmp_path):
    recipe = Recipe("Lightning", 0, "lightning")
    required(recipe)
    [[done]] = run(recipe, 1, [0], tmp_path / "run")
    assert list(itertools.chain.from_iterable(done["steps"])) == [*range(12), *range(12)], "three batches, twice"
    assert list((tmp_path / "run").glob("*/lightning_logs/*/checkpoints/*.ckpt"))


@pytest.mark.parametrize("processes", [1, 2])
def test_no_optimizer_step_is_lost_and_no_sample_is_gathered_twice(processes, tmp_path):
    recipe = Recipe("Accelerate", 0, "accelerate", length=46)
    required(recipe)
    batches = -(-46 // (BATCH * processes))
    for [done] in run(recipe, processes, [0], tmp_path / "run"):
        assert len(done["steps"]) == batches
        assert done["optimizer_steps"] == -(-batches // 5), "the gradients of 5 batches at a time, and of what is left"
        assert sorted(itertools.chain.from_iterable(done["seen"])) == list(range(46))


def test_batches_of_geometric(tmp_path):
    recipe = Recipe("PyTorch Geometric", 0, "torch_geometric")
    required(recipe)
    [[done]] = run(recipe, 1, [0], tmp_path / "run")
    assert sorted(itertools.chain.from_iterable(done["steps"])) == list(range(LENGTH))
