import collections
import dataclasses
import gc
import mmap
import sys
import threading
import time
import weakref

import numpy as np
import pytest
import torch

import penstock
from dlpack import Foreign
from penstock import _core, _others
from penstock._engines import engine_for
from support import place, run_in_threads, same, send_to

Point = collections.namedtuple("Point", "x y")

TORCH_DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]


@dataclasses.dataclass(frozen=True)
class Sample:
    image: object
    label: object
    note: str = "note"


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_tensors_of_every_dtype(device, dtype):
    tensor = (torch.rand(5, 7) * 100).to(dtype)
    sent = penstock.to_device(tensor, device)
    assert type(sent) is torch.Tensor
    assert sent.device.type == torch.device(place(device)).type
    assert sent.data_ptr() != tensor.data_ptr()
    assert same(sent, tensor)


@pytest.mark.parametrize("dtype", ["?", "b", "B", "h", "H", "i", "I", "l", "L", "q", "Q", "e", "f", "d", "F", "D"])
def test_numpy_arrays_of_every_dtype(device, random, dtype):
    array = (random.random((3, 4)) * 100).astype(dtype)
    if device.startswith("cuda") and dtype in "IQLH":
        pytest.importorskip("torch", minversion="2.3")
    sent = penstock.to_device(array, device)
    assert same(sent, array)


@pytest.mark.parametrize("count", [0, 1, 63, 1 << 10, (64 << 10) + 3, (256 << 10) + 1, 5 << 20])
def test_sizes_across_all_paths(device, random, count):
    arrays = [torch.from_numpy(random.integers(0, 256, count, dtype=np.uint8)) for _ in range(3)]
    sent = penstock.to_device(arrays, device)
    assert same(sent, arrays)
    assert same(penstock.to_host(sent), arrays)


def test_many_small_and_a_few_large_in_one_call(device, random):
    tree = {i: torch.from_numpy(random.integers(0, 256, random.integers(0, 4000), dtype=np.uint8)) for i in range(500)}
    tree["large"] = torch.from_numpy(random.integers(0, 256, 9 << 20, dtype=np.uint8))
    assert same(penstock.to_device(tree, device), tree)


def test_large_arrays_in_blocks_with_small_and_pinned_ones_between(device, random):
    """The first block of what is staged has 64 MiB, and each next one twice as many."""
    engine = engine_for(device)
    lengths = [7, 40 << 20, 3000, (30 << 20) + 5, 0, 80 << 20, 60 << 20, 11, 300_001]
    tree = [random.integers(0, 256, length, dtype=np.uint8) for length in lengths]
    tree += [penstock.to_host(penstock.to_device(array, device), pinned=True) for array in tree[2:4]]
    assert same(send_to(engine, tree).land(), tree)


@pytest.mark.parametrize("wanted", [True, False])
def test_no_garbage_is_collected_while_results_are_made(device, wanted):
    tree = [torch.ones(1) for _ in range(5000)]
    runs = []
    note = lambda phase, _: runs.append(phase)  # noqa: E731
    was_wanted = gc.isenabled()
    (gc.enable if wanted else gc.disable)()
    gc.collect()
    gc.callbacks.append(note)
    try:
        sent = penstock.to_device(tree, device)
        assert gc.isenabled() == wanted
    finally:
        gc.callbacks.remove(note)
        (gc.enable if was_wanted else gc.disable)()
    assert runs.count("start") <= 1  # once the results are there
    assert same(sent, tree)


