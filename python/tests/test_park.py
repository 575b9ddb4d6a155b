"""park, resume and swap. A host device moves tensors on the CPU as a GPU would, copies late or not."""

import concurrent.futures
import contextlib
import copy
import ctypes
import errno
import gc
import itertools
import os
import pathlib
import re
import resource
import subprocess
import sys
import threading

import pytest
import torch

import penstock
from penstock import _core
from penstock._engines import engine_for, group_for
from penstock._move import parking as _parking
from penstock._move import parts as _parts
from support import gpu, is_gpu, place, random_bytes, run_in_threads, run_program, same
from test_move import Tied

# PyTorch before 2.12, or without CUDA, has no error for all that uses what is parked.
NAMES = _parts._swaps_memory() and hasattr(torch._C, "_set_storage_data_ptr_access_error_msg")
ERROR = r"is parked: .* Call resume\(\)" if NAMES else "data is not allocated|storage of size 0"


def bytes_of(storage):
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def put_on(device, storage, parts):
    """Gives a storage of PyTorch's memory of a host device, which has the bytes of `parts`, if PyTorch can."""
    if _parts._swaps_memory():
        storage._swap_data_ptr_(penstock.to_device(parts, device).untyped_storage())


class Staged:
    """A block for memory that PyTorch cannot swap with a host device's: the bytes are copied there and from there."""

    def __init__(self, device, *arguments):
        self._device, self._block = device, _real_block(*arguments)

    def down(self, pieces):
        return self._moved(self._block.down, pieces)

    def up(self, pieces, group=None):
        passage = self._moved(self._block.up, pieces)
        passage.wait()
        for tensor, (address, _, count) in zip(self._there, pieces, strict=True):
            ctypes.memmove(address, tensor.data_ptr(), count)
        return passage

    def _moved(self, move, pieces):
        here = [torch.frombuffer((ctypes.c_uint8 * count).from_address(a), dtype=torch.uint8) for a, _, count in pieces]
        self._there = [penstock.to_device(tensor, self._device) for tensor in here]
        return move([(t.data_ptr(), *piece[1:]) for t, piece in zip(self._there, pieces, strict=True)])


_real_block = _core.ParkedBlock


@pytest.fixture
def home(device, monkeypatch):
    """Where the tensors are that are parked. For those on the CPU, a host device has memory in place of a GPU."""
    if not is_gpu(device):
        engine, find = engine_for(device), _parking.find_storages

        def find_storages(things):
            found = find(things)
            for storage in (each.storage for each in found):
                if storage.resizable():
                    put_on(device, storage, bytes_of(storage))
            return found

        def new_memory(_, count):
            return penstock.to_device(torch.full((count,), 170, dtype=torch.uint8), device).untyped_storage()

        def give_back(storage, name):
            if not _parts._is_empty(storage):
                bytes_of(storage).fill_(171)  # what is still to be copied then is wrong
            give_memory_back(storage, name)

        def block(*arguments):
            return _real_block(*arguments) if _parts._swaps_memory() else Staged(device, *arguments)

        give_memory_back = _parts._give_memory_back
        monkeypatch.setattr(_core, "ParkedBlock", block)
        monkeypatch.setattr(_parts, "_give_memory_back", give_back)
        monkeypatch.setattr(_parking, "engine_of", lambda _: engine)
        monkeypatch.setattr(_parking, "find_storages", find_storages)
        monkeypatch.setattr(_parts, "_new_memory", new_memory)
    return place(device)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(_parts, "_PART_BYTES", 3000)


def trained(home, steps=3, **options):
    """A module with tied weights, views and gradients, and its optimizer with state."""
    torch.manual_seed(steps)
    module = Tied().to(home)
    module.head.weight = module.embedding.weight
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.1, **options)
    for _ in range(steps):
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.rand_like(parameter)
        optimizer.step()
    return module, optimizer


def tensors_in(things):
    return dict(_parts._named(things, "", {}))


def seen(things):
    """All that can be seen of the tensors but their addresses."""
    tensors = tensors_in(things)
    first = {}
    return {
        name: (
            *(id(t), type(t), t.dtype, t.shape, t.stride(), t.storage_offset(), t.requires_grad, t._version),
            first.setdefault(t.untyped_storage()._cdata, name),
        )
        for name, t in tensors.items()
    }, {name: t.detach().clone() for name, t in tensors.items()}


def bytes_held(things):
    """On the GPU, or where a host device moves tensors of the CPU."""
    tensors = tensors_in(things).values()
    storages = [t.untyped_storage() for t in tensors if t.is_cuda] or [t.untyped_storage() for t in tensors]
    return sum({s._cdata: 0 if _parts._is_empty(s) else s.nbytes() for s in storages}.values())


def assert_as_it_was(things, before):
    after = seen(things)
    assert after[0] == before[0]
    assert same(after[1], before[1])


def test_everything_comes_back(home, small_parts, tmp_path):
    things = trained(home)
    before, whole = seen(things), bytes_held(things)
    for where in ("pinned", "pageable", tmp_path):
        parked = penstock.park(things, where)
        assert parked.is_parked and bytes_held(things) == 0
        parked.resume()
        assert not parked.is_parked
        assert_as_it_was(things, before)
    if home == "cpu":  # Adam's `step` stays on the host
        assert parked.stats().bytes == whole
        assert "on the host" not in parked.stats().skipped
    assert parked.stats().down_bytes == parked.stats().up_bytes == parked.stats().bytes


