"""One copy of a dataset for the processes of a host."""

import collections
import json
import os
import pickle
import random
import signal
import textwrap
import time

import numpy as np
import pytest

import penstock
from penstock._loader import shared_dataset as _shared_dataset
from ranks import PATIENCE_S, answers, start

ROUNDS = int(os.environ.get("PENSTOCK_ROUNDS", "5"))

Pair = collections.namedtuple("Pair", "first second")


def images_and_labels(samples=1000):
    rng = np.random.default_rng(7)
    return {"x": rng.integers(0, 256, (samples, 1000), np.uint8), "y": rng.integers(0, 10, samples)}


MAKE = """
def make():
    with open(os.environ["DIRECTORY"] + "/made", "a") as file:
        file.write("x")
    rng = np.random.default_rng(7)
    return {"x": rng.integers(0, 256, (1000, 1000), np.uint8), "y": rng.integers(0, 10, 1000)}
"""


def test_two_ranks_have_one_copy_and_get_each_sample_once(tmp_path):
    body = MAKE + textwrap.dedent(
        """
        shared = penstock.SharedDataset(make)
        together("shared")
        tuning = penstock.Tuning(narrow=False)
        loader = penstock.Loader(shared, 64, shuffle=True, distributed=True, device="host", tuning=tuning)
        seen = [[int(v) for v in batch["x"].astype(np.uint64).sum(1)] for batch in loader]
        total = int(shared.data["x"].astype(np.uint64).sum())
        answer(seen=sum(seen, []), total=total, made=shared.made_here, nbytes=shared.nbytes)
        """
    )
    first, second = answers(start(body, 2, tmp_path), tmp_path)
    data = images_and_labels()
    sums = data["x"].astype(np.uint64).sum(1)
    assert sorted(first["seen"] + second["seen"]) == sorted(int(v) for v in sums)
    assert first["total"] == second["total"] == int(sums.sum())
    assert sorted([first["made"], second["made"]]) == [False, True]
    assert first["nbytes"] >= 1000 * 1008
    assert (tmp_path / "made").read_text() == "x"


def test_memory_is_counted_once_for_all(tmp_path):
    body = """
        shared = penstock.SharedDataset(lambda: np.ones((64, 1 << 20), np.uint8))
        assert shared.data.sum(dtype=np.int64) == 64 << 20  # each process has all pages
        together("read")
        inside, share = False, 0
        for line in open("/proc/self/smaps"):
            words = line.split()
            if not words[0].endswith(":"):
                inside = "penstock-pages" in line
            elif inside and words[0] == "Pss:":
                share += int(words[1]) << 10
        together("counted")
        answer(share=share)
        """
    shares = [answer["share"] for answer in answers(start(body, 3, tmp_path), tmp_path)]
    assert 0.95 * (64 << 20) < sum(shares) < 1.05 * (64 << 20)
    assert max(shares) < 0.4 * (64 << 20)


def test_several_datasets_and_names(tmp_path):
    body = """
        if rank == 1:
            wait_for("made")
        train = penstock.SharedDataset(lambda: np.full(100, 1))
        if rank == 0:
            other = penstock.SharedDataset(lambda: np.full(100, 3), name="other")
            valid = penstock.SharedDataset(lambda: np.full(100, 2))
            tell("made")
        else:
            valid = penstock.SharedDataset(lambda: np.full(100, 2))
            other = penstock.SharedDataset(lambda: np.full(100, 3), name="other")
        answer(values=[int(s.data[5]) for s in (train, valid, other)])
        """
    assert [answer["values"] for answer in answers(start(body, 2, tmp_path), tmp_path)] == [[1, 2, 3]] * 2


def test_what_fails_in_one_process_is_said_in_all(tmp_path):
    body = """
        def make():
            time.sleep(0.5)  # the other process waits by then, or fails in the same way by itself
            raise OSError("the disk is full")
        try:
            penstock.SharedDataset(make)
            answer(error=None)
        except (OSError, penstock.Error) as error:
            answer(error=f"{type(error).__name__}: {error}")
        """
    for answer in answers(start(body, 2, tmp_path), tmp_path):
        assert "the disk is full" in answer["error"]
        assert answer["error"].startswith(("OSError", "Error: The process that makes the shared data"))