def test_structure_comes_out_as_it_went_in(device, random):
    a = torch.from_numpy(random.random(4))
    tree = {
        "dict": {"a": a, 3: a + 1},
        "list": [a, [a, ()], (a, None, 2.5, True, b"bytes", "text", 1 + 2j)],
        "point": Point(a, [a]),
        "ordered": collections.OrderedDict(z=a, y=a),
        "default": collections.defaultdict(list, k=a),
        "user": collections.UserDict(k=a),
        "empty": [{}, [], ()],
        "size": torch.Size([1, 2]),
        "range": range(3),
        "strings": np.array(["a", "bc"]),
        "scalar": np.float32(3),
    }
    sent = penstock.to_device(tree, device)
    for key, value in tree.items():
        assert type(sent[key]) is type(value)
    assert same(sent["dict"], tree["dict"])
    assert same(sent["list"], tree["list"])
    assert same(sent["point"].y, [a])
    assert list(sent["ordered"]) == ["z", "y"]
    assert sent["default"].default_factory is list
    assert same(sent["user"]["k"], a)
    assert sent["empty"] == [{}, [], ()]
    assert sent["size"] == torch.Size([1, 2])
    assert sent["strings"] is tree["strings"]


def test_dataclasses_keep_type_and_other_fields(device, random):
    image = torch.from_numpy(random.random(4))
    sample = Sample(image, np.arange(3), "mine")
    sent = penstock.to_device(sample, device)
    assert type(sent) is Sample and sent.note == "mine"
    assert same(sent.image, sample.image) and same(sent.label, sample.label)
    assert sample.image is image, "the batch that went in is left alone"


def test_the_nest_that_went_in_is_left_alone(device):
    inner = [torch.ones(2)]
    tree = {"a": inner, "b": collections.OrderedDict(c=inner[0])}
    before = inner[0]
    penstock.to_device(tree, device)
    assert tree["a"] is inner and inner[0] is before and tree["b"]["c"] is before


def test_gaps_and_strides(device):
    base = torch.arange(4 * 6 * 8, dtype=torch.float32).reshape(4, 6, 8)
    views = {
        "step": base[:, ::2, 1:7],
        "transposed": base.transpose(0, 2),
        "expanded": base[:1].expand(5, 6, 8),
        "channels_last": torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "scalar": base[1, 2, 3],
        "empty": base[:0],
    }
    sent = penstock.to_device(views, device)
    for name, view in views.items():
        assert same(sent[name], view), name
    assert sent["transposed"].stride() == views["transposed"].stride()
    assert sent["channels_last"].is_contiguous(memory_format=torch.channels_last)


def test_numpy_with_gaps_reversed_fortran_and_foreign_byte_order(device):
    base = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    swapped = base.astype(">i4")
    arrays = [base[:, ::2], base[::-1], np.asfortranarray(base), base.T, base[1, 2, 3:4], np.array(3.5)]
    sent = penstock.to_device(arrays, device)
    assert all(
        same(torch.as_tensor(s), torch.as_tensor(np.ascontiguousarray(a).reshape(a.shape)))
        for s, a in zip(sent, arrays, strict=True)
    )
    assert same(torch.as_tensor(penstock.to_device(swapped, device)), torch.as_tensor(base))


def test_read_only_arrays_and_memory_maps(device, tmp_path, random):
    np.save(tmp_path / "a.npy", random.random((100, 100)))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    frozen = np.arange(5)
    frozen.setflags(write=False)
    sent = penstock.to_device([mapped, frozen], device)
    assert same(torch.as_tensor(penstock.to_host(sent[0])), torch.as_tensor(np.array(mapped)))
    assert same(torch.as_tensor(penstock.to_host(sent[1])), torch.as_tensor(np.arange(5)))


def test_results_do_not_share_a_version_or_a_storage(device):
    a, b = penstock.to_device([torch.ones(4), torch.ones(4)], device)
    a += 1
    assert b._version == 0 and same(b, torch.ones(4))
    assert b.untyped_storage().nbytes() == 16


def test_sources_may_change_when_the_call_returns(device, random):
    for _ in range(10):
        source = torch.from_numpy(random.integers(0, 256, 3 << 20, dtype=np.uint8))
        kept = source.clone()
        sent = penstock.to_device(source, device)
        source.zero_()
        assert same(sent, kept)