def test_training_goes_on(home, small_parts):
    (module, optimizer), (other, other_optimizer) = trained(home), trained(home)
    calls = []
    module.large.register_hook(lambda gradient: calls.append("hook"))
    x = torch.rand(4, 20, device=home)
    parked = None
    for _ in range(3):
        for one, its in ((module, optimizer), (other, other_optimizer)):
            its.zero_grad()  # gradients are other tensors in each step
            (one.head(x).square().sum() + one.large.square().sum() + one.columns.sum()).backward()
            its.step()
        parked = penstock.park((module, optimizer)) if parked is None else parked.park()
        parked.resume()
    assert same(dict(module.state_dict()), dict(other.state_dict())) and calls == ["hook"] * 3
    assert parked.stats().host_bytes <= parked.stats().bytes + 256 * 40


def test_a_graph_stays_valid(home):
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(home)
    other, x = copy.deepcopy(module), torch.rand(5, 8, device=home)
    losses = [one(x).sum() for one in (module, other)]
    with penstock.parked(module) as parked:
        with pytest.raises(RuntimeError, match=ERROR):
            losses[0].backward(retain_graph=True)
        assert parked.is_parked
    for loss in losses:
        loss.backward()
    assert same([p.grad for p in module.parameters()], [p.grad for p in other.parameters()])


USES = {
    "add": lambda t: t + 1,
    "in place": lambda t: t.mul_(2),
    "matmul": lambda t: t @ t,
    "cpu": lambda t: t.to("cpu", torch.float64),
    "item": lambda t: t.sum().item(),
    "clone": copy.deepcopy,
    "repr": repr,
    "address": lambda t: t.data_ptr(),
    "save": lambda t: torch.save(t, os.devnull),
    "to_host": penstock.to_host,
    "save_safetensors": lambda t: penstock.save_safetensors({"t": t}, "/dev/null/none"),
    "to_device": lambda t: penstock.to_device(t, "host"),
    "dlpack": torch.from_dlpack,
}


@pytest.mark.parametrize("use", USES if NAMES else ["matmul"])
def test_use_of_a_parked_tensor_is_an_error_that_says_so(home, use):
    if home == "cpu" and use in ("to_host", "to_device"):
        pytest.skip("they leave it as it is")
    tensors = {"weights": torch.rand(3, 3, device=home)}
    expected = tensors["weights"].clone()
    with penstock.parked(tensors), pytest.raises(Exception, match=rf"\['weights'\] {ERROR}" if NAMES else ERROR):
        USES[use](tensors["weights"])
    assert torch.equal(tensors["weights"], expected)
    assert torch.equal(tensors["weights"] + 1, expected + 1)


def test_older_pytorch_empties_storages_by_their_size(home, monkeypatch, small_parts):
    monkeypatch.setattr(_parts, "_swaps_memory", lambda: False)
    first, second = trained(home), trained(home, steps=1)
    before = seen(first), seen(second)
    there = penstock.park(second)
    assert all(t.untyped_storage().nbytes() == 0 for t in second[0].parameters())
    with pytest.raises(RuntimeError, match="storage of size 0"):
        second[0].large[1:].sum()
    with pytest.raises(penstock.InvalidArgument, match="has no memory"):
        penstock.park(second)
    parked = penstock.swap(first, there)
    assert bytes_held(first) == 0
    assert_as_it_was(second, before[1])
    parked.resume()
    assert_as_it_was(first, before[0])


def test_a_second_park_and_a_second_resume(home, small_parts):
    things = trained(home)
    before = seen(things)
    parked = penstock.park(things)
    assert parked.park() is parked
    with pytest.raises(
        penstock.InvalidArgument, match=r"\[0\]\.\w+\.?\w* cannot be parked: it has no memory. It is par"
    ):
        penstock.park(things)
    run_in_threads(parked.resume, 3)
    parked.resume()
    assert_as_it_was(things, before)


def test_a_resume_takes_the_links_of_others(home, device):
    if is_gpu(device) and torch.cuda.device_count() < 2:
        pytest.skip("fewer than two NVIDIA GPUs")
    if not (is_gpu(device) or _parts._swaps_memory()):
        pytest.skip("memory of a host device stays where it is")
    other = "cuda:1" if is_gpu(device) else device.replace("host", "host:9").replace(":9:", ":9,")
    engine = _parking.engine_of(torch.device(home))
    links = group_for([engine, engine_for(other)])
    # A real link has brought 20 MiB before the other one begins.
    things = [torch.rand((64 if is_gpu(device) else 5) << 20, device=home), torch.rand(100, device=home)]
    before = seen(things)
    parked = penstock.park(things)
    with pytest.raises(penstock.InvalidArgument, match="relay is a list of devices"):
        parked.resume(relay=other)
    assert parked.is_parked
    for relay in ([other, engine.spec], "auto"):
        earlier = links.carried()
        parked.resume(relay=relay)
        assert_as_it_was(things, before)
        carried = [now - then for now, then in zip(links.carried(), earlier, strict=True)]
        if relay != "auto":
            assert sum(carried) == things[0].nbytes and carried[0] < things[0].nbytes
        parked.park()
    parked.resume(relay=[engine.spec])  # no other
    assert_as_it_was(things, before)


