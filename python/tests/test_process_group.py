"""Processes that need the same batches, one device each."""

import functools
import pickle
import socket
import textwrap

import numpy as np
import pytest

import fake_driver
import penstock
from ranks import answers, kill_in_turn, program, run_program, start
from support import two_gpus

DATA = """
DATA = {
    "x": np.random.default_rng(7).integers(0, 256, (203, 3, 11), np.uint8),
    "y": np.random.default_rng(8).integers(0, 10, 203),
}
def copied(batch):
    copy = {name: np.array(penstock.to_host(array)) for name, array in batch.items()}
    if DEVICE.startswith("host"):
        for array in batch.values():
            array[:] = 99  # nobody else may see this
    return copy
def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
def taken(batches):
    "How many come, and the error after them."
    count = 0
    try:
        for _ in batches:
            count += 1
    except Exception as error:
        return count, f"{type(error).__name__}: {error}"
    return count, ""
def alone(**options):
    return penstock.Loader(DATA, 16, shuffle=True, seed=5, device="host:9", world_size=1, rank=0, **options)
"""


body, run_all = functools.partial(program, DATA), functools.partial(run_program, DATA)


SAME_BATCHES = """
group = penstock.ProcessGroup()
loader = penstock.Loader(DATA, 16, shuffle=True, seed=5, device=DEVICE, group=group)
good, epochs = True, alone()
for epoch in range(3):
    batches = [copied(batch) for batch in loader]
    expected = [copied_plain for copied_plain in ({n: np.array(a) for n, a in b.items()} for b in epochs)]
    good = good and len(batches) == len(expected) == 13 and all(map(same, batches, expected))
for number, batch in enumerate(loader):
    if number == 4:
        break  # early
state = loader.state_dict()
rest = [copied(batch) for batch in loader]
again = alone()
again.load_state_dict(loader.state_dict())
loader.load_state_dict(state)
epochs.load_state_dict(state)
batches = [copied(batch) for batch in loader]
expected = [{n: np.array(a) for n, a in b.items()} for b in epochs]
good = good and len(batches) == len(expected) and all(map(same, batches, expected))
carried = loader.stats().link_bytes
loader.close()
answer(good=bool(good), first=loader.describe()[0], repr=repr(group), carried=carried, warned=False)
"""


@pytest.mark.parametrize(
    ("ranks", "device"), [(2, "host:{rank}"), (3, "host:{rank},late=1"), (2, "host:{rank},link=1")]
)
def test_all_ranks_get_the_batches_of_a_loader_on_one(ranks, device, tmp_path):
    for rank, said in enumerate(run_all(SAME_BATCHES, ranks, tmp_path, device)):
        assert said["good"]
        assert said["first"].startswith(f"1/{ranks} of each batch")
        assert said["repr"] == f"<penstock.ProcessGroup: rank {rank} of {ranks}>"
        whole = 203 * (33 + 1)  # labels are narrowed on the wire
        # Of 3 processes one has 6 samples of 16; and what is ahead is dropped three times.
        assert 3 * whole / ranks < said["carried"] < (7 + ranks) * whole / ranks


# Host devices reach each other only if both are late, or none is.
APART = "host:{rank},late={late}"
DEVICES = pytest.mark.parametrize("device", ["host:{rank}", APART], ids=["together", "apart"])
KILLED = pytest.mark.parametrize(
    ("ranks", "device"),
    [(3, "host:{rank}"), (3, APART), pytest.param(2, "cuda:{rank}", marks=two_gpus)],
    ids=["together", "apart", "cuda"],
)


def test_ranks_whose_devices_do_not_reach_each_other_bring_whole_batches(tmp_path):
    for said in run_all(SAME_BATCHES, 2, tmp_path, APART):
        assert said["good"]
        assert said["first"].startswith("whole batches over this link: ")
        assert "host devices reach each other only if `late` is the same" in said["first"]
        whole = 203 * (33 + 1)
        assert 3 * whole < said["carried"] < 9 * whole


def test_gpus_of_several_processes(tmp_path):
    for said in run_all(SAME_BATCHES, 2, tmp_path, "cuda:{rank}", LD_LIBRARY_PATH=fake_driver.library_path()):
        assert said["good"]
        assert said["first"].startswith("1/2 of each batch")


