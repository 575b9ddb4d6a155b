"""to_device and load_safetensors in several processes, one device each."""

import functools
import textwrap

import numpy as np
import pytest

import fake_driver
import penstock
from ranks import kill_in_turn, program, run_in_time, run_program
from support import two_gpus

HELPERS = """
def on_host(tree):
    return penstock.to_host(tree)
def bytes_of(array):
    if hasattr(array, "detach"):
        return array.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return np.ascontiguousarray(array).tobytes()
def same(a, b):
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "dtype"):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and bytes_of(a) == bytes_of(b)
    return type(a) is type(b) and (same(vars(a), vars(b)) if hasattr(a, "__dict__") else a == b)
def random_bytes(seed, bytes):
    return np.random.default_rng(seed).integers(0, 256, bytes, np.uint8)
def send(tree, group=None, **options):
    return penstock.to_device(tree, DEVICE, group=group or penstock.ProcessGroup(), **options)
def refusal(call):
    try:
        call()
    except (penstock.Error, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
"""


body, run_all = functools.partial(program, HELPERS), functools.partial(run_program, HELPERS)


KILLED = pytest.mark.parametrize(
    ("ranks", "device"),
    [(3, "host:{rank}"), pytest.param(2, "cuda:{rank}", marks=two_gpus)],
    ids=["host", "cuda"],
)


SAME_TREES = """
import dataclasses
torch = None
try:
    import torch
except ImportError:
    pass
@dataclasses.dataclass
class Pair:
    left: object
    right: object
group = penstock.ProcessGroup()
large = random_bytes(1, 41 << 20)  # several times the ring
tree = {
    "large": large,
    "wide": large[:3 << 20].view(np.float64).reshape(-1, 32).T,
    "gaps": large[:1 << 20].reshape(1024, 1024)[::3, 1::2],
    "nothing": np.zeros((0, 7), np.int16),
    "flags": large[:999] > 100,
    "number": np.array(7, np.int32),
    "nest": [Pair(large[:1001], "text"), (None, 3, {"deep": large[5:12]})],
    "single": large[:1],
}
if torch is not None:
    tensor = torch.from_numpy(large)
    tree["bfloat16"] = tensor[: 1 << 21].view(torch.bfloat16)
    tree["transposed"] = tensor[: 1 << 20].view(torch.int64).reshape(256, 512).t()
    tree["scalar"] = torch.tensor(2.5)
    tree["mask"] = tensor[:100] > 3
many = {f"array{i}": random_bytes(i, i % 700) for i in range(5000)}
good = []
for each in (tree, many, tree, {"few": large[:99]}, [], tree["large"], 5):
    there = send(each, group)
    good.append(bool(same(on_host(there), on_host(each))))
    if each is tree:
        good.append(there["wide"].shape == tree["wide"].shape)
        if torch is not None:
            good.append(there["transposed"].stride() == tree["transposed"].stride())
loader = penstock.Loader({"x": np.arange(100)}, 8, device=DEVICE, group=group)
for number, batch in enumerate(loader):
    if number == 3:
        good.append(bool(same(on_host(send(many, group)), many)))
        loader.close()
        break
good.append(bool(same(on_host(send(tree["large"], group)), large)))
answer(good=good)
"""


# Host devices reach each other only if both are late, or none is.
@pytest.mark.parametrize(
    ("ranks", "device"),
    [(2, "host:{rank}"), (3, "host:{rank},late=1"), (2, "host:{rank},link=1"), (2, "host:{rank},late={late}")],
)
def test_all_ranks_get_the_tree(ranks, device, tmp_path):
    for said in run_all(SAME_TREES, ranks, tmp_path, device):
        assert len(said["good"]) >= 11
        assert all(said["good"]), said["good"]


def test_gpus_of_several_processes(tmp_path):
    text = """
    group = penstock.ProcessGroup()
    tree = {"a": random_bytes(1, 9 << 20), "b": [random_bytes(2, 3 << 20).view(np.int16), np.arange(5.0)]}
    good = [same(penstock.to_host(send(tree, group)), tree) for _ in range(3)]
    answer(good=[bool(each) for each in good])
    """
    for said in run_all(text, 2, tmp_path, "cuda:{rank}", LD_LIBRARY_PATH=fake_driver.library_path()):
        assert said["good"] == [True] * 3