def test_released_sources_may_change(device, random):
    engine = engine_for(device)
    for _ in range(5):
        source = torch.from_numpy(random.integers(0, 256, 40 << 20, dtype=np.uint8))
        kept = source.clone()
        flight = send_to(engine, [source])
        flight.release_sources()
        source.zero_()
        assert same(flight.land(), [kept])


def test_the_source_of_a_dropped_flight_is_kept_while_it_is_read(device):
    engine = engine_for(device)
    # Unmapped with the array: a later read would end the process.
    send_to(engine, np.frombuffer(mmap.mmap(-1, 128 << 20), np.uint8))
    assert same(penstock.to_device([torch.ones(5)], device), [torch.ones(5)])
    while engine.in_flight():
        time.sleep(0.001)


def test_each_device_has_one_engine():
    first, second = engine_for("host"), engine_for("host:1")
    assert engine_for("host:0") is first and engine_for("cpu") is first and first.spec == "host"
    assert second is not first and second.spec == "host:1"
    assert engine_for("host:0,memory=4MiB") is engine_for("host:memory=4MiB")
    assert engine_for("host:1,memory=4MiB") is not engine_for("host:memory=4MiB")
    assert penstock.feed([], "host:0").device == "host" and penstock.feed([], "host:1").device == "host:1"
    for wrong in ("host:16", "host:01x", "host:-1", "host:0:1"):
        with pytest.raises(penstock.InvalidArgument):
            engine_for(wrong)


def test_from_one_host_device_to_another(random):
    source = torch.from_numpy(random.integers(0, 256, 3 << 20, dtype=np.uint8))
    there = penstock.to_device({"x": source}, "host:1,late=1")["x"]
    assert same(penstock.to_device(there, "host:0,late=1"), source)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_memory_of_results_goes_back(kind):
    for _ in range(8):
        penstock.to_device(kind(np.zeros(1 << 20, np.uint8)), "host:memory=4MiB")


def test_a_source_that_was_sent_is_not_kept(device):
    array = np.arange(1000)
    before = sys.getrefcount(array)
    penstock.to_device(array, device)
    assert sys.getrefcount(array) == before


def test_a_flight_that_has_landed_twice():
    engine = engine_for("host")
    flight = send_to(engine, [torch.ones(3)])
    assert same(flight.land(), [torch.ones(3)])
    with pytest.raises(penstock.Closed, match="taken already"):
        flight.land()


def test_a_closed_engine_sends_nothing():
    engine = _core.Engine("host")
    engine.close()
    with pytest.raises(penstock.Closed, match="was closed"):
        send_to(engine, torch.ones(3))


def test_an_engine_that_is_closed_ends_the_calls_of_other_threads():
    arrays = [np.zeros(1000, np.float32) for _ in range(2000)]
    for _ in range(20):
        engine, sending, ended = _core.Engine("host:link=1"), threading.Barrier(3), []

        def send(engine=engine, sending=sending, ended=ended):
            send_to(engine, arrays)
            sending.wait()
            with pytest.raises(penstock.Closed, match="was closed"):
                while True:
                    send_to(engine, arrays)
            ended.append(True)

        threads = [threading.Thread(target=send) for _ in range(2)]
        for thread in threads:
            thread.start()
        sending.wait()
        engine.close()
        for thread in threads:
            thread.join()
        assert ended == [True] * 2


def test_results_are_aligned(device):
    sent = penstock.to_device([torch.ones(count) for count in (1, 3, 1000, 300_001, 5)], device)
    assert [tensor.data_ptr() % 256 for tensor in sent] == [0] * 5


class Emptying:
    """Empties its container when it is moved."""

    def __init__(self, container, seen):
        self.container, self.seen = container, seen

    def to(self, device):
        self.container.clear()
        return self.seen()