def test_a_process_that_is_killed_while_it_makes_the_data_is_an_error(tmp_path):
    body = """
        def make():
            if rank == 1:
                return np.arange(5)
            tell("making")
            wait_for("waiting")
            time.sleep(SECONDS)
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 1:
            wait_for("making")
            tell("waiting")
        try:
            penstock.SharedDataset(make)
            answer(error="it came late, and made the data itself")
        except penstock.Error as error:
            answer(error=str(error))
        """
    for seconds in (0.3, 3, 30):
        directory = tmp_path / str(seconds)
        directory.mkdir()
        first, second = start(body.replace("SECONDS", str(seconds)), 2, directory)
        assert first.wait(PATIENCE_S) == -signal.SIGKILL
        assert second.wait(PATIENCE_S) == 0, second.stderr.read()
        error = json.loads((directory / "answer1").read_text())["error"]
        if "came late" not in error:
            break
    assert f"(PID {first.pid}) ended before it was done" in error


def test_whoever_waits_hears_ctrl_c(tmp_path):
    body = """
        signal.signal(signal.SIGINT, signal.default_int_handler)
        def make():
            tell("making")
            wait_for("interrupted")
            return np.arange(5)
        try:
            if rank == 1:
                wait_for("making")
                tell("waiting")
            penstock.SharedDataset(make)
            answer(heard=False)
        except KeyboardInterrupt:
            answer(heard=True)
            tell("interrupted")
        """
    processes = start(body, 2, tmp_path)
    while not (tmp_path / "waiting").exists():
        time.sleep(0.01)
    time.sleep(0.2)
    processes[1].send_signal(signal.SIGINT)
    assert [answer["heard"] for answer in answers(processes, tmp_path)] == [False, True]


def test_ranks_that_are_killed_at_random_leave_no_hang_and_no_wrong_byte(tmp_path):
    body = MAKE + textwrap.dedent(
        """
        try:
            shared = penstock.SharedDataset(make)
        except penstock.Error as error:
            answer(error=str(error))
            sys.exit(0)
        answer(total=int(shared.data["x"].astype(np.uint64).sum()), error=None)
        time.sleep(0.05 * rank)
        """
    )
    total = int(images_and_labels()["x"].astype(np.uint64).sum())
    rng = random.Random(11)
    for turn in range(ROUNDS):
        directory = tmp_path / str(turn)
        directory.mkdir()
        processes = start(body, 3, directory, job=f"{tmp_path} {turn}")
        victim = processes[rng.randrange(3)]
        time.sleep(rng.uniform(0, 1.2))
        victim.kill()
        for rank, process in enumerate(processes):
            _, errors = process.communicate(timeout=PATIENCE_S)
            if process is victim:
                continue
            assert process.returncode == 0, errors
            answer = json.loads((directory / f"answer{rank}").read_text())
            assert answer["error"] is None or f"PID {victim.pid}" in answer["error"]
            assert answer["error"] is not None or answer["total"] == total


@pytest.mark.parametrize(
    "data",
    [
        np.arange(24.0).reshape(6, 4),
        (np.arange(6), np.ones((6, 2), np.float16)),
        [np.arange(6, dtype=np.uint8), np.zeros(6, bool)],
        Pair(np.arange(6), np.arange(6) * 2),
        {"a": np.arange(6), 3: np.ones((6, 1), np.float32)},
    ],
    ids=["array", "tuple", "list", "namedtuple", "dict"],
)
def test_the_data_comes_back_as_it_was_built(data):
    shared = penstock.SharedDataset(lambda: data)
    assert type(shared.data) is type(data)
    pairs = (
        [(shared.data, data)]
        if isinstance(data, np.ndarray)
        else [(shared.data[key], data[key]) for key in (data if isinstance(data, dict) else range(len(data)))]
    )
    for shared_array, array in pairs:
        assert shared_array.dtype == array.dtype
        np.testing.assert_array_equal(shared_array, array)
        with pytest.raises(ValueError, match="read-only"):
            shared_array[0] = 1
    batches = list(penstock.Loader(shared, batch_size=3, device="host"))
    assert len(batches) == 2
    # A batch of one array is a tensor if another test has imported PyTorch.
    assert isinstance(data, np.ndarray) or type(batches[0]) is type(data)


