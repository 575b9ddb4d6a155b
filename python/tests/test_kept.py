"""What users kept of earlier versions is read: states of loaders, saved weights, recordings and link profiles.

`test_kept.py` as a program writes those of this version to kept/VERSION, once before its release.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import pytest

import penstock
from support import run_command

KEPT = pathlib.Path(__file__).parent / "kept"
MAKE_CORPUS = pathlib.Path(__file__).resolve().parents[2] / "fuzz" / "make_corpus.py"
DATA = np.arange(40, dtype=np.int32)
WEIGHTS = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array([7], np.int64)}
versions = pytest.mark.parametrize("kept", sorted(KEPT.iterdir()), ids=lambda kept: kept.name)


def make_loader(kind):
    if kind == "Loader":
        return penstock.Loader(DATA, 4, shuffle=True, seed=3, device="host")
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.from_numpy(DATA))
    if kind == "Sampler":
        sampler = penstock.Sampler(data, shuffle=True, seed=3)
        return penstock.feed(torch.utils.data.DataLoader(data, 4, sampler=sampler), "host")
    torch.manual_seed(3)
    return penstock.feed(torch.utils.data.DataLoader(data, 4, shuffle=True), "host", resumable=True)


def samples_of(batches):
    return [int(sample) for batch in batches for sample in (batch[0] if isinstance(batch, list) else batch)]


def write(kept):
    kept.mkdir(parents=True)
    states = {}
    for kind in ("Loader", "Sampler", "resumable"):
        loader = make_loader(kind)
        batches = iter(loader)
        next(batches), next(batches)
        states[kind] = {"state": loader.state_dict(), "left": samples_of(batches)}
    (kept / "states.json").write_text(json.dumps(states) + "\n")
    penstock.save_safetensors(WEIGHTS, kept / "weights.safetensors")
    with tempfile.TemporaryDirectory() as corpus:
        subprocess.run([sys.executable, MAKE_CORPUS, corpus], check=True)
        shutil.copy(pathlib.Path(corpus, "recording", "ok-code"), kept / "recording.penstock")
    quick = ["--device", "host", "--quick", "--max-bytes", "64KiB", "--repetitions", "2", "--profile"]
    run_command("link", *quick, kept / "link.json").check_returncode()
    (kept / "link.json").write_text(json.dumps(json.loads((kept / "link.json").read_text())) + "\n")


@versions
@pytest.mark.parametrize("kind", ["Loader", "Sampler", "resumable"])
def test_a_run_goes_on_where_an_earlier_version_stopped(kept, kind):
    saved = json.loads((kept / "states.json").read_text())[kind]
    loader = make_loader(kind)
    loader.load_state_dict(saved["state"])
    assert samples_of(loader) == saved["left"] and len(saved["left"]) == 32


@versions
def test_saved_weights_are_read(kept):
    read = penstock.load_safetensors(kept / "weights.safetensors", "host")
    assert {name: np.asarray(value).tolist() for name, value in read.items()} == {
        name: value.tolist() for name, value in WEIGHTS.items()
    }


@versions
def test_a_recording_is_read(kept, tmp_path):
    shutil.copy(kept / "recording.penstock", tmp_path)
    done = run_command("doctor", "read", tmp_path)
    assert done.returncode == 0 and "GPU 0: 6 steps of 1.00 µs" in done.stdout, done.stdout + done.stderr


@versions
def test_a_link_profile_is_read_or_the_reason_is_said(kept, tmp_path):
    np.save(tmp_path / "samples.npy", DATA)
    options = ["--device", "host", "--profile", kept / "link.json", "--json", "-"]
    done = run_command("feed", tmp_path / "samples.npy", *options)
    assert done.returncode == 0, done.stderr
    ignored = re.search('"profile_ignored": "(.*)"', done.stdout)[1]
    assert ignored == "" or re.search("it describes|measure again", ignored), ignored


if __name__ == "__main__":
    write(KEPT / penstock.__version__)
