"""Tests that need a GPU with PyTorch: streams, the allocator, and the order between them."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import penstock
import safetensors_files as files
from support import HAS_GPU, random_bytes, same

pytestmark = pytest.mark.skipif(not (HAS_GPU and torch.cuda.is_available()), reason="no GPU that PyTorch can use")

CYCLES = 50_000_000  # some 25 ms of torch.cuda._sleep


@pytest.mark.parametrize("count", [1000, 100_000, 40 << 20])
@pytest.mark.parametrize("pinned", [False, True])
def test_memory_that_queued_work_still_reads_is_not_overwritten(random, count, pinned):
    """PyTorch's allocator hands out memory whose last use is only queued, so our copy must wait for it."""
    host = [random_bytes(random, count) for _ in range(4)]
    if pinned:
        host = [tensor.pin_memory() for tensor in host]
    results = []
    for tensor in host:
        (sent,) = penstock.to_device([tensor], "cuda")
        torch.cuda._sleep(CYCLES)
        results.append(sent.clone())
        del sent
    for got, expected in zip(results, host, strict=True):
        assert torch.equal(got.cpu(), expected)


@pytest.mark.parametrize("count", [1000, 40 << 20])
def test_the_consumers_stream_waits(random, count):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for batch in penstock.feed([random_bytes(random, count) for _ in range(6)], "cuda"):
            checked = batch.clone()
            stream.synchronize()
            assert torch.equal(checked, batch)
        expected = random_bytes(random, count)
        (sent,) = penstock.feed([expected], "cuda")
        copy = sent.clone()
    stream.synchronize()
    assert torch.equal(copy.cpu(), expected)


def test_the_host_does_not_wait_for_what_is_queued(random):
    batches = [[random_bytes(random, 1000), random_bytes(random, 64)] for _ in range(4)]
    for times in (20, 200, 2000):  # half a second is short where other programs take the processors
        torch.cuda.synchronize()
        done = torch.cuda.Event()
        torch.cuda._sleep(times * CYCLES)
        done.record()
        kept = list(penstock.feed(batches, "cuda"))
        if not done.query():
            break
    assert not done.query(), "batches were handed out while the stream was still busy"
    torch.cuda.synchronize()
    assert same(kept, batches)