def frozen_with_adapter(home):
    module = torch.nn.ModuleDict({"base": torch.nn.Linear(64, 64), "adapter": torch.nn.Linear(64, 2)}).to(home)
    module["base"].requires_grad_(False)
    return module, torch.optim.Adam(module["adapter"].parameters(), fused=True)


@pytest.mark.parametrize("kept_in", ["memory", "file"])
def test_frozen_parameters_travel_once(home, tmp_path, kept_in):
    module, optimizer = things = frozen_with_adapter(home)
    parked = penstock.park(things, tmp_path if kept_in == "file" else "pinned", skip="frozen")
    frozen = 4 * 65 * 64
    assert parked.stats().down_bytes == parked.stats().bytes and parked.stats().skipped.get("frozen") is None
    for _ in range(2):
        parked.resume()
        module["adapter"](torch.rand(1, 64, device=home)).sum().backward()
        optimizer.step()  # writes without counting
        before = seen(things)
        parked.park()
        assert parked.stats().skipped["frozen"] == frozen
        assert parked.stats().down_bytes == parked.stats().bytes - frozen
        parked.resume()
        assert_as_it_was(things, before)
        parked.park()
    parked.resume()
    with torch.no_grad():
        module["base"].weight[3, 4] = 5
    before = seen(things)
    parked.park()
    assert parked.stats().skipped["frozen"] == 4 * 64
    parked.resume()
    assert_as_it_was(things, before)


@pytest.mark.parametrize("kept_in", ["memory", "file"])
def test_what_has_the_same_hash_travels_once(home, small_parts, tmp_path, kept_in):
    """Whatever PyTorch counts: neither writes that it does not count, nor those that change nothing."""
    if home == "cpu" and not _parts._swaps_memory():
        pytest.skip("tensors stay in memory that is no device's")
    things = trained(home)
    parked = penstock.park(things, tmp_path if kept_in == "file" else "pinned", skip="unchanged")
    assert parked.stats().down_bytes == parked.stats().bytes and "unchanged" not in parked.stats().skipped
    whole = parked.stats().bytes
    parked.resume()
    module, _ = things
    for parameter in module.parameters():
        parameter.data.mul_(1)
    before = seen(things)
    parked.park()
    assert parked.stats().skipped["unchanged"] == whole and parked.stats().down_bytes == 0
    parked.resume()
    assert_as_it_was(things, before)
    module.large.data.view(-1)[-1] += 1  # which PyTorch does not count
    before = seen(things)
    for count in (module.large.untyped_storage().nbytes(), 0):
        parked.park()
        assert parked.stats().down_bytes == count
        parked.resume()
        assert_as_it_was(things, before)


def test_storages_that_the_device_cannot_hash_travel_each_time(home):
    if home != "cpu" or not _parts._swaps_memory():
        pytest.skip("memory of a GPU is aligned")
    whole = penstock.to_device(torch.arange(100.0), _parking.engine_of(torch.device(home)).spec)
    odd = torch.empty(0).set_(torch._C._construct_storage_from_data_pointer(whole.data_ptr() + 8, whole.device, 40))
    parked = penstock.park([odd], skip="unchanged")
    parked.resume()
    parked.park()
    assert parked.stats().skipped == {} and parked.stats().down_bytes == 40
    parked.resume()


def test_everything_travels_unless_it_is_told_otherwise(home):
    module, _ = things = frozen_with_adapter(home)
    parked = penstock.park(things)
    parked.resume()
    module["base"].weight.data[3, 4] = 5  # which PyTorch does not count
    parked.park()
    assert parked.stats().skipped == {}
    parked.resume()
    assert module["base"].weight[3, 4] == 5


def test_what_goes_while_it_is_parked(home, small_parts):
    kept, gone = (torch.rand(1000, device=home) for _ in range(2))
    things, expected = {"kept": kept, "gone": gone}, kept.clone()
    parked = penstock.park(things)
    del things["gone"], gone
    parked.resume()
    assert torch.equal(kept, expected)
    parked.park()
    assert parked.stats().bytes == 4000
    parked.resume()
    assert torch.equal(kept, expected)


def test_nests_and_other_tensors(home):
    whole = torch.arange(1000.0, device=home)
    things = [
        whole[10:20],
        {"apart": whole[::3], "one": torch.ones(1, device=home).expand(5)},
        (None, 3, "text", set()),
    ]
    things.append(things)
    before = [t.clone() for t in (things[0], *things[1].values())]
    with penstock.parked(things) as parked:
        assert bytes_held(whole) == 0 and parked.stats().bytes == 4004
    assert same([things[0], *things[1].values()], before) and whole[999] == 999
    with torch.inference_mode():
        inference = torch.rand(100, device=home)
        expected = inference.clone()
    penstock.park(inference, skip="frozen").resume()
    assert torch.equal(inference, expected)
    assert penstock.park([]).stats().bytes == 0


