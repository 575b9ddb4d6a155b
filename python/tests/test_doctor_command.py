"""`penstock doctor loader`: whose file it imports, what it calls and refuses, its signals and its progress."""

import contextlib
import functools
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import textwrap
import traceback

import pytest
import torch
from torch.utils.data import DataLoader

from penstock._doctor import command as _doctor_command
from penstock._doctor.progress import Progress

PROGRAM = """
    import multiprocessing, torch
    from torch.utils.data import DataLoader, Dataset

    class Samples(Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            return torch.zeros(4)

    print("imported as", __name__)
    multiprocessing.set_forkserver_preload(["torch.utils.data"])
    loader = DataLoader(Samples(), 4, num_workers=1, multiprocessing_context="forkserver")
    number = 7
    empty = DataLoader([], 4)
    def made():
        return loader
    def sized(size, other=3):
        return DataLoader(Samples(), size)
    def leaving():
        raise SystemExit(3)
    class Called(DataLoader):
        def __call__(self, batch):
            raise AssertionError("it is a loader")
    called = Called(Samples(), 4)
    def refusing():
        import penstock
        raise penstock.InvalidArgument("of the user")
    class Uncopied:
        def __iter__(self):
            return iter([[0]])
        def __deepcopy__(self, memo):
            raise TypeError("no copy")
    uncopied = DataLoader(Samples(), batch_sampler=Uncopied())
    if __name__ == "__main__":
        hidden = loader
"""


ARGUMENTS = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.parse_args()
"""


def run_main(folder, *arguments, text=PROGRAM, file="train_it.py"):
    """Runs the command in a child of this process, which has imported PyTorch, and at the root of the folder's tree."""
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(textwrap.dedent(text))
    if torch.cuda.is_initialized():  # no child by fork can use it then
        return start_main(folder, *arguments, text=text, file=file)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            sys.stdout, sys.stderr = out, errors
            os.chdir(folder.parent)
            os._exit(run_here(str(folder / file), *arguments))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for stream in (out, errors):
            stream.seek(0)
        return subprocess.CompletedProcess(arguments, status, out.read(), errors.read())


def run_here(*arguments):
    """What Python's own end does with the command's."""
    try:
        status = _doctor_command.main(*arguments)
    except SystemExit as end:
        print(end.code, file=sys.stderr)
        status = 1
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def start_main(folder, *arguments, text=PROGRAM, file="train_it.py", **options):
    """Runs the command in a Python of its own."""
    (folder / file).write_text(textwrap.dedent(text))
    program = "import sys; from penstock._doctor.command import main; sys.exit(main(*sys.argv[1:]))"
    words = [sys.executable, "-c", program, str(folder / file), *arguments]
    return subprocess.run(words, capture_output=True, text=True, cwd=folder.parent, timeout=600, check=False, **options)


@pytest.mark.parametrize("name", ["made", "called"])
def test_the_program_of_the_command(tmp_path, name):
    done = start_main(tmp_path, name, "0.1", "1000000", "")
    assert done.returncode == 0, done.stderr
    assert "imported as train_it" in done.stdout and "limited by consumer" in done.stdout
    assert "imported as __mp_main__" not in done.stdout


SIZES = {"sizes.py": "SIZE = 4", "../sizes.py": ""}
PACKAGE = {"__init__.py": "", "../__init__.py": ""}
OR_ABSENT = "try:\n    from .sizes import SIZE\nexcept ImportError:\n    from absent.sizes import SIZE\n"
OR_OTHER = "try:\n    from .sizes import SIZE\nexcept ImportError:\n    from sizes import SIZE\n"


@pytest.mark.parametrize(
    ("beside", "imports", "name"),
    [
        (SIZES, "from .sizes import SIZE\n", "inner"),
        ({**SIZES, **PACKAGE}, "from .sizes import SIZE\n", "project.inner"),
        ({"../sizes.py": "SIZE = 4"}, "from ..sizes import SIZE\n", "project.inner"),
        (  # a file of a package finds its own folder too
            {**SIZES, **PACKAGE, "names.py": "from .sizes import SIZE"},
            "from sizes import SIZE\nfrom .names import SIZE as size\n",
            "project.inner",
        ),
        (SIZES, OR_ABSENT, "inner"),  # it is tried again if what takes its place fails too
    ],
    ids=["beside it", "a package", "above it", "both ways", "with another way that fails"],
)
def test_a_file_with_relative_imports_is_a_part_of_its_package(tmp_path, beside, imports, name):
    package = tmp_path / "project" / "inner"
    package.mkdir(parents=True)
    for other, content in beside.items():
        (package / other).write_text(content)
    text = f"{imports}from torch.utils.data import DataLoader\nloader = DataLoader([1], SIZE)\nprint('as', __name__)\n"
    for file in ("train_it", "copy") if "__init__.py" in beside else ("train_it",):  # copy: Python has one too
        done = run_main(package, "loader", "0.02", "", "", text=text, file=f"{file}.py")
        assert done.returncode == 0, done.stderr
        assert f"as {name}.{file}\n" in done.stdout


