"""to_host: results with memory of their own, results in pinned memory, and copies into arrays that the caller has."""

import collections
import io

import numpy as np
import pytest
import torch

import penstock
from support import gpu, is_gpu, random_bytes, run_in_threads, same

SIZES = [0, 1, 1000, (64 << 10) + 3, (256 << 10) + 1, 9 << 20]


def saved_bytes(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    return len(file.getvalue())


def a_nest(random):
    return {
        "many": [random_bytes(random, count) for count in SIZES],
        "pair": (torch.rand(3, 4), {"half": torch.rand(5, 2).half(), "n": 3}),
        "array": random.random((4, 5)),
        "ordered": collections.OrderedDict(a=torch.rand(2), b="text"),
    }


def like(nest):
    """The same nest around other memory, which holds other bytes."""
    if isinstance(nest, torch.Tensor):
        return torch.full(nest.shape, 7, dtype=nest.dtype)
    if isinstance(nest, np.ndarray):
        return np.full(nest.shape, 7, nest.dtype)
    if isinstance(nest, dict):
        return type(nest)((key, like(value)) for key, value in nest.items())
    return type(nest)(map(like, nest)) if isinstance(nest, list | tuple) else nest


def arrays_of(nest):
    if isinstance(nest, torch.Tensor | np.ndarray):
        return [nest]
    children = nest.values() if isinstance(nest, dict) else nest if isinstance(nest, list | tuple) else ()
    return [array for child in children for array in arrays_of(child)]


@pytest.mark.parametrize("way", ["new", "pinned", "out"])
def test_each_result_has_a_storage_of_its_own(device, random, way):
    tree = [random_bytes(random, count) for count in SIZES]
    there = penstock.to_device(tree, device)
    back = penstock.to_host(there, **({"out": like(tree)} if way == "out" else {"pinned": way == "pinned"}))
    assert same(back, tree)
    assert [tensor.untyped_storage().nbytes() for tensor in back] == SIZES
    assert all(saved_bytes(tensor) < tensor.nbytes + 4096 for tensor in back)


def test_out_receives_the_bytes(device, random):
    tree = a_nest(random)
    out = like(tree)
    before = arrays_of(out)
    addresses = [np.asarray(array).ctypes.data for array in before]
    assert penstock.to_host(penstock.to_device(tree, device), out=out) is out
    assert all(a is b for a, b in zip(arrays_of(out), before, strict=True))
    assert [np.asarray(array).ctypes.data for array in before] == addresses
    assert same(out, tree)


def test_out_receives_arrays_of_the_host_too(device, random):
    tree = a_nest(random)
    mixed = {**tree, "many": penstock.to_device(tree["many"], device)}
    assert same(penstock.to_host(mixed, out=like(tree)), tree)
    assert same(penstock.to_host(tree, out=like(tree)), tree)


def test_out_of_one_library_for_arrays_of_the_other(device, random):
    tree = [torch.rand(3, 4), random.random(5)]
    out = [np.zeros((3, 4), np.float32), torch.zeros(5, dtype=torch.float64)]
    penstock.to_host(penstock.to_device(tree, device), out=out)
    assert out[0].tobytes() == tree[0].numpy().tobytes() and out[1].numpy().tobytes() == tree[1].tobytes()


def test_out_keeps_its_strides(device, random):
    images = torch.rand(2, 3, 4, 5)
    tree = [images, images.contiguous(memory_format=torch.channels_last), random.random((3, 4)), torch.rand(1, 6)]
    out = [
        torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.zeros(5, 4, 3, 2).permute(3, 2, 1, 0),
        np.zeros((3, 4), order="F"),
        torch.zeros(6, 1).t(),
    ]
    strides = [np.asarray(array).strides for array in out]
    there = penstock.to_device(tree, device)
    assert same(penstock.to_host(there, out=out), tree)
    assert same(penstock.to_host(tree, out=like(tree)), tree)
    assert [np.asarray(array).strides for array in out] == strides


def test_out_receives_views_and_what_requires_a_gradient(device):
    base = torch.rand(6, 8)
    views = [base[:, ::2], base.t(), base[:1].expand(4, 8), torch.tensor([1 + 2j, 3j]).conj()]
    there = [view.to(device) if is_gpu(device) else view for view in views]
    out = [torch.zeros(view.shape, dtype=view.dtype) for view in views]
    penstock.to_host(there, out=out)
    assert all(torch.equal(a, b.resolve_conj()) for a, b in zip(out, views, strict=True))
    layer = torch.nn.Linear(3, 2)
    weights = {"weight": torch.zeros(2, 3), "bias": np.zeros(2, np.float32)}
    penstock.to_host(dict(layer.to(device if is_gpu(device) else "cpu").named_parameters()), out=weights)
    assert torch.equal(weights["weight"], layer.weight.detach().cpu())
    assert torch.equal(torch.from_numpy(weights["bias"]), layer.bias.detach().cpu())


def test_out_that_lies_in_a_slice_of_other_memory(device, random):
    """As a model's state in one block: nothing outside is written."""
    block = torch.full((1000,), 7, dtype=torch.uint8)
    sent = [random_bytes(random, 100), random_bytes(random, 300)]
    penstock.to_host(penstock.to_device(sent, device), out=[block[100:200], block.numpy()[500:800]])
    assert same([block[100:200], block[500:800]], sent)
    assert (torch.cat([block[:100], block[200:500], block[800:]]) == 7).all()


def test_a_nest_that_is_its_own_out(device, random):
    tree = {"a": random_bytes(random, 1000), "b": penstock.to_device(random_bytes(random, 10), "host")}
    expected = {key: value.clone() for key, value in tree.items()}
    assert penstock.to_host(tree, out=tree) is tree and same(tree, expected)


def test_out_in_the_memory_of_a_host_device(random):
    sent = [random_bytes(random, count) for count in SIZES]
    for host in ("host", "host:late=1"):
        out = penstock.to_device(like(sent), host)
        assert same(penstock.to_host(penstock.to_device(sent, "host"), out=out), sent)


def test_out_in_other_containers(device, random):
    penstock.register_batch_type(Boxed, lambda box: [box.content], lambda box, parts: Boxed(*parts))
    tree = collections.OrderedDict(a=Boxed(torch.rand(3)), b=Point(torch.rand(2), [torch.rand(1)]))
    out = {"b": Point(torch.zeros(2), [torch.zeros(1)]), "a": Boxed(torch.zeros(3))}
    penstock.to_host(penstock.to_device(tree, device), out=out)
    assert same([out["a"].content, out["b"]], [tree["a"].content, tree["b"]])
    assert penstock.to_host(3, out=4) == 4 and penstock.to_host([], out=[]) == []


class Boxed:
    def __init__(self, content):
        self.content = content


Point = collections.namedtuple("Point", "x y")


class Tagged(torch.Tensor):
    pass


class Moving:
    def to(self, device):
        return self


def read_only(shape):
    array = np.zeros(shape, np.float32)
    array.setflags(write=False)
    return array


BLOCK = torch.zeros(100)
SOURCE = torch.arange(10.0)
BAD_OUTS = {
    "missing": ({"a": 3}, r"out\['a'\] is not an array but of type int"),
    "no dict": ([torch.zeros(3)], "out is not a dict"),
    "other key": ({"b": torch.zeros(3)}, r"out\['a'\] is missing"),
    "one too many": ({"a": torch.zeros(3), "b": torch.zeros(3)}, r"out\['b'\] is not in the nest"),
    "shape": ({"a": torch.zeros(3, 1)}, r"out\['a'\] is float32 of shape \(3, 1\), .* float32 of shape \(3,\)"),
    "dtype": ({"a": np.zeros(3)}, r"out\['a'\] is float64 of shape"),
    "meta": ({"a": torch.zeros(3, device="meta")}, r"out\['a'\] lies on meta"),
    "read-only": ({"a": read_only(3)}, r"out\['a'\] is read-only"),
    "gradient": ({"a": torch.zeros(3, requires_grad=True)}, r"out\['a'\] requires a gradient"),
    "expanded": ({"a": torch.zeros(1).expand(3)}, r"out\['a'\] has elements that lie apart or overlap"),
    "gaps": ({"a": torch.zeros(6)[::2]}, r"out\['a'\] has elements that lie apart"),
    "backwards": ({"a": np.zeros(3, np.float32)[::-1]}, r"out\['a'\] has elements that lie apart"),
    "byte order": ({"a": np.zeros(3, ">f4")}, r"out\['a'\] has elements .* not plain numbers"),
    "sparse": ({"a": torch.zeros(3).to_sparse()}, r"out\['a'\] is sparse"),
    "subclass": ({"a": torch.zeros(3).as_subclass(Tagged)}, r"out\['a'\] is sparse, quantised or of a type"),
    "masked": ({"a": np.ma.masked_array(np.zeros(3, np.float32), [1, 0, 0])}, r"out\['a'\] is a masked"),
    "conjugate": ({"a": torch.zeros(3, dtype=torch.complex64).conj()}, r"out\['a'\] is a conjugate"),
}


@pytest.mark.parametrize("name", BAD_OUTS)
def test_an_out_that_cannot_be_written_is_named(device, name):
    out, message = BAD_OUTS[name]
    with pytest.raises(penstock.InvalidArgument, match=message):
        penstock.to_host(penstock.to_device({"a": torch.ones(3)}, device), out=out)


@pytest.mark.parametrize(
    ("tree", "out", "message"),
    [
        ([SOURCE, [1, SOURCE]], [BLOCK[:10], [1, BLOCK[9:19]]], r"out\[1\]\[1\] shares memory with out\[0\]"),
        ([SOURCE, SOURCE], [BLOCK[:10], BLOCK[:10].numpy()], r"out\[\d\] shares memory with out\[\d\]"),
        ([BLOCK[:10]], [BLOCK[1:11]], r"out\[0\] shares memory with an array to copy"),
        ([BLOCK[:10], BLOCK[10:20]], [BLOCK[10:20], BLOCK[:10]], "shares memory with an array to copy"),
        ([BLOCK[:50], SOURCE], [BLOCK[:50], BLOCK[40:50]], r"out\[\d\] shares memory with out\[\d\]"),
        ([BLOCK[:50], BLOCK[5:6], SOURCE], [*like([BLOCK[:50], BLOCK[5:6]]), BLOCK[8:18]], r"out\[2\] shares memory"),
        ([SOURCE, 1], [like(SOURCE), like(SOURCE)], r"out\[1\] is an array, and none is copied there"),
        ([SOURCE, (SOURCE,)], [like(SOURCE), [like(SOURCE)]], r"out\[1\] is not a tuple of 1"),
        ([SOURCE], [like(SOURCE), like(SOURCE)], "out is not a list of 1"),
        ([SOURCE], (like(SOURCE),), "out is not a list of 1"),
    ],
)
def test_nothing_is_written_if_a_part_of_out_cannot_be(tree, out, message):
    held = [array.copy() if isinstance(array, np.ndarray) else array.clone() for array in arrays_of(out)]
    versions = [getattr(array, "_version", 0) for array in arrays_of(out)]
    with pytest.raises(penstock.InvalidArgument, match=message):
        penstock.to_host(tree, out=out)
    assert same(arrays_of(out), held)
    assert [getattr(array, "_version", 0) for array in arrays_of(out)] == versions


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (torch.eye(3).to_sparse(), "a Tensor is not copied into"),
        (torch.ones(3).as_subclass(Tagged), "a Tagged is not copied into"),
        (Moving(), "a Moving is not copied into"),
        (torch.nn.Linear(1, 1), "a module is not copied"),
        (torch.ones(3, device="meta"), "a meta tensor"),
    ],
)
def test_what_moves_itself_is_not_copied_into_out(thing, message):
    with pytest.raises(TypeError, match=rf"batch\['a'\]\[0\]: {message}"):
        penstock.to_host({"a": [thing]}, out={"a": [torch.zeros(3)]})