class Loader(list):
    """Batches that say who made them."""

    def __init__(self, batches, num_workers):
        super().__init__(batches)
        self.num_workers = num_workers


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("works", [True, False])
def test_pytorch_pins_what_this_process_made(random, monkeypatch, num_workers, works):
    pinned = []
    pin_memory = torch.Tensor.pin_memory

    def counted(tensor, *arguments):
        if not works:
            raise RuntimeError("no pinned memory today")
        pinned.append(tensor.numel())
        return pin_memory(tensor, *arguments)

    monkeypatch.setattr(torch.Tensor, "pin_memory", counted)
    large, columns = random_bytes(random, 3 << 20), random_bytes(random, 4 << 20).view(2048, 2048).t()
    batches = Loader([[large + k, random_bytes(random, 100), columns.clone()] for k in range(6)], num_workers)
    for batch, expected in zip(penstock.feed(batches, "cuda"), batches, strict=True):
        torch.cuda._sleep(CYCLES // 10)
        assert same(batch, expected)
        assert batch[2].stride() == expected[2].stride()
    assert pinned == ([3 << 20, 4 << 20] * 6 if works and not num_workers else [])


def test_memory_is_pytorchs(random):
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    sent = penstock.to_device(random_bytes(random, 8 << 20), "cuda")
    assert 8 << 20 <= torch.cuda.memory_allocated() - before < 9 << 20
    del sent
    penstock.to_device(torch.ones(1), "cuda")
    assert torch.cuda.memory_allocated() - before < 1 << 20


def test_batches_that_were_sent_but_never_taken(random):
    for _ in range(10):
        for batch in penstock.feed([random_bytes(random, 20 << 20) for _ in range(4)], "cuda", prefetch_depth=3):
            first = batch.clone()
            break
        expected = random_bytes(random, 20 << 20)
        assert torch.equal(penstock.to_device(expected, "cuda").cpu(), expected)
        assert torch.equal(first, batch)


@pytest.mark.parametrize("gather", ["host", "zero-copy", "copy-engine"])
def test_a_leased_batch_is_not_refilled_while_queued_work_reads_it(random, gather):
    samples = random.integers(0, 256, (64, 1 << 16), dtype=np.uint8)
    results = []
    for x in penstock.Loader(samples, 4, device="cuda", tuning=penstock.Tuning(gather=gather)):
        torch.cuda._sleep(CYCLES // 10)
        results.append(x.clone())
        del x
    assert torch.equal(torch.cat(results).cpu(), torch.from_numpy(samples))


def test_gradients_keep_a_leased_batch(random):
    samples = random.normal(size=(64, 256)).astype(np.float32)
    weights = torch.ones(256, device="cuda", requires_grad=True)
    for x in penstock.Loader(samples, 4, device="cuda"):
        (x * weights).sum().backward()
        del x
    torch.testing.assert_close(weights.grad.cpu(), torch.from_numpy(samples.sum(0)), rtol=1e-4, atol=1e-3)


def test_to_host_waits_for_what_is_queued():
    tensor = torch.zeros(1 << 20, device="cuda")
    torch.cuda._sleep(CYCLES)
    tensor += 3
    assert torch.equal(penstock.to_host({"t": tensor})["t"], torch.full((1 << 20,), 3.0))
    view = torch.arange(24.0, device="cuda").reshape(4, 6)[:, ::2]
    assert torch.equal(penstock.to_host(view), torch.arange(24.0).reshape(4, 6)[:, ::2])


@pytest.mark.parametrize("count", [1000, 100_000, 40 << 20])
@pytest.mark.parametrize("pinned", [False, True])
def test_out_gets_what_is_queued(random, count, pinned):
    sent = [random_bytes(random, count) for _ in range(3)]
    tensors = [tensor.cuda() for tensor in sent]
    out = [torch.zeros(count, dtype=torch.uint8, pin_memory=pinned) for _ in sent]
    torch.cuda._sleep(CYCLES)
    for tensor in tensors:
        tensor.bitwise_xor_(0x5A)
    assert penstock.to_host(tensors, out=out) is out
    assert all(torch.equal(a, b ^ 0x5A) for a, b in zip(out, sent, strict=True))
    columns = tensors[0][:900].view(30, 30)
    into = torch.zeros(30, 30, dtype=torch.uint8).t()
    penstock.to_host(columns, out=into)
    assert torch.equal(into, columns.cpu()) and into.stride() == (1, 30)
    with pytest.raises(penstock.InvalidArgument, match=r"out\[0\] lies on cuda:0, not on the host"):
        penstock.to_host(tensors, out=[tensor.clone() for tensor in tensors])


@pytest.mark.parametrize("count", [1000, 100_000, 40 << 20])
def test_pinned_results_stay_while_a_copy_reads_them(random, count):
    sent = [random_bytes(random, count) for _ in range(3)]
    back = penstock.to_host([tensor.cuda() for tensor in sent], pinned=True)
    assert same(back, sent)
    assert all(tensor.is_pinned() and tensor.untyped_storage().nbytes() == count for tensor in back)
    torch.cuda._sleep(CYCLES)
    there = [tensor[1:].to("cuda", non_blocking=True) for tensor in back]
    del back
    for _ in range(3):
        penstock.to_host(torch.full((count,), 7, dtype=torch.uint8, device="cuda"), pinned=True)
    assert all(torch.equal(a.cpu(), b[1:]) for a, b in zip(there, sent, strict=True))


class Tied(torch.nn.Module):
    """Tied weights, views of one block, gradients and buffers, all of random values."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(500, 64)
        self.head = torch.nn.Linear(64, 500)
        self.head.weight = self.embedding.weight
        block = torch.rand(20_000)
        self.rows = torch.nn.Parameter(block[1000:7000].view(60, 100))
        self.columns = torch.nn.Parameter(block[1000:7000].view(60, 100).t())
        self.large = torch.nn.Parameter(torch.rand(3000, 1000, dtype=torch.float64))
        self.register_buffer("counter", torch.tensor(3), persistent=False)
        self.register_buffer("bits", torch.randint(0, 256, (1 << 20,), dtype=torch.uint8))
        for parameter in self.parameters():
            parameter.grad = torch.rand_like(parameter)


def tensors_of(module):
    for name, parameter in module.named_parameters():
        yield name, parameter
        yield f"{name}.grad", parameter.grad
    yield from module.named_buffers()


def test_a_module_moves_there_and_back():
    module = Tied()
    objects = {name: id(parameter) for name, parameter in module.named_parameters()}
    expected = {name: (t.detach().clone(), t.stride(), t.requires_grad) for name, t in tensors_of(module)}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    fired = []
    module.large.register_hook(lambda gradient: fired.append(gradient.device.type))
    for device in ("cuda", "cpu", "cuda:0", "cuda", "host"):
        place = "cuda" if device.startswith("cuda") else "cpu"
        assert penstock.move_(module, device) is module
        assert {name: id(parameter) for name, parameter in module.named_parameters()} == objects
        for name, tensor in tensors_of(module):
            value, strides, requires_grad = expected[name]
            assert (tensor.device.type, tensor.stride(), tensor.requires_grad) == (place, strides, requires_grad), name
            assert torch.equal(tensor.detach().cpu(), value), name
        assert module.head.weight is module.embedding.weight
        assert module.rows.untyped_storage().data_ptr() == module.columns.untyped_storage().data_ptr()
        assert all(p is q for p, q in zip(module.parameters(), optimizer.param_groups[0]["params"], strict=True))
        (module.large.sum() * 0).backward()
        optimizer.step()
        assert fired.pop() == place
    with torch.no_grad():
        penstock.move_(module, "cuda").rows[2, 3] = 7
    assert module.columns[3, 2] == 7


def test_a_module_computes_the_same_where_it_was_moved():
    torch.manual_seed(0)
    module = torch.nn.LSTM(16, 32, num_layers=2).eval()
    x = torch.rand(5, 3, 16)
    with torch.no_grad():
        expected = module(x)[0]
        torch.testing.assert_close(penstock.move_(module, "cuda")(x.cuda())[0].cpu(), expected, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(penstock.move_(module, "cpu")(x)[0], expected)


def test_a_module_waits_for_what_is_queued_on_its_tensors():
    module = torch.nn.Linear(2000, 3000, device="cuda")
    torch.cuda._sleep(CYCLES)
    with torch.no_grad():
        module.weight.fill_(3)
    penstock.move_(module, "cpu")
    assert torch.equal(module.weight.detach(), torch.full((3000, 2000), 3.0))


def test_a_module_on_several_devices_is_refused():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, device="cuda"))
    for device in ("cuda", "cpu"):
        with pytest.raises(penstock.InvalidArgument, match=r"'\d\.\w+' on cpu, '\d\.\w+' on cuda:0"):
            penstock.move_(module, device)
    assert [parameter.device.type for parameter in module.parameters()] == ["cpu", "cpu", "cuda", "cuda"]


def test_the_current_gpu_is_pytorchs():
    assert penstock.to_device(torch.ones(1), "cuda").device.index == torch.cuda.current_device()
    assert penstock.to_device(torch.ones(1), torch.device("cuda", 0)).device.index == 0


@pytest.mark.skipif(not HAS_GPU or torch.cuda.device_count() < 2, reason="one GPU")
def test_two_gpus(random):
    a, b = ([random_bytes(random, 5 << 20) for _ in range(5)] for _ in range(2))
    for x, y, p, q in zip(penstock.feed(a, "cuda:0"), penstock.feed(b, "cuda:1"), a, b, strict=True):
        assert (x.device.index, y.device.index) == (0, 1)
        assert torch.equal(x.cpu(), p) and torch.equal(y.cpu(), q)
    assert penstock.to_device(y, "cuda:0").device.index == 0


CLOSED_MEMORY = """
import sys
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader

import penstock

data = np.random.default_rng(5).integers(0, 256, 24 << 20, dtype=np.uint8)
tensor = torch.from_numpy(data)
path = Path(sys.argv[1]) / "weights.safetensors"
penstock.save_safetensors({"weights": tensor}, path)
both = ["cuda:0", "cuda:1"]
sent = {
    "group": penstock.to_device(tensor, group=both),
    "group, pinned": penstock.to_device(tensor.pin_memory(), group=both),
    "relay": [penstock.to_device(tensor, "cuda:0", relay=["cuda:1"])],
    "weights of a group": [each["weights"] for each in penstock.load_safetensors(path, group=both)],
    "weights by a relay": [penstock.load_safetensors(path, "cuda:1", relay=["cuda:0"])["weights"]],
}
(sent["feed"],) = penstock.feed(DataLoader([tensor], batch_size=None), group=both)
for name, tensors in sent.items():
    for each in tensors:
        assert torch.equal(each.cpu(), tensor), (name, each.device)
print("all right")
"""


@pytest.mark.skipif(not HAS_GPU or torch.cuda.device_count() < 2, reason="one GPU")
@pytest.mark.parametrize("allocator", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_memory_that_is_closed_to_other_gpus(allocator, tmp_path):
    environment = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=allocator, PYTORCH_ALLOC_CONF=allocator)
    command = [sys.executable, "-c", CLOSED_MEMORY, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert "all right" in done.stdout, done.stdout + done.stderr
    assert "receives over its own link alone" in done.stderr, done.stderr


@pytest.fixture
def little_memory():
    """PyTorch's allocator with room for 200 MB, and for what was free in the segments that it keeps."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (200 << 20)) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_batch_without_room_raises_in_its_place(little_memory, random):
    batches = [random_bytes(random, size) for size in (1000, 1 << 30, 2000)]
    iterator = iter(penstock.feed(batches, "cuda"))
    assert same(next(iterator), batches[0])
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory") as caught:
        next(iterator)
    assert isinstance(caught.value, penstock.OutOfMemory)
    assert len(caught.value.args) == 1 and "Exception raised from" not in str(caught.value)
    assert same(next(iterator), batches[2])


def test_a_module_without_room_stays_as_it_was(little_memory):
    module = torch.nn.Linear(1 << 14, 1 << 14)
    addresses = [parameter.data_ptr() for parameter in module.parameters()]
    value = module.weight.detach().clone()
    with pytest.raises(torch.OutOfMemoryError) as caught:
        penstock.move_(module, "cuda")
    assert isinstance(caught.value, penstock.OutOfMemory)
    assert [parameter.data_ptr() for parameter in module.parameters()] == addresses
    assert torch.equal(module.weight, value)


def test_batch_size_finders_go_on(little_memory):
    utils = pytest.importorskip("accelerate.utils")
    tried = []

    @utils.find_executable_batch_size(starting_batch_size=1 << 10)
    def train(batch_size):
        tried.append(batch_size)
        for batch in penstock.feed([torch.zeros(batch_size, 1 << 20, dtype=torch.uint8)], "cuda"):
            assert len(batch) == batch_size

    train()
    assert len(tried) > 1 and tried[-1] < 500


def test_auto_is_the_current_gpu():
    assert penstock.feed([], "auto").device == f"cuda:{torch.cuda.current_device()}"
    assert penstock.feed([], 0).device == "cuda:0"


@pytest.fixture
def accelerate():
    """The package. What its objects share is forgotten afterwards: other tests see no accumulation of gradients."""
    accelerate = pytest.importorskip("accelerate")
    yield accelerate
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def test_what_accelerate_prepared_is_fed_under_it(random, accelerate):
    data = random_bytes(random, 39 * 1000).reshape(39, 1000)
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=4)
    loader = accelerator.prepare(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=4))

    def story(batches):
        return [
            (x.cpu(), loader.end_of_dataloader, loader.remainder, accelerator.gather_for_metrics(x).cpu())
            for (x,) in batches
        ]

    fed = penstock.feed(loader)
    assert fed.stats().device == "cuda:0"
    assert same(story(fed), story(loader))
    assert fed.stats().bytes == data.numel()


