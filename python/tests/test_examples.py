import gzip
import pathlib
import struct
import subprocess
import sys

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def run(name, *arguments):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *map(str, arguments)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_idx(path, array):
    with gzip.open(path, "wb") as file:
        file.write(bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes())


@pytest.fixture
def images_that_can_be_told_apart(tmp_path):
    generator = np.random.default_rng(0)
    for split, count in (("train", 480), ("t10k", 100)):
        labels = generator.integers(0, 10, count).astype(np.uint8)
        images = generator.integers(0, 60, (count, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 4] += 190
        write_idx(tmp_path / f"{split}-images-idx3-ubyte.gz", images)
        write_idx(tmp_path / f"{split}-labels-idx1-ubyte.gz", labels)
    return tmp_path


def test_training_reaches_the_same_accuracy_in_each_way(images_that_can_be_told_apart):
    printed = run(
        "train_fashion_mnist.py", "--data", images_that_can_be_told_apart, "--batch-size", 32, "--epochs", 2, "--quiet"
    )
    rows = dict(line.split(maxsplit=1) for line in printed.splitlines() if line.split()[:1])
    accuracies = {way: float(rows[way].split()[-1].rstrip("%")) for way in ("plain", "advised", "feed", "Loader")}
    assert accuracies["plain"] > 60, "it learned"
    assert accuracies["advised"] == accuracies["feed"] == accuracies["plain"]
    assert accuracies["Loader"] == pytest.approx(accuracies["plain"], abs=25)


@pytest.mark.parametrize("name", ["cupy", "jax"])
def test_consumers(name):
    module = pytest.importorskip(name)
    if name == "cupy" and not module.cuda.is_available():
        pytest.skip("CuPy has no GPU")
    assert run(f"{name}_consumer.py")


def test_the_folklore_script_is_sound():
    pytest.importorskip("torch")
    script = EXAMPLES.parent / "benchmarks" / "folklore.py"
    done = subprocess.run([sys.executable, str(script), "--self-check"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
