import importlib.metadata
import importlib.resources
import os
import pathlib
import subprocess
import sys

import pytest

import penstock


def test_version_and_devices():
    assert penstock.__version__.count(".") == 2
    devices = penstock.devices()
    assert devices[-1].spec == "host" and devices[-1].memory_bytes > 0
    assert "host" in repr(devices[-1])
    assert all(isinstance(reason, str) for reason in penstock.missing_devices())


def test_everything_public_is_there_and_says_what_it_does():
    for name in penstock.__all__:
        thing = getattr(penstock, name)
        assert isinstance(thing, str) or thing.__doc__, name


def test_package_is_typed():
    files = importlib.resources.files(penstock)
    assert (files / "py.typed").is_file()
    assert (files / "_core.pyi").is_file()


def test_stubs_are_those_of_the_module(tmp_path):
    pytest.importorskip("nanobind.stubgen")
    if not importlib.metadata.version("nanobind").startswith("3.1."):
        pytest.skip("the stubs are those of nanobind 3.1: others lay them out in another way")
    made = tmp_path / "_core.pyi"
    subprocess.run(
        [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "penstock._core", "-o", str(made)],
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    kept = importlib.resources.files(penstock) / "_core.pyi"
    assert made.read_text() == kept.read_text(), "run tools/python.sh stubs"


def test_errors_are_also_pythons_own():
    assert issubclass(penstock.InvalidArgument, ValueError)
    assert issubclass(penstock.OutOfMemory, MemoryError)
    for error in (penstock.DeviceError, penstock.Closed, penstock.Unsupported):
        assert issubclass(error, RuntimeError) and issubclass(error, penstock.Error)


def test_importing_opens_nothing():
    program = (
        "import os, sys, penstock; print(len(os.listdir('/proc/self/task')), *map(sys.modules.get, ('torch', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "None", "None"]
    assert pathlib.Path(penstock.__file__).name == "__init__.py"
