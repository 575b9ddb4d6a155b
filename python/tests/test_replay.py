"""ReplayBuffer: rows that other processes write."""

import copy
import multiprocessing
import pickle

import numpy as np
import pytest
import torch

import penstock

FIELDS = {"obs": ((3, 16), "uint8"), "action": ((), np.int64), "reward": torch.zeros(()), "done": ((), bool)}


def row(number):
    return {"obs": np.full((3, 16), number, np.uint8), "action": number, "reward": number / 2, "done": number % 5 == 0}


def make(capacity=100, **options):
    return penstock.ReplayBuffer(FIELDS, capacity, device="host", **options)


def write(buffer, first, count):
    for number in range(first, first + count):
        buffer.add(obs=np.full((3, 16), number % 256, np.uint8), action=number, reward=number / 2, done=False)


def test_a_batch_has_the_structure_of_the_fields():
    buffer = make(20)
    for number in range(50):
        buffer.add(row(number))
        assert len(buffer) == min(number + 1, 20)
    batch = buffer.sample(64)
    assert {name: (value.dtype, tuple(value.shape)) for name, value in batch.items()} == {
        "obs": (torch.uint8, (64, 3, 16)),
        "action": (torch.int64, (64,)),
        "reward": (torch.float32, (64,)),
        "done": (torch.bool, (64,)),
    }
    assert batch["action"].min() >= 30 and batch["action"].max() < 50
    assert torch.equal(batch["obs"], batch["action"].to(torch.uint8)[:, None, None].expand(64, 3, 16))
    assert torch.equal(batch["reward"], batch["action"] / 2) and torch.equal(batch["done"], batch["action"] % 5 == 0)
    assert [line.split(":")[0] for line in buffer.describe()] == list(FIELDS)


def test_offsets_follow_one_environment():
    buffer = make()
    for step in range(30):
        actions = np.arange(3) * 1000 + step
        observations = np.zeros((3, 3, 16), np.uint8)
        buffer.add(obs=observations, action=actions, reward=torch.zeros(3), done=np.zeros(3, bool))
    buffer.add(obs=np.zeros((4, 3, 16), np.uint8), action=range(30, 34), reward=[0.0] * 4, done=[False] * 4, env=0)
    batch = buffer.sample(200, offsets=(0, 1, 3))
    assert batch["obs"].shape == (200, 3, 3, 16)
    actions = batch["action"]
    assert torch.equal(actions - actions[:, :1], torch.tensor([0, 1, 3]).expand(200, 3))
    assert set((actions[:, 0] // 1000).tolist()) == {0, 1, 2} and (actions == 33).any()


def test_draws_are_reproducible_and_those_of_samplers_differ():
    def draws(seed, size=32):
        buffer = make(seed=seed)
        write(buffer, 0, 60)
        return [buffer.sample(size)["action"].tolist() for _ in range(5)], copy.copy(buffer).sample(size)[
            "action"
        ].tolist()

    first = draws(1)
    assert first == draws(1) and first[0] != draws(2)[0] and first[1] not in first[0]
    counts = np.bincount(np.concatenate(draws(3, 2000)[0]), minlength=60)
    assert counts.min() > 100 and counts.max() < 240


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_write_and_sample_the_same_rows(method):
    context, buffer = multiprocessing.get_context(method), make(1000)
    processes = [context.Process(target=write, args=(buffer, 1000 * i, 100)) for i in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert len(buffer) == 200
    pairs = buffer.sample(500, offsets=(0, 1))["action"]
    assert set(pairs.diff().flatten().tolist()) == {1} and set((pairs // 1000).flatten().tolist()) == {0, 1}


def test_a_buffer_of_a_process_that_has_ended_is_an_error():
    receiver, sender = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    process = context.Process(target=lambda: sender.send_bytes(pickle.dumps(make())))
    process.start()
    pickled = receiver.recv_bytes()
    process.join()
    with pytest.raises(penstock.Error, match="pickled by process"):
        pickle.loads(pickled)


def test_rows_may_come_after_an_error():
    buffer = make()
    for offsets in (None, (0, 1)):
        with pytest.raises(penstock.InvalidArgument, match="add rows"):
            buffer.sample(4, offsets)
        write(buffer, 0, 1)
        assert len(buffer.sample(4)["action"]) == 4
    assert buffer.sample(4, (0, 1))["action"].tolist() == [[0, 0]] * 4
    buffer.close()
    with pytest.raises(penstock.Closed):
        buffer.sample(4)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"other": 1}, "has the fields obs, action"),
        ({"obs": np.zeros((3, 15), np.uint8)}, r"'obs' takes a row of shape \(3, 16\), or several, not \(3, 15\)"),
        ({"obs": np.zeros((2, 3, 16), np.uint8)}, "different numbers of rows"),
        ({"action": 1.5}, "'action' takes int64"),
        ({"reward": "much"}, "'reward' takes float32"),
        ({"reward": torch.zeros((), requires_grad=True)}, "'reward' takes float32"),
        ({"env": 65_536}, "env is"),
        ({"env": [1, 2]}, "names 2 environments for 1 rows"),
    ],
)
def test_rows_that_do_not_fit_are_refused(changes, error):
    buffer = make()
    with pytest.raises(penstock.InvalidArgument, match=error):
        buffer.add(**{**row(1), **changes})
    assert len(buffer) == 0


@pytest.mark.parametrize(
    "make_bad",
    [
        lambda: penstock.ReplayBuffer({"x": 3}, 10),
        lambda: penstock.ReplayBuffer({"x": ((), "bfloat17")}, 10),
        lambda: penstock.ReplayBuffer({"x": ((), "complex64")}, 10),
        lambda: penstock.ReplayBuffer({}, 10),
        lambda: make(0),
        lambda: make().sample(0),
        lambda: make().sample(2, ()),
        lambda: make(10).sample(2, (0, 10)),
        lambda: penstock.ReplayBuffer(FIELDS, 10, device=["host:0", "host:1"]).sample(2),
    ],
)
def test_arguments_that_do_not_fit_are_refused(make_bad):
    with pytest.raises(penstock.InvalidArgument):
        make_bad()
