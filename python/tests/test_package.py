import importlib.metadata
import importlib.resources
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest

import penstock
from support import run_program

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_version_and_devices():
    assert penstock.__version__.count(".") == 2
    devices = penstock.devices()
    assert devices[-1].spec == "host" and devices[-1].memory_bytes > 0
    assert "host" in repr(devices[-1])


def test_everything_public_is_there_and_says_what_it_does():
    for name in penstock.__all__:
        thing = getattr(penstock, name)
        assert isinstance(thing, str) or thing.__doc__, name


def test_package_is_typed():
    files = importlib.resources.files(penstock)
    assert (files / "py.typed").is_file()
    assert (files / "_core.pyi").is_file()


def test_a_free_threaded_python_is_refused_before_anything_is_compiled(tmp_path):
    if not shutil.which("cmake"):
        pytest.skip("there is no CMake")
    real = f"__import__({sysconfig._get_sysconfigdata_name()!r}).build_time_vars"
    (tmp_path / "threaded.py").write_text(f"build_time_vars = {real} | {{'Py_GIL_DISABLED': 1}}\n")
    paths = {"_PYTHON_SYSCONFIGDATA_NAME": "threaded", "PYTHONPATH": str(tmp_path)}
    command = ["cmake", "-S", ROOT / "python", "-B", tmp_path / "build", f"-DPython_EXECUTABLE={sys.executable}"]
    done = subprocess.run(command, env=os.environ | paths, capture_output=True, text=True)
    assert done.returncode != 0 and "does not support free-threaded Python" in done.stderr, done.stderr


def test_the_recorder_knows_the_files_whose_iterators_wait():
    header = (ROOT / "doctor/read/recording_format.hpp").read_text()
    files = re.findall(r'"penstock/(.+?\.py)"', header)
    assert len(files) == 3
    for file in files:
        assert "    def __next__(self)" in (importlib.resources.files(penstock) / file).read_text(), file


def test_errors_are_also_pythons_own():
    assert issubclass(penstock.InvalidArgument, ValueError)
    assert issubclass(penstock.OutOfMemory, MemoryError)
    for error in (penstock.DeviceError, penstock.Closed, penstock.Unsupported):
        assert issubclass(error, RuntimeError) and issubclass(error, penstock.Error)


def test_warnings_go_to_pythons_logging(tmp_path):
    command = pathlib.Path(sysconfig.get_path("scripts"), "penstock")
    if not command.exists():
        pytest.skip("the command is not installed beside this Python")
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    options = ["--device", "host", "--quick", "--max-bytes", "64KiB", "--repetitions", "2"]
    subprocess.run([command, "link", *options], check=True, env=os.environ | environment, capture_output=True)
    (profile,) = (file for file in tmp_path.rglob("*") if file.is_file())
    profile.write_text(profile.read_text()[:100])
    program = (
        "import logging, numpy, penstock\n"
        "logging.basicConfig(format='%(name)s %(levelname)s %(message)s')\n"
        "penstock.to_device(numpy.arange(3), 'host')\n"
    )
    done = run_program(program, **environment)
    assert done.stderr.startswith(f"penstock WARNING The link profile is ignored: {profile}"), done.stderr


def test_importing_opens_nothing():
    program = (
        "import os, sys, penstock; print(len(os.listdir('/proc/self/task')), *map(sys.modules.get, ('torch', 'numpy')),"
        " 'libcuda' in open('/proc/self/maps').read())"
    )
    done = run_program(program)
    assert done.stdout.split() == ["1", "None", "None", "False"]
    assert pathlib.Path(penstock.__file__).name == "__init__.py"


def test_importing_takes_few_modules():
    """165 of them take 0.1 s. Whoever needs more imports them where they are used."""
    program = "import sys; before = {*sys.modules}; import penstock; print(*{*sys.modules} - before)"
    done = run_program(program)
    modules = done.stdout.split()
    assert "penstock._core" in modules and len(modules) <= 200, sorted(modules)
    assert not {name.partition(".")[0] for name in modules} & {"torch", "numpy", "asyncio"}


def run_command(*arguments):
    """Runs this package's command. With --target, pip puts it elsewhere."""
    folders = (pathlib.Path(penstock.__file__).parents[1] / "bin", pathlib.Path(sysconfig.get_path("scripts")))
    programs = [folder / "penstock" for folder in folders if (folder / "penstock").exists()]
    assert programs, f"no penstock in {folders}"
    return subprocess.run([programs[0], *arguments], capture_output=True, text=True, check=True).stdout


def test_the_command_comes_with_the_package():
    assert run_command("--version").strip() == f"penstock {penstock.__version__}"
    assert "host" in run_command("info")


def test_metadata_says_licence_and_what_the_readme_says():
    metadata = importlib.metadata.metadata("penstock")
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"LICENSE", "python/LICENSES-bundled.txt"} <= set(metadata.get_all("License-File"))
    assert "Environment :: GPU :: NVIDIA CUDA" in metadata.get_all("Classifier")
    text = metadata.get_payload()
    assert text.startswith("# penstock")
    assert "](docs/" not in text and "](LICENSE)" not in text


def test_an_index_shows_no_link_that_leads_nowhere():
    source = ROOT / "python" / "readme_metadata.py"
    specification = importlib.util.spec_from_file_location("readme_metadata", source)
    readme_metadata = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(readme_metadata)
    page = "[a](docs/a.md), [b](https://b.org/b), [c](#c), ![d](docs/d.png)"
    assert readme_metadata.with_links_below(page) == "a, [b](https://b.org/b), [c](#c), d"
    assert (
        readme_metadata.with_links_below(page, "https://home.org/main/")
        == "[a](https://home.org/main/docs/a.md), [b](https://b.org/b), [c](#c), ![d](https://home.org/main/docs/d.png)"
    )


def test_the_command_finds_its_recorder(tmp_path):
    report = tmp_path / "report.json"
    run_command("doctor", "--json", str(report), "--", sys.executable, "-c", "")
    assert "nothing was recorded" in json.loads(report.read_text())["remarks"][0]