def test_tensors_come_back_as_tensors():
    torch = pytest.importorskip("torch")
    data = {"w": torch.randn(10, 3).to(torch.bfloat16), "n": np.arange(10)}
    shared = penstock.SharedDataset(lambda: data)
    assert torch.equal(shared.data["w"], data["w"])
    assert isinstance(shared.data["n"], np.ndarray)
    (batch,) = penstock.Loader(shared, batch_size=10, device="host")
    assert torch.equal(batch["w"], data["w"])


def test_the_memory_outlives_the_object():
    array = penstock.SharedDataset(lambda: np.arange(100_000)).data
    loader = penstock.Loader(penstock.SharedDataset(lambda: np.arange(7)), batch_size=7, device="host")
    np.testing.assert_array_equal(array, np.arange(100_000))
    np.testing.assert_array_equal(next(iter(loader)), np.arange(7))


def test_files_are_read_into_the_memory(tmp_path):
    data = images_and_labels(50)
    for name, array in data.items():
        np.save(tmp_path / f"{name}.npy", array)
    for paths in (tmp_path, [tmp_path / "x.npy", str(tmp_path / "y.npy")]):
        shared = penstock.SharedDataset(paths)
        assert sorted(shared.data) == ["x", "y"]
        for name, array in data.items():
            np.testing.assert_array_equal(shared.data[name], array)
    assert list(penstock.SharedDataset(tmp_path / "x.npy").data) == ["x"]


def test_what_cannot_be_shared_is_refused(tmp_path, monkeypatch):
    for variable in ("LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_ID", "PMIX_NAMESPACE"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(penstock.InvalidArgument, match="pass `lambda: "):
        penstock.SharedDataset({"x": np.arange(3)})
    with pytest.raises(penstock.InvalidArgument, match="paths of files"):
        penstock.SharedDataset([])
    with pytest.raises(penstock.InvalidArgument, match="processes"):
        penstock.SharedDataset(lambda: np.arange(3), processes=0)
    with pytest.raises(penstock.InvalidArgument, match="pass job="):
        penstock.SharedDataset(lambda: np.arange(3), processes=2)
    with pytest.raises(penstock.Error, match=r"no\.npy"):
        penstock.SharedDataset(tmp_path / "no.npy")
    with pytest.raises(penstock.InvalidArgument, match="dict of arrays"):
        local = collections.namedtuple("Local", "a")
        penstock.SharedDataset(lambda: local(np.arange(3)))
    with pytest.raises(penstock.InvalidArgument, match=r"texts or whole numbers, not \('a', 1\)"):
        penstock.SharedDataset(lambda: {("a", 1): np.arange(3)})
    with pytest.raises(penstock.InvalidArgument, match="plain arrays"):
        penstock.SharedDataset(lambda: penstock.SharedDataset(lambda: np.arange(3)))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(penstock.InvalidArgument, match="pass processes="):
        penstock.SharedDataset(lambda: np.arange(3))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    with pytest.raises(penstock.InvalidArgument, match="'many'"):
        penstock.SharedDataset(lambda: np.arange(3))


def test_what_another_process_says_runs_no_code(tmp_path, monkeypatch):
    ran = tmp_path / "ran"

    class Code:
        def __reduce__(self):
            return open, (str(ran), "w")

    notes = [pickle.dumps((Code(), [])), b'{"keys": null, "type": ["subprocess", "Popen"], "tensors": []}']
    for note in notes:
        monkeypatch.setattr(_shared_dataset, "_given", lambda data, note=note: (note, [("x", np.arange(3))], []))
        with pytest.raises(ValueError):
            penstock.SharedDataset(lambda: None)
    assert not ran.exists()


def test_neither_it_nor_its_loader_is_pickled():
    shared = penstock.SharedDataset(lambda: np.arange(3))
    assert "made here" in repr(shared)
    for thing in (shared, penstock.Loader(shared, device="host")):
        with pytest.raises(TypeError, match="make it in each process"):
            pickle.dumps(thing)
