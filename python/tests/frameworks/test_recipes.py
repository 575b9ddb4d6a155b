"""Runs the recipes of docs/frameworks.md with one process and with two, stops and resumes them."""

import importlib.metadata
import importlib.util
import itertools
import json
from dataclasses import dataclass

import pytest
import torch
from launch import HERE, launch
from recipe import LENGTH, blocks, sections

BATCH = 4


@dataclass
class Recipe:
    """A block of a section, and its needs. `processes`: the numbers of processes with which it runs."""

    section: str
    block: int
    needs: str
    resumes: bool = False
    epochs: int = 1
    length: int = LENGTH
    document: str = "docs/frameworks.md"
    processes: tuple[int, ...] = (1, 2)


RECIPES = {
    "Lightning": Recipe("Lightning", 1, "lightning", resumes=True, epochs=2),
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

DISTRIBUTED = {"document": "docs/distributed.md", "processes": (2,), "epochs": 2}
RESUME = {"document": "docs/resume.md", "processes": (1,), "epochs": 2, "resumes": True}

PAGES = {
    "distributed, DataLoader": Recipe("Around a DataLoader", 0, "", **DISTRIBUTED),
    "distributed, Loader": Recipe("With a Loader", 0, "", **DISTRIBUTED),
    "distributed, shared": Recipe("One copy of the data for all processes of a host", 0, "", **DISTRIBUTED),
    "distributed, restarts": Recipe("Restarts", 0, "", resumes=True, **DISTRIBUTED),
    "resume, a state": Recipe("A loader that keeps a state", 0, "torchdata", **RESUME),
    "resume, Loader": Recipe("A Loader", 0, "", **RESUME),
    "resume, Sampler": Recipe("A DataLoader with penstock.Sampler", 0, "", **RESUME),
    "resume, tensors": Recipe("Tensors, in PyTorch's own order", 0, "", **RESUME),
    "resume, no state": Recipe("A DataLoader without a state", 0, "", **RESUME),
}

ALL = RECIPES | PAGES

# Those with a test of their own.
OTHERS = [
    OVERFIT := Recipe("Lightning", 0, "lightning", epochs=2),
    ACCUMULATE := Recipe("Accelerate", 0, "accelerate", length=46),
    GEOMETRIC := Recipe("PyTorch Geometric", 0, "torch_geometric"),
    UNSHARDED := Recipe("The warning", 0, "", document="docs/distributed.md"),
    TOGETHER := Recipe("The same batches in several processes", 0, "", document="docs/distributed.md"),
    FED_TOGETHER := Recipe("The same batches in several processes", 1, "", document="docs/distributed.md"),
    SENT_TOGETHER := Recipe("The same batches in several processes", 2, "", document="docs/distributed.md"),
    RELAYED := Recipe("Over the links of other GPUs", 0, "", document="docs/distributed.md"),
]


def run(recipe, processes, limits, directory):
    """The records of each process, for each of its runs."""
    directory.mkdir()
    arguments = [HERE / "recipe.py", recipe.document, recipe.section, recipe.block]
    arguments += ["--length", recipe.length, "--limits", *limits, "--output", directory]
    launch(processes, arguments, directory)
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(processes)]


def required(recipe):
    for package in recipe.needs.split():
        # pytorch_lightning stands in for lightning (conftest.py); without it, neither is there.
        if not importlib.util.find_spec(package.replace("lightning", "pytorch_lightning")):
            pytest.skip(f"{package} is not installed")


@pytest.mark.parametrize(("name", "processes"), [(name, count) for name in ALL for count in ALL[name].processes])
def test_recipe(name, processes, tmp_path):
    recipe = ALL[name]
    required(recipe)
    if name == "transformers" and torch.cuda.device_count() < processes == 2:
        version = importlib.metadata.version("transformers")
        if tuple(map(int, version.split(".")[:2])) < (5, 23):
            pytest.skip(
                f"transformers {version} cannot load an optimizer on cpu:0, which two processes without GPUs have"
            )
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
    required(OVERFIT)
    [[done]] = run(OVERFIT, 1, [0], tmp_path / "run")
    assert list(itertools.chain.from_iterable(done["steps"])) == [*range(12), *range(12)], "three batches, twice"
    assert list((tmp_path / "run").glob("*/lightning_logs/*/checkpoints/*.ckpt"))


@pytest.mark.parametrize("processes", [1, 2])
def test_no_optimizer_step_is_lost_and_no_sample_is_gathered_twice(processes, tmp_path):
    required(ACCUMULATE)
    batches = -(-46 // (BATCH * processes))
    for [done] in run(ACCUMULATE, processes, [0], tmp_path / "run"):
        assert len(done["steps"]) == batches
        assert done["optimizer_steps"] == -(-batches // 5), "the gradients of 5 batches at a time, and of what is left"
        assert sorted(itertools.chain.from_iterable(done["seen"])) == list(range(46))


def test_batches_of_geometric(tmp_path):
    required(GEOMETRIC)
    [[done]] = run(GEOMETRIC, 1, [0], tmp_path / "run")
    assert sorted(itertools.chain.from_iterable(done["steps"])) == list(range(LENGTH))


def test_to_say_that_a_loader_is_sharded(tmp_path):
    for [done] in run(UNSHARDED, 2, [0], tmp_path / "run"):
        assert sorted(itertools.chain.from_iterable(done["steps"])) == list(range(LENGTH)), "all, in each process"


@pytest.mark.parametrize("recipe", [TOGETHER, FED_TOGETHER], ids=["Loader", "feed"])
def test_the_same_batches_in_all_processes(recipe, tmp_path):
    first, second = (runs[0]["steps"] for runs in run(recipe, 2, [0], tmp_path / "run"))
    assert first == second
    assert sorted(itertools.chain.from_iterable(first)) == sorted([*range(LENGTH)] * 2)


def test_the_same_tree_in_all_processes(tmp_path):
    for [done] in run(SENT_TOGETHER, 2, [0], tmp_path / "run"):
        assert done["steps"] == [list(range(LENGTH))]


def test_a_tree_for_one_process_over_the_links_of_all(tmp_path):
    first, second = (runs[0]["steps"] for runs in run(RELAYED, 2, [0], tmp_path / "run"))
    assert first == [list(range(LENGTH))] and second == []


def test_what_may_be_fed(capsys, tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    names = {}
    for section in ("Batches: feed and to_device", "Datasets: Loader"):
        for program in blocks("docs/feeding-what.md", section):
            exec(compile(program, section, "exec"), names)
    printed = capsys.readouterr().out
    assert "array of Python objects" in printed
    assert str(2**53 + 1) in printed and "torch.float32" in printed
    assert "'age' has 1 nulls" in printed


@pytest.mark.parametrize("document", ["docs/frameworks.md", "docs/distributed.md", "docs/resume.md"])
def test_every_block_is_run_by_a_test(document):
    run = {(recipe.section, recipe.block) for recipe in [*ALL.values(), *OTHERS] if recipe.document == document}
    assert run == {
        (title, block) for title in sections(document) if title for block in range(len(blocks(document, title)))
    }