VISIBLE = """
import ctypes
fake = ctypes.CDLL("libcuda.so.1")
fake.fake_cuda_set_devices({count})
fake.fake_cuda_set_first_gpu({first})
"""


@pytest.fixture
def over_visible(tmp_path):
    """Runs a text in processes of which each sees `count` GPUs from number `first` on, as CUDA_VISIBLE_DEVICES says."""

    def run(text, ranks, device, count, first):
        visible = VISIBLE.format(count=count, first=first) + textwrap.dedent(text)
        return run_all(visible, ranks, tmp_path, device, LD_LIBRARY_PATH=fake_driver.library_path())

    return run


def test_each_process_may_see_its_own_gpu_alone(over_visible):
    for said in over_visible(SAME_BATCHES, 2, "cuda:0", count=1, first="rank"):
        assert said["good"]
        assert said["first"].startswith("1/2 of each batch")


def test_two_processes_on_one_gpu_are_refused_whatever_its_numbers(over_visible):
    text = """
    try:
        penstock.Loader(DATA, 16, device=f"cuda:{1 - rank}", group=penstock.ProcessGroup())
    except penstock.InvalidArgument as error:
        answer(said=str(error))
    """
    for said in over_visible(text, 2, "", count=2, first="rank"):
        assert "Ranks 0 and 1 of the group" in said["said"]
        assert "have one GPU, GPU-" in said["said"]


def test_gpus_that_a_process_does_not_see_do_not_relay(over_visible):
    text = """
    sent = np.random.default_rng(3).integers(0, 256, 9 << 20, np.uint8)
    loader = penstock.Loader(DATA, 16, device="cuda:0", relay="auto")
    batches, _ = taken(loader)
    refused = []
    for call in (lambda: penstock.to_device(sent, "cuda:0", relay=["cuda:1"]),
                 lambda: penstock.Loader(DATA, 16, device="cuda:0", relay=["cuda:1"])):
        try:
            call()
        except penstock.InvalidArgument as error:
            refused.append(str(error))
    there = penstock.to_device(sent, "cuda:0", relay="auto")
    good = bool(np.array_equal(penstock.to_host(there), sent))
    answer(good=good, batches=batches, devices=loader.devices, refused=refused)
    """
    (said,) = over_visible(text, 1, "cuda:0", count=1, first=1)
    assert said["good"]
    assert said["batches"] == 13
    assert said["devices"] == ["cuda:0"]
    assert len(said["refused"]) == 2
    assert all("cuda:1" in each for each in said["refused"])


def test_a_group_has_several_loaders(tmp_path):
    text = """
    group = penstock.ProcessGroup()
    first, second = (penstock.Loader(DATA, 16, seed=seed, shuffle=True, device=DEVICE, group=group) for seed in (1, 2))
    seen = [int(batch["x"].astype(np.int64).sum()) for pair in zip(first, second) for batch in pair]
    first.close()
    second.close()
    answer(seen=seen)
    """
    first, second = run_all(text, 2, tmp_path)
    assert first == second
    assert len(first["seen"]) == 2 * 13
    assert first["seen"][::2] != first["seen"][1::2]


def test_groups_beside_each_other_share_out_the_samples(tmp_path):
    text = """
    number = rank // 2
    group = penstock.ProcessGroup([2 * number, 2 * number + 1])
    options = dict(rank=number, world_size=2)
    loader = penstock.Loader(DATA, 16, shuffle=True, seed=5, device=DEVICE, group=group, **options)
    batches = [copied(batch) for batch in loader]
    expected = [{n: np.array(a) for n, a in b.items()} for b in penstock.Loader(
        DATA, 16, shuffle=True, seed=5, device="host:9", **options)]
    loader.close()
    answer(good=all(map(same, batches, expected)), batches=len(batches), expected=len(expected))
    """
    for said in run_all(text, 4, tmp_path):
        assert said == {"good": True, "batches": 7, "expected": 7}


def test_a_group_of_torch_distributed(tmp_path):
    pytest.importorskip("torch")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    text = """
    import torch
    torch.distributed.init_process_group("gloo")
    both = torch.distributed.new_group([1, 0])
    group = penstock.ProcessGroup(both)
    loader = penstock.Loader({"x": torch.arange(100)}, 8, shuffle=True, device=DEVICE, group=group)
    total = 0
    for batch in loader:
        x = batch["x"].clone()
        parts = [torch.empty_like(x) for _ in range(2)]
        torch.distributed.all_gather(parts, x)
        assert torch.equal(parts[0], parts[1])
        total += int(x.sum())
    loader.close()
    torch.distributed.destroy_process_group()
    answer(total=total)
    """
    assert [said["total"] for said in run_all(text, 2, tmp_path, job=port)] == [4950, 4950]