OTHERS = {
    "a shape": '{"a": np.zeros((3, 4 + rank)), "b": 1}',
    "a dtype": '{"a": np.zeros((3, 4), np.int64 if rank else np.float64)}',
    "strides": '{"a": np.zeros((3, 4)).T if rank else np.zeros((4, 3))}',
    "a name": '{"a": np.zeros(3), f"b{rank}": np.zeros(4)}',
    "the order": 'dict([("a", np.zeros(3)), ("b", np.zeros(3))][:: -1 if rank else 1])',
    "the structure": "(np.zeros(3),) if rank else [np.zeros(3)]",
    "the number": "[np.zeros(3)] * (4 + rank)",
    "a value": "[np.zeros(3), 5 if rank else np.zeros(3)]",
    "the last of many": "[np.zeros(3) for _ in range(5000)] + [np.zeros(3 + rank)]",
    "what cannot be sent": "[np.zeros(3), np.ma.array([5], mask=[0]) if rank else np.zeros(3)]",
}


def test_trees_that_differ_are_refused_in_all_ranks(tmp_path):
    text = "\n".join(
        [
            "group = penstock.ProcessGroup()",
            "said = {}",
            *(f"said[{name!r}] = refusal(lambda: send({tree}, group))" for name, tree in OTHERS.items()),
            "said['alike'] = refusal(lambda: send([np.zeros(3), (None, 'x' * rank)], group))",
            "answer(**said)",
        ]
    )
    for rank, said in enumerate(run_all(text, 2, tmp_path)):
        assert said.pop("alike") == ""
        last = said.pop("what cannot be sent")
        if rank == 1:
            assert last.startswith("TypeError: batch[1]")
        else:
            assert last.startswith("InvalidArgument")
            assert "it failed: batch[1]" in last
        for name, error in said.items():
            assert error.startswith("InvalidArgument"), name
            assert "Rank 0: " in error
            assert "Rank 1: " in error
        assert "'a': float64 [3, 5]" in said["a shape"]
        assert "with strides [1, 4]" in said["strides"]


@KILLED
def test_a_killed_rank_is_named(ranks, device, tmp_path):
    text = """
    group = penstock.ProcessGroup()
    tree = {"large": random_bytes(1, 24 << 20), "small": random_bytes(2, 5000)}
    there, said, calls, right = [], "", 0, True
    try:
        while right:
            there = send(tree, group)
            right = same(on_host(there), tree)
            calls += 1
            print("sent", flush=True, file=sys.stderr)
    except penstock.Error as error:
        said = str(error)
    answer(right=bool(right), said=said, calls=calls)
    """
    kill_in_turn(body(text, device), ranks, "sent", 0.2, tmp_path)


@KILLED
def test_a_rank_that_is_killed_as_weights_are_loaded_is_named(ranks, device, tmp_path):
    text = """
    group = penstock.ProcessGroup()
    wanted, said, right = penstock.load_safetensors(FILE, "host:9"), "", True
    try:
        while right:
            right = same(on_host(penstock.load_safetensors(FILE, DEVICE, group=group)), wanted)
            print("loaded", flush=True, file=sys.stderr)
    except penstock.Error as error:
        said = str(error)
    answer(right=bool(right), said=said)
    """
    weights = np.random.default_rng(1).integers(0, 256, 24 << 20, np.uint8)
    file = tmp_path / "file.safetensors"
    penstock.save_safetensors({"large": weights, "small": weights[:5000].copy()}, file)
    kill_in_turn(f"FILE = {str(file)!r}\n" + body(text, device), ranks, "loaded", 0.2, tmp_path)


def test_a_rank_that_lives_and_does_nothing_is_named_after_the_timeout(tmp_path):
    text = """
    sent, said = False, ""
    group = penstock.ProcessGroup(timeout=600 if rank else SECONDS)
    tree = [random_bytes(1, 2 << 20)]
    together("here")
    try:
        send(tree, group)
        sent = True
        if rank == 0:
            send(tree, group)
    except penstock.Error as error:
        said = str(error)
    if rank == 0:
        tell("said")
    wait_for("said")
    answer(sent=sent, said=said)
    """

    def run(head, folder):
        return run_all(head + textwrap.dedent(text), 2, folder, patience=120)

    first, _, seconds = run_in_time("sent", run, tmp_path)
    assert f"Rank 1 of the group has not followed the others within {seconds} s" in first["said"]


def test_ctrl_c_is_heard_and_the_others_learn_it(tmp_path):
    text = """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background leaves it ignored
    import threading
    group = penstock.ProcessGroup(timeout=60)
    tree = [random_bytes(1, 2 << 20)]
    send(tree, group)
    if rank == 0:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            send(tree, group)
        except KeyboardInterrupt:
            tell("interrupted")
            said = "heard"
    else:
        wait_for("interrupted")
        said = refusal(lambda: send(tree, group))
    answer(said=said, again=bool(same(on_host(send(tree, group)), tree)))
    """
    first, second = run_all(text, 2, tmp_path)
    assert first["said"] == "heard"
    assert "Rank 0 of the group (PID" in second["said"]
    assert "failed: KeyboardInterrupt" in second["said"]
    assert first["again"]
    assert second["again"]