def test_containers_that_change_while_they_are_walked():
    array = np.ones(2)
    tree = {"b": array}
    tree = {"a": Emptying(tree, lambda: 1), **tree}
    tree["a"].container = tree
    sent = penstock.to_device(tree, "host")
    assert list(sent) == ["a", "b"] and same(sent["b"], array)
    items = [array]
    items.insert(0, Emptying(items, lambda: 1))
    with pytest.raises(IndexError):
        penstock.to_device(items, "host")
    outer, inner = [], [None, np.ones(3)]
    inner[0] = Emptying(outer, weakref.ref(inner[1]))
    outer.append(inner)
    del inner
    assert same(penstock.to_device(outer, "host"), [[np.ones(3), np.ones(3)]])


def test_tensors_that_only_pytorch_can_copy(device):
    class Tagged(torch.Tensor):
        pass

    dense = torch.eye(4)
    conjugate = torch.tensor([1 + 2j, 3 - 4j]).conj()
    leaf = torch.ones(3, requires_grad=True)
    sent = penstock.to_device(
        {
            "sparse": dense.to_sparse(),
            "tagged": dense.as_subclass(Tagged),
            "parameter": torch.nn.Parameter(torch.ones(2)),
            "grad": leaf,
            "conjugate": conjugate,
            "negative": conjugate.imag,
            "one": conjugate[:1].imag,
        },
        device,
    )
    assert sent["sparse"].is_sparse and same(sent["sparse"].to_dense(), dense)
    assert isinstance(sent["tagged"], Tagged)
    assert sent["grad"].requires_grad
    sent["grad"].sum().backward()
    assert torch.equal(leaf.grad, torch.ones(3)), "gradients reach what went in"
    assert torch.equal(sent["conjugate"].cpu().resolve_conj(), conjugate.resolve_conj())
    assert not sent["conjugate"].is_conj() and not sent["negative"].is_neg(), "copied, and not given back"
    assert torch.equal(sent["negative"].cpu().resolve_neg(), torch.tensor([-2.0, 4.0]))
    assert torch.equal(sent["one"].cpu().resolve_neg(), torch.tensor([-2.0]))


@pytest.mark.filterwarnings("ignore")
def test_quantised_tensors(device):
    tensor = torch.quantize_per_tensor(torch.rand(4), 0.1, 0, torch.quint8)
    sent = penstock.to_device(tensor, device)
    assert sent.is_quantized and torch.equal(sent.cpu().int_repr(), tensor.int_repr())


def test_what_is_there_already_is_left_alone(device):
    sent = penstock.to_device({"a": torch.ones(3), "b": torch.ones(1 << 20)}, device)
    again = penstock.to_device(sent, device)
    assert again["a"] is sent["a"] and again["b"] is sent["b"]


def test_to_host_leaves_the_host_alone(random):
    tree = [torch.ones(3), random.random(3), "text"]
    assert all(a is b for a, b in zip(penstock.to_host(tree), tree, strict=True))


def test_results_outlive_everything_else(device):
    kept = [
        penstock.to_device({"a": torch.full((1000,), float(i)), "b": torch.ones(3)}, device)["a"] for i in range(50)
    ]
    assert all(same(tensor, torch.full((1000,), float(i))) for i, tensor in enumerate(kept))


def test_without_the_exchange_api_results_are_the_same(device, exchange_api):
    tree = {"a": torch.rand(3, 4), "b": [torch.rand(2).bfloat16(), torch.rand(300_000), torch.rand(3, 4).t()]}
    sent = penstock.to_device(tree, device)
    assert same(sent, tree)
    assert sent["b"][2].stride() == (1, 4)
    assert penstock.to_device(torch.eye(4).to_sparse(), device).is_sparse, "PyTorch cannot describe it"