def write_weights(path, count):
    """A .safetensors file of bytes, with an odd offset between its two tensors."""
    tensors = {"odd": ("U8", (13,), os.urandom(13)), "large": ("U8", (count,), os.urandom(count))}
    return files.write(path, tensors), torch.frombuffer(bytearray(tensors["large"][2]), dtype=torch.uint8)


@pytest.mark.parametrize("count", [1000, 100_000, 40 << 20])
def test_weights_do_not_overwrite_what_queued_work_still_reads(tmp_path, count):
    written = [write_weights(tmp_path / str(i), count) for i in range(4)]
    results = []
    for path, _ in written:
        sent = penstock.load_safetensors(path, "cuda")["large"]
        torch.cuda._sleep(CYCLES)
        results.append(sent.clone())
        del sent
    for got, (_, expected) in zip(results, written, strict=True):
        assert torch.equal(got.cpu(), expected)


def test_weights_are_there_for_every_stream(tmp_path):
    path, expected = write_weights(tmp_path / "model", 300 << 20)
    with torch.cuda.stream(torch.cuda.Stream()):
        weights = penstock.load_safetensors(path, "cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        copy = weights["large"].clone()
        torch.cuda.current_stream().synchronize()
    assert weights["large"].data_ptr() % 512 == 0 and weights["odd"].device.type == "cuda"
    assert torch.equal(copy.cpu(), expected)


def test_weights_take_the_memory_of_their_files_and_give_it_back(tmp_path):
    paths = [write_weights(tmp_path / str(i), 20 << 20)[0] for i in range(3)]
    for path in paths:  # staging memory, and whatever is made once
        penstock.load_safetensors(path, "cuda", ["odd"])
    before = torch.cuda.memory_allocated()
    for path in paths:
        weights = penstock.load_safetensors(path, "cuda")
        assert 20 << 20 <= torch.cuda.memory_allocated() - before <= 22 << 20
        del weights
        assert torch.cuda.memory_allocated() == before


def test_a_model_takes_weights(tmp_path):
    model = torch.nn.Linear(33, 17, bias=True)
    state = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    tensors = {name: ("F32", value.shape, value.tobytes()) for name, value in state.items()}
    with torch.device("meta"):
        loaded = torch.nn.Linear(33, 17, bias=True)
    loaded.load_state_dict(penstock.load_safetensors(files.write(tmp_path / "m", tensors), "cuda"), assign=True)
    x = torch.randn(5, 33)
    torch.testing.assert_close(loaded(x.cuda()).cpu(), model(x), rtol=1e-4, atol=1e-4)