@KILLED
def test_a_killed_rank_is_named_and_nothing_is_left(ranks, device, tmp_path):
    text = """
    loader = penstock.Loader(DATA, 16, shuffle=True, seed=5, device=DEVICE, group=penstock.ProcessGroup())
    print("started", flush=True, file=sys.stderr)
    right, said, expected = True, "", iter([])
    try:
        epochs = alone()
        while right:
            for batch, one in zip(loader, epochs, strict=True):
                right = right and same(copied(batch), {n: np.array(a) for n, a in one.items()})
    except penstock.Error as error:
        said = str(error)
    loader.close()
    answer(right=bool(right), said=said)
    """
    kill_in_turn(body(text, device), ranks, "started", 0.3, tmp_path)


def test_a_rank_that_does_not_come_is_named_after_the_timeout(tmp_path):
    text = """
    said = ""
    if rank == 1:
        wait_for("said")
    else:
        try:
            penstock.Loader(DATA, 16, device=DEVICE, group=penstock.ProcessGroup(timeout=1))
        except penstock.Error as error:
            said = str(error)
        tell("said")
    answer(said=said)
    """
    first, _ = run_all(text, 2, tmp_path, patience=60)
    assert "Rank 1 of the group has not come within 1 s" in first["said"]


def test_other_options_are_refused(tmp_path):
    text = """
    try:
        penstock.Loader(DATA, 16, seed=rank, device=DEVICE, group=penstock.ProcessGroup())
    except penstock.InvalidArgument as error:
        answer(said=str(error))
    """
    for said in run_all(text, 2, tmp_path):
        assert "seed 0" in said["said"]
        assert "seed 1" in said["said"]


def test_ctrl_c_is_heard_while_others_are_waited_for(tmp_path):
    text = """
    import threading
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background leaves it ignored
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        penstock.Loader(DATA, 16, device=DEVICE, group=penstock.ProcessGroup(rank=0, processes=2))
    except KeyboardInterrupt:
        answer(heard=True)
    """
    assert run_all(text, 1, tmp_path) == [{"heard": True}]


@pytest.fixture
def ranks_of_torchrun(monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "a"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "1")


def test_a_group_knows_its_place(ranks_of_torchrun, monkeypatch):
    group = penstock.ProcessGroup([3, 1])
    assert (group.rank, group.size) == (1, 2)
    assert (penstock.ProcessGroup().rank, penstock.ProcessGroup().size) == (1, 4)
    own = penstock.ProcessGroup(rank=2, processes=3, job="mine")
    assert (own.rank, own.size) == (2, 3)
    with pytest.raises(penstock.InvalidArgument, match="has rank 1"):
        penstock.ProcessGroup([0, 2])
    for ranks in ([1, 1], "01", 1, [1, 4]):
        with pytest.raises(penstock.InvalidArgument):
            penstock.ProcessGroup(ranks)
    with pytest.raises(penstock.InvalidArgument, match="both"):
        penstock.ProcessGroup(rank=1)
    with pytest.raises(penstock.InvalidArgument, match="seconds above 0"):
        penstock.ProcessGroup(timeout=0)
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(group)
    with pytest.raises(penstock.InvalidArgument, match="distributed=True shares out"):
        penstock.Loader(np.zeros((4, 2)), group=group, distributed=True)
    with pytest.raises(penstock.InvalidArgument, match="Leave out relay"):
        penstock.Loader(np.zeros((4, 2)), group=group, relay="auto")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(penstock.InvalidArgument, match="on one host"):
        penstock.ProcessGroup()