def test_an_error_of_any_text_reaches_the_others(tmp_path):
    text = """
    class Broken:
        def __init__(self, error):
            self.error = error
        def to(self, *_, **__):
            raise self.error
    class Silent(Exception):
        def __str__(self):
            raise ValueError
    group = penstock.ProcessGroup(timeout=60)
    said = []
    for error in (ValueError("no \\udcff"), Silent(), KeyError()):
        try:
            send([np.zeros(3), Broken(error) if rank else 5], group)
        except Exception as caught:
            said.append("its own" if caught is error else str(caught))
    try:
        penstock.load_safetensors("nowhere\\udcff" if rank else FILE, DEVICE, group=group)
    except Exception as caught:
        said.append(str(caught))
    answer(said=said)
    """
    file = tmp_path / "file.safetensors"
    penstock.save_safetensors({"x": np.zeros(3)}, file)
    first, second = run_all(f"FILE = {str(file)!r}\n" + textwrap.dedent(text), 2, tmp_path)
    assert second["said"][:3] == ["its own"] * 3
    for said, message in zip(first["said"], ["no \\udcff", "__main__.Silent", "KeyError", "nowhere"], strict=True):
        assert f"it failed: {message}" in said or message == "nowhere" in said


def test_keys_of_any_type(tmp_path):
    text = """
    class Loud:
        def __repr__(self):
            raise ValueError
    group = penstock.ProcessGroup(timeout=60)
    array = random_bytes(1, 2 << 20)
    tree = {object(): array, Loud(): array[:7], 10**5000: 1, ("a", 1): array[:8], (object(),): 5}
    tree["x" * 50_000] = [array[:1]]
    there = send(tree, group)
    answer(good=bool(same(on_host(there), tree)), said=refusal(lambda: send({("a", rank): array[:8]}, group)))
    """
    for said in run_all(text, 2, tmp_path):
        assert said["good"]
        assert "Rank 1: it sends {('a', 1): uint8 [8]}" in said["said"]


WEIGHTS = """
group = penstock.ProcessGroup()
def load(files, **options):
    return penstock.load_safetensors(files, DEVICE, group=group, **options)
good, paths = [], sorted(os.path.join(FOLDER, name) for name in os.listdir(FOLDER))
alone = penstock.load_safetensors(paths, "host:9")
for names in (None, None, ["w3", "w0"], ["small"], []):
    there = load(paths, names=names)
    wanted = {name: alone[name] for name in alone if names is None or name in names}
    good.append(bool(same(on_host(there), wanted)))
said = refusal(lambda: load(paths if rank == 0 else paths[:1]))
missing = refusal(lambda: load(paths if rank == 0 else paths + ["nowhere.safetensors"]))
again = bool(same(on_host(load(paths)), alone))
if rank == 1:
    tell("ready")
else:
    wait_for("ready")
answer(good=good, said=said, missing=missing, again=again, tensors=len(alone))
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_weights_are_loaded_in_all_ranks(ranks, tmp_path):
    folder = tmp_path / "weights"
    folder.mkdir()
    tensors = {f"w{i}": np.random.default_rng(i).random((1 << 18) + 1000 * i) for i in range(8)}
    tensors["small"] = np.arange(7, dtype=np.int16)
    tensors["nothing"] = np.zeros((0, 3), np.float32)
    names = sorted(tensors)
    for part in range(3):
        penstock.save_safetensors({name: tensors[name] for name in names[part::3]}, folder / f"part{part}.safetensors")
    for rank, said in enumerate(run_all(f"FOLDER = {str(folder)!r}\n" + WEIGHTS, ranks, tmp_path)):
        assert said["tensors"] == 10
        assert said["good"] == [True] * 5
        assert said["again"]
        assert "Rank 1: " in said["said"]
        assert "nowhere.safetensors" in said["missing"]
        assert ("it failed: " in said["missing"]) == (rank == 0)


def test_a_group_of_one_process_and_what_is_refused(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    group = penstock.ProcessGroup(rank=0, processes=1)
    tree = {"x": np.arange(300_000), "y": 5}
    there = penstock.to_device(tree, "host:6", group=group)
    assert there["y"] == 5
    assert (there["x"] == tree["x"]).all()
    for call in (penstock.to_device, penstock.load_safetensors):
        with pytest.raises(penstock.InvalidArgument, match="Leave out relay"):
            call("a", "host:6", group=group, relay="auto")
