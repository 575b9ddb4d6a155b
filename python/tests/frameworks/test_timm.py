"""feed around the DataLoader that timm makes: the same batches as without it."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

# Where timm lies if it is not among the other packages: see timm.txt.
FOLDER = pathlib.Path(sys.prefix) / "timm"

# The operators are those that torchvision asks for when it is imported, and that no transform uses.
OPERATORS = """
import torch
library = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""

PROGRAM = """
import random, sys, numpy, torch, timm.data, torchvision.datasets, penstock

def epochs(wrap, **options):
    random.seed(1), numpy.random.seed(1), torch.manual_seed(1)
    pictures = torchvision.datasets.FakeData(22, (3, 20, 20), 4)
    loader = timm.data.create_loader(
        pictures, (3, 8, 8), 4, is_training=True, use_prefetcher=False, auto_augment="rand-m9", re_prob=0.5, **options
    )
    batches = [[part.cpu().clone() for part in batch] for _ in range(2) for batch in wrap(loader)]
    return batches, torch.rand(1)

for options in ({"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "use_multi_epochs_loader": True}):
    expected, drawn = epochs(lambda loader: loader, **options)
    batches, drawn_fed = epochs(lambda loader: penstock.feed(loader, sys.argv[1]), **options)
    assert len(batches) == len(expected) == 10 and drawn == drawn_fed, options
    assert all(torch.equal(*parts) for pair in zip(batches, expected) for parts in zip(*pair)), options
"""


def test_a_loader_of_timm_gives_the_same_batches(target):
    beside = importlib.util.find_spec("timm") is None
    if beside and not FOLDER.exists():
        pytest.skip("timm is not installed")
    paths = os.pathsep.join([str(FOLDER)] * beside + sys.path)
    program = OPERATORS * beside + PROGRAM
    done = subprocess.run(
        [sys.executable, "-c", program, target],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