def test_a_group_outside_torchrun_is_told_its_place(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(penstock.InvalidArgument, match="torchrun"):
        penstock.ProcessGroup()
    loader = penstock.Loader(np.arange(10), 5, device="host:6", group=penstock.ProcessGroup(rank=0, processes=1))
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert "the group is one process" in loader.describe()[0]


FED = """
import gc
import torch
from torch.utils.data import DataLoader, RandomSampler, Sampler, TensorDataset
def dataset():
    return TensorDataset(*(torch.from_numpy(array) for array in DATA.values()))
def loader_of(**options):
    return DataLoader(dataset(), **{"batch_size": 16, "shuffle": True, **options})
def kept(batch):
    copy = [penstock.to_host(field).clone() for field in batch]
    if DEVICE.startswith("host"):
        for field in batch:
            field[...] = 1
    return copy
def alike(ours, theirs):
    return len(ours) == len(theirs) and all(
        len(a) == len(b) and all(map(torch.equal, a, b)) for a, b in zip(ours, theirs))
"""


def feed_all(text, ranks, tmp_path, device="host:{rank}", **more):
    return answers(start(body(FED, device) + textwrap.dedent(text), ranks, tmp_path, **more), tmp_path)


FEEDS = """
group = penstock.ProcessGroup()
good = True
for options in ({}, {"num_workers": 2}, {"drop_last": True, "batch_size": 7}, {"batch_size": 1}):
    torch.manual_seed(6)
    fed = penstock.feed(loader_of(**options), device=DEVICE, group=group)
    epochs, states = [], []
    for most in (None, 3, None, None):
        epochs.append([])
        for taken, batch in enumerate(fed, 1):
            epochs[-1].append(kept(batch))
            if taken == most:
                break
        batch = None
        states.append(torch.get_rng_state())
    torch.manual_seed(6)
    plain = penstock.feed(loader_of(**options), device="host:9", sharded=True)
    for most, ours, state in zip((None, 3, None, None), epochs, states):
        theirs = []
        for taken, batch in enumerate(plain, 1):
            theirs.append([field.clone() for field in batch])
            if taken == most:
                break
        good = good and alike(ours, theirs) and torch.equal(state, torch.get_rng_state())
answer(good=bool(good), described=fed.describe()[:2], batches=fed.stats().batches)
"""


@pytest.mark.parametrize(
    ("ranks", "device"), [(2, "host:{rank}"), (3, "host:{rank},late=1"), (2, "host:{rank},link=1"), (2, APART)]
)
def test_feeds_get_the_batches_of_the_loader_in_all_processes(ranks, device, tmp_path):
    pytest.importorskip("torch")
    for said in feed_all(FEEDS, ranks, tmp_path, device):
        assert said["good"]
        how = "whole batches over this link: " if device == APART else f"1/{ranks} of each batch"
        assert said["described"][1].startswith(how)
        assert said["batches"] == 3 * 203 + 3


@DEVICES
def test_feeds_whose_samplers_differ_are_refused_in_the_place_of_the_batch(device, tmp_path):
    pytest.importorskip("torch")
    text = """
    torch.manual_seed(rank)
    fed = penstock.feed(loader_of(), device=DEVICE, group=penstock.ProcessGroup())
    batches, said = taken(fed)
    torch.manual_seed(7)  # and again together
    good = alike([kept(batch) for batch in fed], loader_with(7))
    answer(batches=batches, said=said, good=good)
    """
    text = "def loader_with(seed):\n    torch.manual_seed(seed)\n    return list(loader_of())\n" + textwrap.dedent(text)
    for said in feed_all(text, 2, tmp_path, device):
        assert said["batches"] == 0
        assert "drawn other samples" in said["said"]
        assert said["good"]


@DEVICES
def test_feeds_of_which_one_has_fewer_batches_are_refused_at_its_end(device, tmp_path):
    pytest.importorskip("torch")
    text = """
    class Some(Sampler):
        def __iter__(self):
            return iter(range(64 if rank == 1 else 96))
        def __len__(self):
            return 96
    fed = penstock.feed(loader_of(shuffle=False, sampler=Some()), device=DEVICE, group=penstock.ProcessGroup())
    batches, said = taken(fed)
    answer(batches=batches, said=said)
    """
    for said in feed_all(text, 2, tmp_path, device):
        assert said["batches"] == 4
        assert "drawn other samples" in said["said"]


@DEVICES
def test_a_feed_that_leaves_early_keeps_nobody_waiting_and_one_that_goes_on_alone_is_named(device, tmp_path):
    pytest.importorskip("torch")
    text = """
    fed = penstock.feed(loader_of(shuffle=False), device=DEVICE, group=penstock.ProcessGroup())
    x = fed.dataset.tensors[0] if rank == 1 else None
    taken, said = 0, ""
    try:
        for batch in fed:
            taken += 1
            if rank == 1 and taken == 4:
                break
            if rank == 0 and taken == 4:
                wait_for("left")
        if rank == 1:
            del batch
            gc.collect()
            x[:] = 0  # nobody reads it any more
            tell("left")
            next(iter(fed))
    except penstock.Error as error:
        said = str(error)
    answer(taken=taken, said=said)
    """
    first, second = feed_all(text, 2, tmp_path, device)
    assert 4 <= first["taken"] < 13
    assert "went to another epoch or place" in first["said"]
    assert second["taken"] == 4
    assert second["said"]


@DEVICES
def test_a_sampler_that_raises_in_one_process_is_an_error_in_all(device, tmp_path):
    pytest.importorskip("torch")
    text = """
    class Fails(Sampler):
        def __iter__(self):
            yield from range(40)
            if rank == 1:
                raise LookupError("no more of them")
            yield from range(40, 203)
        def __len__(self):
            return 203
    fed = penstock.feed(loader_of(shuffle=False, sampler=Fails()), device=DEVICE, group=penstock.ProcessGroup())
    batches, said = taken(fed)
    answer(batches=batches, said=said)
    """
    first, second = feed_all(text, 2, tmp_path, device)
    assert (first["batches"], second["batches"]) == (2, 2)
    assert "its sampler raised an exception" in first["said"]
    assert second["said"] == "LookupError: no more of them"


@KILLED
def test_a_killed_rank_of_a_feed_is_named_and_nothing_is_left(ranks, device, tmp_path):
    pytest.importorskip("torch")
    text = """
    fed = penstock.feed(loader_of(shuffle=False), device=DEVICE, group=penstock.ProcessGroup())
    wanted, right, said = list(loader_of(shuffle=False)), True, ""
    try:
        while right:
            for batch, one in zip(fed, wanted, strict=True):
                right = right and alike([kept(batch)], [one])
                print("got one", flush=True, file=sys.stderr)
    except penstock.Error as error:
        said = str(error)
    answer(right=bool(right), said=said)
    """
    kill_in_turn(body(FED, device) + textwrap.dedent(text), ranks, "got one", 0.3, tmp_path)


def test_what_a_feed_of_processes_cannot_gather_is_refused(monkeypatch):
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader, TensorDataset

    monkeypatch.delenv("RANK", raising=False)
    group = penstock.ProcessGroup(rank=0, processes=1)
    x = torch.arange(40)

    def refused(match, loader=None, **options):
        loader = DataLoader(TensorDataset(x), batch_size=4) if loader is None else loader
        with pytest.raises(penstock.InvalidArgument, match=match):
            penstock.feed(loader, device="host:6", group=group, **options)

    refused("and not a DataLoader itself.*Loader", [x])
    refused("makes the samples itself", DataLoader(list(range(10)), batch_size=2))
    refused("native=False", native=False)
    refused("prefetch_depth is 0", prefetch_depth=0)
    fed = penstock.feed(DataLoader(TensorDataset(x), batch_size=4), device="host:6", group=group)
    assert fed.describe()[-1] == "the processes have not met yet"
    first = iter(fed)
    next(first)
    assert torch.cat([batch[0] for batch in fed]).tolist() == x.tolist()
    with pytest.raises(penstock.Closed, match="a newer one"):
        next(first)
    iterator = iter(fed)
    next(iterator)
    x[0] = 1
    with pytest.raises(penstock.InvalidArgument, match="written meanwhile"):
        list(iterator)
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(fed)


@DEVICES
def test_loaders_of_processes_take_samplers_that_agree(device, tmp_path):
    text = """
    order = np.random.default_rng(3).permutation(203)
    group = penstock.ProcessGroup()
    loader = penstock.Loader(DATA, 16, sampler=order, device=DEVICE, group=group)
    good = True
    for _ in range(2):
        seen = np.concatenate([copied(batch)["x"] for batch in loader])
        good = good and np.array_equal(seen, DATA["x"][order])
    other = penstock.Loader(DATA, 16, sampler=np.roll(order, rank), device=DEVICE, group=group)
    _, said = taken(other)
    answer(good=bool(good), said=said)
    """
    for said in run_all(text, 2, tmp_path, device):
        assert said["good"]
        assert "drawn other samples" in said["said"]