@pytest.mark.parametrize("imports", [OR_OTHER, "if False:\n    from .x import T\n"])
def test_relative_imports_that_need_not_succeed_make_no_package(tmp_path, imports):
    folder = tmp_path / "v1.2"
    folder.mkdir()
    (folder / "sizes.py").write_text("SIZE = 4")
    text = f"{imports}from sizes import SIZE\nfrom torch.utils.data import DataLoader\nloader = DataLoader([1], SIZE)\n"
    done = run_main(folder, "loader", "0.02", "", "", text=text)
    assert done.returncode == 0, done.stderr


class Maker:
    def __call__(self, size=4):
        return DataLoader([size] * 8, size)


def supplied(function):
    return functools.wraps(function)(lambda *more: function(4, *more))


@supplied
def made_with(size):
    return DataLoader([1], size)


class Untold:
    __signature__ = "none"

    def __call__(self):
        return DataLoader([1])


@pytest.mark.parametrize(
    "function",
    [functools.partial(DataLoader, [1], 4), Maker(), Maker().__call__, lambda: [1], made_with, Untold(), list],
)
def test_what_can_be_called_without_arguments_is_called(function):
    assert isinstance(_doctor_command._call("train.py:made", function), DataLoader | list)


@pytest.mark.parametrize("function", [DataLoader, functools.partial(DataLoader, batch_size=4), lambda size, *, of: 1])
def test_what_needs_arguments_is_not_called(function):
    with pytest.raises(SystemExit, match=r"penstock: train.py:made needs arguments: \("):
        _doctor_command._call("train.py:made", function)


def test_the_file_gets_no_arguments_of_the_command(tmp_path):
    text = """
        import argparse, sys
        from torch.utils.data import DataLoader
        parser = argparse.ArgumentParser()
        parser.add_argument("--size", type=int, default=4)
        options = parser.parse_args()
        print("arguments", sys.argv)
        loader = DataLoader(list(range(16)), options.size)
    """
    done = run_main(tmp_path, "loader", "0.05", "", "", text=text)
    assert done.returncode == 0, done.stderr
    assert f"arguments {[str(tmp_path / 'train_it.py')]}" in done.stdout


def test_the_json_of_the_command(tmp_path):
    out = os.open(tmp_path / "verdict.json", os.O_RDWR | os.O_CREAT)
    text = PROGRAM.replace('forkserver")', 'fork")')
    done = start_main(tmp_path, "loader", "0.1", "", str(out), text=text, pass_fds=[out])
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "verdict.json").read_text())
    assert told["schema"] == "penstock-loader-verdict/1" and f"limited by {told['limited_by']}" in done.stdout
    os.close(out)


@pytest.mark.parametrize(
    ("name", "text", "file", "words"),
    [
        ("nothing", PROGRAM, "train_it.py", "defines no nothing"),
        ("hidden", PROGRAM, "train_it.py", "move it to the level of the module"),
        ("number", PROGRAM, "train_it.py", "not int"),
        ("empty", PROGRAM, "train_it.py", "penstock: {file}:empty: The loader has no batches."),
        ("uncopied", PROGRAM, "train_it.py", "penstock: {file}:uncopied: The loader's Uncopied cannot be copied"),
        ("sized", PROGRAM, "train_it.py", "penstock: {file}:sized needs arguments: (size, other=3)."),
        ("refusing", PROGRAM, "train_it.py", "InvalidArgument: of the user"),
        ("loader", PROGRAM, "random.py", "Rename the file"),
        ("leaving", PROGRAM, "train_it.py", "penstock: {file}:leaving ends itself (3) when it is called"),
        ("loader", "import sys; sys.exit()", "train_it.py", "penstock: {file} ends itself (0) when it is imported"),
        ("loader", ARGUMENTS, "train_it.py", "penstock: {file} ends itself (2) when it is imported without arguments."),
        ("loader", "from .. import x", "v1.2/train_it.py", "its folder cannot be a package"),
        ("loader", "from .x import y", "inner/train_it.py", "No module named 'inner.x'"),
        ("loader", "import no_such_module", "train_it.py", "No module named 'no_such_module'"),
        ("loader", "1 / 0", "train_it.py", "ZeroDivisionError"),
    ],
)
def test_what_the_command_refuses(tmp_path, name, text, file, words):
    done = run_main(tmp_path, name, "0.1", "", "", text=text, file=file)
    assert done.returncode == 1 and words.format(file=tmp_path / file) in done.stderr
    assert ("Traceback" in done.stderr) == (words.startswith(("No module", "Zero", "Invalid")))