def test_arrays_of_other_libraries(device, random):
    array = random.random((3, 4))
    sent = penstock.to_device({"a": Foreign(array)}, device)
    assert same(torch.as_tensor(penstock.to_host(sent["a"])), torch.as_tensor(array))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.array([1, "a", None], dtype=object), "Python objects"),
        (np.ma.masked_array([1, 2], [True, False]), "mask"),
        (np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]), "dtype"),
        (np.array(["2020-01-01"], dtype="M8[D]"), "datetime64"),
        (torch.empty(3, device="meta"), "meta"),
        (np.zeros(2, dtype=np.longdouble), "longdouble|float128"),
    ],
)
def test_arrays_that_cannot_be_sent_are_named(device, bad, message):
    with pytest.raises(TypeError, match=message) as caught:
        penstock.to_device({"ok": torch.ones(2), "x": [1, (bad,)]}, device)
    assert "batch['x'][1][0]" in str(caught.value)


class Loud:
    def __repr__(self):
        raise ValueError


@pytest.mark.parametrize(
    ("key", "name"),
    [(Loud(), "Loud"), (10**5000, "int"), (("a", 1), "('a', 1)"), (("a", Loud()), "tuple"), ("x" * 10_000, "'xxx")],
    ids=["loud", "int", "tuple", "loud_tuple", "long"],
)
def test_places_have_a_name_for_any_key(key, name):
    with pytest.raises(TypeError) as caught:
        penstock.to_device({key: np.ma.masked_array([1, 2], [True, False])}, "host")
    assert name in str(caught.value).partition(":")[0]
    assert len(str(caught.value)) < 1000


def test_a_nest_that_holds_itself():
    nest = []
    nest.append(nest)
    with pytest.raises(RecursionError):
        penstock.to_device(nest, "host")


def test_a_type_that_is_taken_apart_into_itself():
    class Endless:
        pass

    penstock.register_batch_type(Endless, lambda batch: Endless(), lambda batch, nest: nest)
    with pytest.raises(RecursionError):
        penstock.to_device(Endless(), "host")


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "cuda:x", "", "host:nonsense=1"])
def test_wrong_devices(name):
    with pytest.raises((penstock.InvalidArgument, penstock.DeviceError)) as caught:
        penstock.to_device(torch.ones(1), name)
    assert len(str(caught.value)) > 20


def test_a_device_without_room():
    with pytest.raises(penstock.OutOfMemory) as caught:
        penstock.to_device(torch.ones(1 << 20), "host:memory=1MiB")
    assert caught.value.asked >= 4 << 20
    assert isinstance(caught.value, MemoryError)


def test_devices_of_other_threads(random):

    failures = []

    def work(device):
        generator = np.random.default_rng()
        for _ in range(30):
            tree = [torch.from_numpy(generator.integers(0, 256, n, dtype=np.uint8)) for n in (10, 1000, 300_000)]
            if not same(penstock.to_device(tree, device), tree):
                failures.append(device)

    run_in_threads(work, ("host", "host:late=1", "host"))
    assert not failures


@pytest.mark.parametrize(
    ("started", "own", "of_parent", "sharers"),
    [("1", 16, 16, 1), ("8", 128, 128, 8), ("8", 16, 128, 1), ("8", 64, 128, 4), ("8", 16, 16, 8), ("junk", 4, 4, 1)],
)
def test_processes_of_torchrun_share_the_processors(monkeypatch, started, own, of_parent, sharers):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", started)
    monkeypatch.setattr(_others.os, "sched_getaffinity", lambda process: range(own if process == 0 else of_parent))
    told = []
    monkeypatch.setattr(_core, "share_processors", told.append)
    penstock.to_device(np.zeros(3), f"host:15,memory={sharers + own + of_parent}MiB")
    assert told == [sharers]


def test_a_parent_that_has_ended_bound_nobody(monkeypatch):
    def affinity(process):
        if process != 0:
            raise ProcessLookupError
        return range(4)

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(_others.os, "sched_getaffinity", affinity)
    assert _others.processes_on_these_processors() == 2