def test_out_and_pinned_at_once():
    with pytest.raises(penstock.InvalidArgument, match="Leave `pinned` out"):
        penstock.to_host(torch.ones(3), out=torch.ones(3), pinned=True)


def test_out_may_be_parameters_where_pytorch_allows_writing(device, random):
    layer = torch.nn.Linear(3, 2)
    sent = penstock.to_device({"weight": torch.rand(2, 3), "bias": torch.rand(2)}, device)
    with torch.no_grad():
        penstock.to_host(sent, out=dict(layer.named_parameters()))
    assert same(dict(layer.state_dict()), sent)
    with torch.inference_mode():
        inference = torch.zeros(2)
        assert same(penstock.to_host(sent["bias"], out=inference), sent["bias"])
    with pytest.raises(penstock.InvalidArgument, match="out was made in torch"):
        penstock.to_host(sent["bias"], out=inference)


@pytest.mark.parametrize("older", [False, True])
def test_autograd_notices_that_out_was_written(device, monkeypatch, older):
    if older:
        monkeypatch.delattr(torch.autograd.graph, "increment_version")
    weights, saved = torch.ones(3, requires_grad=True), torch.zeros(4)
    loss = (weights * saved[:3]).sum()
    penstock.to_host(penstock.to_device(torch.ones(4), device), out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_out_from_several_threads(device, random):
    failures = []

    def work():
        generator = np.random.default_rng()
        for _ in range(20):
            tree = [random_bytes(generator, count) for count in (10, 1000, 300_000)]
            if not same(penstock.to_host(penstock.to_device(tree, device), out=like(tree)), tree):
                failures.append(tree)

    run_in_threads(work, 3)
    assert not failures


def test_out_without_the_exchange_api(device, random, exchange_api):
    tree = a_nest(random)
    assert same(penstock.to_host(penstock.to_device(tree, device), out=like(tree)), tree)


@pytest.mark.skipif(penstock.devices()[0].backend == "cuda", reason="a GPU")
def test_without_a_gpu_nothing_is_pinned(random):
    tree = a_nest(random)
    back = penstock.to_host(tree, pinned=True)
    assert all(a is b for a, b in zip(arrays_of(back), arrays_of(tree), strict=True))


@gpu
def test_pinned_results(random):
    tree = {**a_nest(random), "views": [torch.rand(3, 4).t(), torch.rand(8)[::2], torch.rand(3).requires_grad_()]}
    for nest in (tree, penstock.to_device(tree, "cuda")):
        back = penstock.to_host(nest, pinned=True)
        assert same(back, tree)
        tensors = [array for array in arrays_of(back) if isinstance(array, torch.Tensor) and array.numel()]
        assert all(tensor.is_pinned() for tensor in tensors)
        assert [tensor.untyped_storage().nbytes() for tensor in tensors] == [tensor.nbytes for tensor in tensors]
        again = penstock.to_host(back, pinned=True)
        assert all(a is b for a, b in zip(arrays_of(again), arrays_of(back), strict=True))