def test_an_interrupted_command_ends_its_workers(tmp_path):
    text = """
        import os, time, torch.utils.data as data
        class Slow:
            def __len__(self): return 64
            def __getitem__(self, index):
                print('worker', os.getpid(), flush=True)
                time.sleep(0.1)
                return index
        loader = data.DataLoader(Slow(), num_workers=1)
    """
    with start_command(tmp_path, text) as process:
        worker = int(process.stdout.readline().split()[1])
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_an_interrupt_that_leaves_a_lock_taken_ends_the_command(tmp_path):
    text = """
        import multiprocessing.queues, os, signal, torch.utils.data as data
        from penstock._doctor import command
        command.PATIENCE = 0.1
        class Queue(multiprocessing.queues.Queue):
            def put(self, item):
                self._notempty.acquire()  # as put() does, before the block that gives it back
                print(multiprocessing.active_children()[0].pid, flush=True)
                os.kill(os.getpid(), signal.SIGTERM)
        multiprocessing.queues.Queue = Queue
        loader = data.DataLoader(range(64), num_workers=1)
    """
    with start_command(tmp_path, text) as process:
        worker = int(process.communicate(timeout=60)[0])
        assert process.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


@contextlib.contextmanager
def start_command(folder, text):
    """The command as `penstock doctor loader slow.py:loader` starts it, in a group of its own."""
    (folder / "slow.py").write_text(textwrap.dedent(text))
    program = (
        "import signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # it may be ignored, as it is in background jobs
        "from penstock._doctor.command import main\n"
        "sys.exit(main('slow.py', 'loader', '60', '', ''))"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=pipe, stderr=pipe, text=True, cwd=folder, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_signal_during_the_import_ends_the_command_at_once(tmp_path):
    text = """
        import time
        print("importing", flush=True)
        while True:
            try:
                time.sleep(60)
            except BaseException:
                print("caught", flush=True)
    """
    with start_command(tmp_path, text) as process:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == -signal.SIGINT


CATCHING = """
    import sys, time, torch.utils.data as data
    class Catching:
        def __len__(self):
            return 64
        def __getitem__(self, index):
            try:
                print("fetching", flush=True)
                time.sleep(0.2)
            except BaseException:
                print("caught", file=sys.stderr, flush=True)
            return index
    loader = data.DataLoader(Catching(), num_workers=WORKERS)
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_catches_the_interrupt_does_not_go_on(tmp_path, workers):
    with start_command(tmp_path, CATCHING.replace("WORKERS", str(workers))) as process:
        assert process.stdout.readline() == "fetching\n"
        os.killpg(process.pid, signal.SIGSTOP)  # so that both come before it ends
        os.killpg(process.pid, signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        os.killpg(process.pid, signal.SIGCONT)
        errors = process.communicate(timeout=60)[1]
        assert process.returncode == 130
        assert errors in (("", "caught\n") if workers == 0 else ("",)), "workers end without a word"


def test_the_progress_on_a_terminal_and_elsewhere(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("penstock._doctor.progress.time.monotonic", lambda: clock[0])
    master, terminal = pty.openpty()
    reader, pipe = os.pipe()
    for descriptor, read in ((terminal, master), (pipe, reader)):
        with Progress(descriptor, 60) as progress:
            progress.begins("fetch", 2, 8, 0)
            clock[0] += 59
            progress.look()
            progress.arrived()
            clock[0] += 59
            progress.look()
            clock[0] += 1
            progress.look()
            progress.look()
            progress.begins("4 workers", 3, 8, 120)
            clock[0] += 60
            progress.look()
        os.write(descriptor, b"end")
        text = ""
        while not text.endswith("end"):  # a terminal passes it on in parts
            text += os.read(read, 1000).decode()
        text = text.removesuffix("end")
        assert text.count("no batch has come for 60 s, measuring fetch.") == 1
        own, other = text.index("waited for until you interrupt this."), text.index("given up after 120 s without")
        assert own < text.index("measuring 4 workers.") < other
        assert ("\rmeasuring fetch, 2 of at most 8\033[K" in text) == (descriptor == terminal)
        assert text.endswith("\r\033[K") == (descriptor == terminal)
    for descriptor in (master, terminal, reader, pipe):
        os.close(descriptor)


def test_a_loader_that_hangs_is_told(tmp_path):
    text = """
        import threading, torch.utils.data as data
        from penstock._doctor import command
        from penstock._doctor.progress import Progress
        command.Progress = lambda: Progress(patience=0.1)
        class Hanging:
            def __len__(self): return 64
            def __getitem__(self, index): threading.Event().wait(60)
        loader = data.DataLoader(Hanging(), num_workers=1)
    """
    with start_command(tmp_path, text) as process:
        assert "no batch has come" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 130
