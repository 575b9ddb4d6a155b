"""Runs programs as `penstock run --feed` does, and without."""

import json
import os
import pathlib
import subprocess
import sys
import textwrap

import penstock

SOURCE = pathlib.Path(__file__).parents[2]
HOOK = SOURCE / "cli" / "sitecustomize.py"

# Where there is no GPU, "cpu" and "meta" stand for two: PyTorch gives a tensor itself for the first.
PROGRAM = """
    import collections, hashlib, os, random, sys
    import numpy, torch
    from torch.utils.data import DataLoader, Dataset

    device, other = ("cuda:0", "cuda:0") if torch.cuda.is_available() else ("cpu", "meta")
    if os.environ["FED"]:
        from penstock._feed import ahead
        ahead._device_types |= {"cpu", "meta"}
    torch.manual_seed(1), random.seed(1), numpy.random.seed(1)

    class Numbers(Dataset):
        def __init__(self, count=24):
            self.count = count
        def __len__(self):
            return self.count
        def __getitem__(self, i):
            if i == 999:
                raise ValueError("no sample 999")
            return torch.full((3,), float(i)), i

    def say(*what):
        print(*(what.tolist() if isinstance(what, torch.Tensor) else what for what in what))
"""


def run(folder, program, fed=True):
    """The output of a program, and what was done with its DataLoaders; with an own sitecustomize."""
    hook = folder / f"hook{fed}"
    own = folder / "own"
    hook.mkdir()
    own.mkdir(exist_ok=True)
    (own / "sitecustomize.py").write_text("import sys; sys.own = __file__")
    (hook / "sitecustomize.py").write_text(HOOK.read_text() if fed else "")
    (folder / "train.py").write_text(textwrap.dedent(PROGRAM) + textwrap.dedent(program))
    package = pathlib.Path(penstock.__file__).parents[1]
    paths = [*([hook] if fed else []), own, package]
    done = subprocess.run(
        [sys.executable, folder / "train.py"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "FED": "1" if fed else ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    files = sorted(hook.glob("feed.*.json"))
    return done.stdout, [row for file in files for row in json.loads(file.read_text())]


def side_by_side(folder, program):
    """What was done with each DataLoader of a program that prints the same without: the batches fed, or the reason."""
    output, rows = run(folder, program)
    assert output == run(folder, program, fed=False)[0]
    assert all(row["place"].startswith(str(folder / "train.py:")) for row in rows)
    return [row["why"] or row["fed"] for row in rows]