def test_tensors_around_tensors(home):
    from torch.distributed.tensor import DTensor, Replicate, init_device_mesh

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh(torch.device(home).type, (1,))
    weights = torch.nn.Parameter(DTensor.from_local(torch.rand(50, 3, device=home), mesh, [Replicate()]))
    expected = weights.to_local().detach().clone()
    with penstock.parked([weights]) as parked:
        assert parked.stats().bytes == 600
    assert torch.equal(weights.to_local(), expected)


REFUSED = {
    "sparse": (lambda home: torch.eye(3, device=home).to_sparse(), "is sparse"),
    "foreign": (lambda home: torch.from_dlpack(torch.ones(3, device=home)), "lies in memory of another library"),
    "lazy": (lambda home: torch.nn.LazyLinear(3, device=home), "has no shape yet"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_parked_is_named_and_nothing_is_moved(home, name):
    make, message = REFUSED[name]
    things = [torch.ones(3, device=home), {"odd": make(home)}]
    with pytest.raises(penstock.InvalidArgument, match=rf"\[1\]\['odd'\].* cannot be parked: it {message}"):
        penstock.park(things)
    assert torch.equal(things[0].cpu(), torch.ones(3))


def test_memory_of_a_region_is_refused_with_what_parks_it(home, monkeypatch):
    monkeypatch.setattr(_parts, "_pools_of_graphs", lambda: [(0, sys.maxsize)])
    with pytest.raises(penstock.InvalidArgument, match=r"of penstock\.memory_saver, pause the region"):
        penstock.park(torch.ones(3, device=home))


def test_bad_arguments():
    with pytest.raises(penstock.InvalidArgument, match="skip is 'frozen', 'unchanged' or None, not True"):
        penstock.park([], skip=True)
    with pytest.raises(TypeError, match="and nests of them, not 3"):
        penstock.park(3)
    with pytest.raises(penstock.InvalidArgument, match=r"or the pathlib\.Path of a folder, not '/tmp'"):
        penstock.park([], "/tmp")
    with pytest.raises(TypeError, match=r"brings back a penstock\.Parked, not a list"):
        penstock.swap([], [])
    with pytest.raises(penstock.InvalidArgument, match="two states"):
        penstock.swap(parked := penstock.park([]), parked)


def test_tensors_on_the_host_stay_there():
    tensor = torch.rand(10)
    parked = penstock.park(tensor)
    assert parked.stats().skipped == {"on the host": 40} and parked.stats().bytes == 0 and tensor.sum() > 0


def test_no_room_on_the_host(home, monkeypatch):
    things = trained(home)
    before = seen(things)
    monkeypatch.setattr(_core, "free_host_memory_bytes", lambda: 1000)
    with pytest.raises(penstock.OutOfMemory, match=r"may take 1000 more .* Nothing was moved") as caught:
        penstock.park(things, "pageable")
    assert caught.value.free == 1000 and caught.value.asked > 1000
    assert_as_it_was(things, before)


def test_the_hosts_free_memory_is_known():
    assert 64 << 20 < _core.free_host_memory_bytes() <= _core.host_memory_bytes()


def test_no_room_on_the_device(home, monkeypatch, small_parts):
    things = trained(home)
    before = seen(things)
    parked = penstock.park(things)
    count = parked.stats().bytes
    refused = pytest.raises(penstock.OutOfMemory, match=f"for the {count} bytes")
    with monkeypatch.context() as patch, Faults(patch, "memory", 5), refused as caught:
        parked.resume()
    assert caught.value.asked == count
    assert parked.is_parked and bytes_held(things) == 0
    parked.resume()
    assert_as_it_was(things, before)


class Faults:
    """The n-th call of a kind fails, from 0 on: "block", "down", "up", "wait", "memory" or "empty" (an interrupt)."""

    def __init__(self, patch, kind, turn):
        self._patch, self._kind, self._turn, self.met = patch, kind, turn, False
        self._calls = itertools.count()

    def _count(self, kind):
        if kind == self._kind and next(self._calls) == self._turn:
            self.met = True
            if kind == "empty":
                raise KeyboardInterrupt
            raise penstock.DeviceError("a fault") if kind != "memory" else penstock.OutOfMemory("CUDA out of memory")

    def __enter__(self):
        faults, make_block = self, _core.ParkedBlock

        class Passage:
            def __init__(self, passage):
                self._passage = passage

            def wait(self):
                self._passage.wait()
                faults._count("wait")

        class Block:
            def __init__(self, *arguments):
                faults._count("block")
                self._block = make_block(*arguments)

            def down(self, pieces):
                faults._count("down")
                return Passage(self._block.down(pieces))

            def up(self, pieces, group=None):
                faults._count("up")
                return Passage(self._block.up(pieces, group))

        take, give_back = _parts._take_memory, _parts._give_memory_back

        def give_memory_back(storage, name):
            faults._count("empty")
            give_back(storage, name)

        def take_memory(storage, count):
            faults._count("memory")
            take(storage, count)

        self._patch.setattr(_core, "ParkedBlock", Block)
        self._patch.setattr(_parts, "_take_memory", take_memory)
        self._patch.setattr(_parts, "_give_memory_back", give_memory_back)
        return self

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize("kept_in", ["memory", "file"])
@pytest.mark.parametrize("kind", ["block", "down", "up", "wait", "memory", "empty"])
def test_any_failure_leaves_it_as_it_was(home, monkeypatch, small_parts, tmp_path, kept_in, kind):
    """In park, resume and swap, at each call: all is done, or all is as it was, and the next try succeeds."""
    first, second = (
        [torch.rand(count, device=home) for count in sizes] for sizes in ((600, 500, 200, 700), (700, 600))
    )
    before = seen(first), seen(second)
    for turn in itertools.count():
        parked, there = None, penstock.park(second)
        with monkeypatch.context() as patch, Faults(patch, kind, turn) as faults:
            try:
                parked = penstock.park(first, tmp_path if kept_in == "file" else "pinned")
                parked.resume()
                swapped = penstock.swap(parked if kept_in == "file" else first, there)
                swapped.resume()
            except (penstock.Error, KeyboardInterrupt):
                pass
        assert bytes_held(first) in (0, parked.stats().bytes if parked else bytes_held(first))
        if faults.met and bytes_held(first) == 0:
            (swapped if parked and not parked.is_parked else parked).resume()
        there.resume()
        assert_as_it_was(first, before[0])
        assert_as_it_was(second, before[1])
        if not faults.met:
            break
    assert turn > 5


def test_memory_is_pinned_beside_the_copies(home, monkeypatch, small_parts):
    """The blocks of two parts are made at once, and the later ones while earlier parts are copied."""
    both, copied, make_block = threading.Barrier(2, timeout=60), threading.Event(), _core.ParkedBlock
    turns = itertools.count()

    def block(*arguments):
        turn = next(turns)
        if turn < 2:
            both.wait()
        else:
            assert copied.wait(60)
        return make_block(*arguments)

    down = _parts.Part.down
    monkeypatch.setattr(_core, "ParkedBlock", block)
    monkeypatch.setattr(_parts.Part, "down", lambda part: (down(part), copied.set())[0])
    tensors = [torch.rand(700, device=home) for _ in range(6)]
    before = seen(tensors)
    parked = penstock.park(tensors)
    assert next(turns) == 6
    parked.resume()
    assert_as_it_was(tensors, before)


def test_after_an_error_no_more_memory_is_taken(home, monkeypatch, small_parts):
    made, left, make_block = [], threading.Event(), _core.ParkedBlock
    pool, shutdown = concurrent.futures.ThreadPoolExecutor, concurrent.futures.ThreadPoolExecutor.shutdown

    def block(*arguments):
        made.append(arguments)
        if len(made) > 2:
            assert left.wait(60)
        return make_block(*arguments)

    def down(part):
        raise penstock.DeviceError("a fault")

    monkeypatch.setattr(pool, "shutdown", lambda makers, **how: (left.set(), shutdown(makers, **how)))
    monkeypatch.setattr(_core, "ParkedBlock", block)
    monkeypatch.setattr(_parts.Part, "down", down)
    tensors = [torch.rand(700, device=home) for _ in range(50)]
    with pytest.raises(penstock.DeviceError, match="a fault"):
        penstock.park(tensors)
    assert len(made) < 50


def files_in(folder):
    """That this process has mapped, whether they have names or not."""
    with open("/proc/self/maps") as maps:
        return [line for line in maps if f" {folder}/" in line]


def test_a_file_is_gone_with_its_state(home, tmp_path, small_parts):
    things = trained(home)
    before = seen(things)
    parked = penstock.park(things, tmp_path)
    for _ in range(2):
        assert len(files_in(tmp_path)) > 1 and os.listdir(tmp_path) == []
        parked.resume()
        assert_as_it_was(things, before)
        assert files_in(tmp_path) == []
        parked.park()
    del things, parked
    gc.collect()
    assert files_in(tmp_path) == []


@contextlib.contextmanager
def files_of_at_most(count):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk(home, tmp_path):
    things = frozen_with_adapter(home)
    before = seen(things)
    with files_of_at_most(1000), pytest.raises(penstock.Error, match="Nothing was moved") as caught:
        penstock.park(things, tmp_path)
    assert isinstance(caught.value, OSError) and caught.value.errno == errno.EFBIG and files_in(tmp_path) == []
    assert_as_it_was(things, before)


def test_a_folder_that_may_not_be_written(home, monkeypatch):
    tensor = torch.rand(100, device=home)
    with pytest.raises(penstock.Error, match="cannot be parked in /proc") as caught:
        penstock.park(tensor, pathlib.Path("/proc"))
    assert isinstance(caught.value, OSError) and tensor.sum() > 0


PARKS = """
import pathlib, sys, torch, penstock
from penstock._engines import engine_for
from penstock._move import parking, parts
device, *folder = sys.argv[1:]
if not device.startswith("cuda"):
    parking.engine_of = lambda _: engine_for(device)
    parts._new_memory = lambda _, count: penstock.to_device(torch.empty(count // 4), device).untyped_storage()
tensor = torch.rand(8 << 20)
tensor = tensor.to(device) if device.startswith("cuda") else penstock.to_device(tensor, device)
state = penstock.park(tensor, *map(pathlib.Path, folder))
print("parked", flush=True)
"""
FOREVER = """
while True:
    state.resume()
    state.park()
"""


def test_a_killed_process_leaves_no_file(device, tmp_path):
    if not (is_gpu(device) or _parts._swaps_memory()):
        pytest.skip("memory of a host device stays where it is")
    command = [sys.executable, "-c", PARKS + FOREVER, device, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout.readline() == "parked\n"
        program.kill()
    assert os.listdir(tmp_path) == []


def test_a_swap_takes_no_more_memory_than_the_larger(home, monkeypatch, small_parts):
    first, second = trained(home), trained(home, steps=1)
    before = seen(first), seen(second)
    there = penstock.park(second)
    held = []
    take_memory = _parts._take_memory

    def noted(storage, count):
        take_memory(storage, count)
        held.append(bytes_held(first) + bytes_held(second))

    monkeypatch.setattr(_parts, "_take_memory", noted)
    whole = bytes_held(first)
    parked = penstock.swap(first, there)
    assert bytes_held(first) == 0 and parked.is_parked and not there.is_parked
    assert max(held) <= whole and len(held) > 10
    assert_as_it_was(second, before[1])
    for leaving, coming in ((there, parked), (parked, there), (there, parked)):
        assert penstock.swap(leaving, coming) is leaving
    assert_as_it_was(first, before[0])
    there.resume()
    assert_as_it_was(second, before[1])


def test_pinned_memory_that_is_held_is_named_and_what_is_idle_counts(home, monkeypatch):
    engine = _parking.engine_of(torch.device(home))
    parked = penstock.park(torch.rand(1 << 25, device=home))
    room, holders = engine.pinned_memory()
    held = f"pinned pool of {re.escape(engine.spec)} for parked state and results has \\d"
    assert re.search(held, holders)
    tensor, asked = torch.ones(10, device=home), room + (1 << 30)

    def large(*arguments):
        made = _parts.make_parts(*arguments)
        made[0].host_bytes = asked
        return made

    with monkeypatch.context() as patch:
        patch.setattr(_parking, "make_parts", large)
        with pytest.raises(penstock.OutOfMemory, match=f"Of pinned memory, .*{held}") as caught:
            penstock.park(tensor)
    assert caught.value.asked == asked > caught.value.free and tensor.sum() == 10
    del parked
    assert engine.pinned_memory()[0] > room + (1 << 26)


def test_a_forked_process_does_not_resume(home):
    if home != "cpu":
        pytest.skip("CUDA does not fork")
    tensor = torch.rand(100)
    expected = tensor.clone()
    parked = penstock.park([tensor])
    child = os.fork()
    if child == 0:
        try:
            parked.resume()
        except penstock.Closed:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    parked.resume()
    assert torch.equal(tensor, expected)


def test_a_program_may_end_while_parked_and_on_the_way(device):
    if not (is_gpu(device) or _parts._swaps_memory()):
        pytest.skip("memory of a host device stays where it is")
    ended = run_program(PARKS + "state._parts[0].ahead()", device)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "parked\n", "")


def test_it_says_what_it_did(home):
    parked = penstock.park(torch.zeros(1 << 18, device=home))
    assert repr(parked).startswith("<penstock.Parked: parked, 0.001 GB, down ")
    figures = parked.stats().as_dict()
    assert figures["bytes"] == figures["host_bytes"] == figures["down_bytes"] == 1 << 20
    assert figures["down_gbps"] > 0 and figures["up_gbps"] == figures["up_link_gbps"] == 0
    parked.resume()
    assert parked.stats().up_bytes == 1 << 20 and parked.stats().up_gbps > 0
    assert repr(parked).startswith("<penstock.Parked: resumed")


CYCLES = 50_000_000  # some 25 ms of torch.cuda._sleep


@gpu
def test_memory_on_the_gpu_is_pytorchs():
    # cuBLAS takes memory of its own, for each thread that uses it: autograd's, too.
    torch.nn.Linear(16, 16, device="cuda")(torch.rand(2, 16, device="cuda")).sum().backward()
    before = torch.cuda.memory_allocated()
    module = torch.nn.Linear(4096, 4096, device="cuda")
    optimizer = torch.optim.Adam(module.parameters(), fused=True)
    module(torch.rand(2, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    whole = torch.cuda.memory_allocated() - before
    parked = penstock.park((module, optimizer))
    assert torch.cuda.memory_allocated() - before < whole // 100
    assert parked.stats().host_bytes < 1.02 * parked.stats().bytes
    parked.resume()
    assert torch.cuda.memory_allocated() - before <= 1.01 * whole


@gpu
def test_it_comes_after_the_work_of_the_current_stream(random):
    tensor, sent = torch.zeros(8 << 20, dtype=torch.uint8, device="cuda"), random_bytes(random, 8 << 20).cuda()
    torch.cuda._sleep(CYCLES)
    tensor.copy_(sent)
    parked = penstock.park(tensor)
    other = torch.empty_like(sent)  # takes the memory
    torch.cuda._sleep(CYCLES)
    other.fill_(7)
    copied = other.clone()
    del other
    parked.resume()  # takes it again, of which the work above is still queued
    assert torch.equal(tensor, sent) and bool((copied == 7).all())


@gpu
def test_what_was_moved_and_loaded_by_penstock_is_parked(tmp_path):
    module = penstock.move_(torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.Linear(300, 3)), "cuda")
    penstock.save_safetensors(module.state_dict(), tmp_path / "file")
    things = [module, penstock.load_safetensors(tmp_path / "file", "cuda")]
    if not _parts._swaps_memory():
        with pytest.raises(penstock.InvalidArgument, match=r"swaps from version 2\.12 on"):
            penstock.park(things)
        return
    before = seen(things)
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    with penstock.parked(things) as parked:
        assert torch.cuda.memory_allocated() <= held - parked.stats().bytes
    assert_as_it_was(things, before)


@gpu
def test_memory_of_a_graph_is_refused():
    source, graph = torch.ones(1000, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = source * 2
    with pytest.raises(
        penstock.InvalidArgument, match=r"\[0\] cannot be parked: it lies in the memory of a CUDA graph"
    ):
        penstock.park([result])
    graph.replay()
    assert result.sum() == 2000


@gpu
@pytest.mark.skipif(not NAMES, reason="there it does")
def test_a_kernel_does_not_read_what_is_parked():
    """The error comes before the kernel does, and the device is usable afterwards."""
    weights, x = torch.rand(64, 64, device="cuda"), torch.rand(64, 64, device="cuda")
    with penstock.parked([weights]):
        for use in (lambda: x @ weights, lambda: x + weights, lambda: weights[1:].sum(), lambda: weights.zero_()):
            with pytest.raises(RuntimeError, match="is parked: "):
                use()
    torch.cuda.synchronize()
    assert float((x @ weights).sum()) > 0


class Turns:
    """Three modules on the device, with weights that are all different, that are offloaded."""

    def __init__(self, home, **options):
        self.modules = [torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.Tanh()).to(home) for _ in range(3)]
        for module in self.modules:
            module.requires_grad_(not options)
        self.x = torch.rand(2, 40, device=home)
        self.before = seen(self.modules)
        self._expected = [module(self.x).detach().clone() for module in self.modules]
        self.offloaded = penstock.offload(*self.modules, device=home, **options)

    def parts(self, number):
        return self.offloaded._states[self.modules[number]]._parts

    def ahead(self):
        return [which for which in range(3) if any(part._ahead for part in self.parts(which))]

    def use(self, *numbers):
        """Which modules came ahead of their use, after each. They cannot be used yet."""
        for number in numbers:
            assert same(self.modules[number](self.x).detach(), self._expected[number])
            assert bytes_held(self.modules) == bytes_held(self.modules[number]) == 4 * 40 * 41
            yield self.ahead()


def test_modules_take_turns(home, small_parts):
    turns = Turns(home)
    with turns.offloaded as offloaded:
        assert bytes_held(turns.modules) == 0 and "none of 3" in repr(offloaded)
        list(turns.use(0, 0, 2, 1, 1, 0))
        turns.modules[2]._hf_hook.pre_forward(turns.modules[2])  # as diffusers' models do in `decode`
        assert bytes_held(turns.modules[2]) == bytes_held(turns.modules) > 0
        with pytest.raises(penstock.InvalidArgument, match="Another hook offloads this Sequential"):
            penstock.offload(turns.modules[2], device=home)
        offloaded.park()
        assert bytes_held(turns.modules) == 0
        list(turns.use(1))
    assert_as_it_was(turns.modules, turns.before)


def test_a_loop_over_one_module_moves_nothing(home, monkeypatch):
    turns = Turns(home)
    list(turns.use(0))
    with monkeypatch.context() as patch:
        patch.setattr(_parking.Parked, "_plan", None)
        list(turns.use(0, 0))


def test_offloaded_modules_that_are_frozen_leave_without_a_copy(home):
    turns = Turns(home, skip="frozen")
    list(turns.use(0, 1, 2, 0, 1, 2))
    stats = turns.offloaded._states[turns.modules[0]].stats()
    assert stats.down_bytes == 0 and stats.skipped["frozen"] == stats.bytes > 0


comes_ahead = pytest.mark.skipif(not _parts._swaps_memory(), reason="modules come when they are used")


@comes_ahead
def test_the_next_module_comes_while_one_computes(home, small_parts):
    turns = Turns(home)
    assert list(turns.use(0, 1, 2, 0, 1, 2, 0)) == [[], [], [], [], [2], [0], [1]]
    assert list(turns.use(2, 1, 0, 1)) == [[], [], [], [2]]  # another order
    turns.offloaded.park()
    assert turns.ahead() == [] and list(turns.use(1, 0)) == [[], [1]]
    turns.offloaded.remove()
    turns.offloaded.park()
    assert bytes_held(turns.modules) == 3 * bytes_held(turns.modules[0])


def test_memory_that_is_filled_ahead_outlives_the_copy():
    order = []

    class Memory:
        def __del__(self):
            order.append("freed")

    class Passage:
        def wait(self):
            order.append("waited")
            raise penstock.DeviceError("a fault")

    _parts.Ahead({"slot": Memory()}, Passage(), None)
    assert order == ["waited", "freed"]


@comes_ahead
def test_a_module_that_fails_to_come_ahead_comes_when_it_is_used(home, monkeypatch, small_parts):
    turns, new_memory = Turns(home), _parts._new_memory
    list(turns.use(0, 1, 2, 0, 1, 2))
    calls = itertools.count()

    def full(*arguments):
        if next(calls) == 1:  # it is there in part
            raise penstock.OutOfMemory("CUDA out of memory")
        return new_memory(*arguments)

    monkeypatch.setattr(_parts, "_new_memory", full)
    assert list(turns.use(0, 1)) == [[], [2]] and next(calls) > 3

    class Failed:
        def wait(self):
            raise penstock.DeviceError("a fault")

    turns.parts(2)[0]._ahead.passage = Failed()
    with pytest.raises(penstock.DeviceError, match="a fault"):
        list(turns.use(2))
    assert list(turns.use(1, 2)) == [[], [0]]


@comes_ahead
@pytest.mark.parametrize("left", ["swap", "remove"])
def test_what_came_ahead_is_given_up_if_its_use_fails(home, monkeypatch, small_parts, left):
    turns = Turns(home)
    assert list(turns.use(0, 1, 2, 0, 1))[-1] == [2]

    def fail(*_):
        raise penstock.OutOfMemory("no room")

    with monkeypatch.context() as patch:
        patch.setattr(_parking.Parked, "_plan" if left == "swap" else "_come_back", fail)
        with pytest.raises(penstock.OutOfMemory):
            turns.offloaded.use(turns.modules[2]) if left == "swap" else turns.offloaded.remove()
    assert turns.ahead() == []
    turns.offloaded.park()
    assert bytes_held(turns.modules) == 0
    turns.offloaded.remove()
    assert_as_it_was(turns.modules, turns.before)


@comes_ahead
def test_what_came_ahead_on_another_stream_comes_again(home, monkeypatch, small_parts):
    stream, taken, take_memory = ["one"], [], _parts._take_memory
    monkeypatch.setattr(_parts, "_current_stream", lambda _: stream[0])
    turns = Turns(home)
    list(turns.use(0, 1, 2, 0, 1))
    monkeypatch.setattr(_parts, "_take_memory", lambda *arguments: taken.append(take_memory(*arguments)))
    for stream[0], count in (("one", 0), ("another", 2), ("another", 2)):
        assert len(list(turns.use(2, 0, 1))) == 3 and len(taken) == count


@comes_ahead
def test_a_module_comes_ahead_if_there_is_room_beside_the_most_that_was_in_use(home, monkeypatch):
    turns, cuda = Turns(home), torch.cuda
    list(turns.use(0, 1, 2, 0))
    count = turns.parts(0)[0].bytes
    turns.offloaded.device = "cuda:0"
    for most, left, ahead in ((count, 2, [2]), (3 * count, 2, [0]), (3 * count + 1, 2, []), (0, 2, []), (0, 3, [0])):
        monkeypatch.setattr(cuda, "max_memory_allocated", lambda _, most=most: most)
        monkeypatch.setattr(cuda, "memory_reserved", lambda _: count)
        monkeypatch.setattr(cuda, "mem_get_info", lambda _, left=left: (left * count, 0))
        number = (turns.modules.index(turns.offloaded._in_use) + 1) % 3
        assert list(turns.use(number)) == [ahead], most


def test_what_cannot_be_offloaded_is_where_it_was(home, small_parts):
    turns = Turns(home)
    turns.offloaded.remove()
    modules, x = turns.modules, turns.x
    tied = torch.nn.Linear(40, 40, device=home)
    tied.weight = modules[0][0].weight
    for wrong in ((*modules, tied), (modules[0],) * 2, (x,)):
        with pytest.raises(TypeError if wrong[0] is x else penstock.InvalidArgument):
            penstock.offload(*wrong, device=home)
        assert_as_it_was(modules, turns.before)
        modules[0](x)
    with (
        penstock.offload(*modules, device=home) as offloaded,
        pytest.raises(penstock.InvalidArgument, match="This Linear is not one"),
    ):
        offloaded.use(tied)


def test_a_module_that_does_not_fit_on_the_device_goes_back_to_the_host():
    asked = []

    class Large(torch.nn.Linear):
        def to(self, device):
            asked.append(str(device))
            if len(asked) == 1:
                raise torch.OutOfMemoryError("half of it is there")
            return super().to(device)

    with pytest.raises(torch.OutOfMemoryError):
        penstock.offload(Large(4, 4), device="host")
    assert len(asked) == 2 and asked[1] == "cpu"


@gpu
def test_modules_of_the_host_are_offloaded_and_come_back_to_it():
    module = torch.nn.Linear(40, 40)
    weight, parameter = module.weight.detach().clone(), module.weight
    with penstock.offload(module):
        assert module(torch.rand(2, 40, device="cuda")).is_cuda
    assert module.weight is parameter and same(module.weight.detach(), weight) and not parameter.is_cuda
