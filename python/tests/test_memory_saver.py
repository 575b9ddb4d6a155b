"""Regions whose memory leaves the GPU and comes back at the same addresses, over the fake driver and on a GPU."""

import collections
import contextlib
import ctypes
import importlib
import sys
import types

import pytest

from fake_driver import driver, over_the_fake_driver, random_bytes
from support import gpu

MIB = 1 << 20


class Pluggable:
    """Finds the allocator's functions as PyTorch does."""

    def __init__(self, path, allocate, free):
        library = ctypes.CDLL(path)
        self._allocate, self.free = library[allocate], library[free]
        self._allocate.restype, self.free.restype = ctypes.c_void_p, None

    def allocator(self):
        return self

    def take(self, count):
        return self._allocate(ctypes.c_ssize_t(count), 0, None)

    def give_back(self, address):
        self.free(ctypes.c_void_p(address), ctypes.c_ssize_t(0), 0, None)


def memory_saver():
    """The module, over PyTorch's stand-in, without regions of earlier tests."""
    import torch

    from penstock import memory_saver

    torch.device = collections.namedtuple("device", "type index")
    torch.cuda.MemPool = lambda allocator: allocator
    torch.cuda.use_mem_pool = lambda pool: contextlib.nullcontext()
    torch.cuda.memory = types.SimpleNamespace(CUDAPluggableAllocator=Pluggable)
    memory_saver._states.clear()
    return memory_saver


class Tensor:
    """Memory of a region, with random bytes."""

    def __init__(self, count=3 * MIB):
        from penstock import memory_saver

        self._allocator = memory_saver._allocator()
        self.address, self.sent, self._stream = self._allocator.take(count), random_bytes(1000), driver.stream()
        self.write(self.sent)

    def write(self, data):
        driver.copy_to_device(self._stream, self.address, data.ctypes.data, len(data))
        driver.synchronize(self._stream)

    def has_its_bytes(self):
        return driver.read(self._stream, self.address, 1000).bytes() == self.sent.tobytes()

    def free(self):
        self._allocator.give_back(self.address)


@over_the_fake_driver(torch=True)
def test_a_region_leaves_and_comes_back_where_it_was():
    saver, before = memory_saver(), driver.device_bytes()
    with saver.region(enable_cpu_backup=True):
        tensors = [Tensor(), Tensor(5 * MIB)]
        with saver.region("other", enable_cpu_backup=True):
            other = Tensor()
        tensors.append(Tensor())
    assert driver.device_bytes() - before == 18 * MIB
    for _ in range(2):
        saver.pause("default")
        saver.pause("default")
        assert driver.device_bytes() - before >= 4 * MIB and other.has_its_bytes()
        saver.pause()
        assert driver.device_bytes() - before < 4 * MIB
        saver.resume("other")
        assert other.has_its_bytes()
        saver.resume()
        assert all(tensor.has_its_bytes() for tensor in tensors)
    for tensor in (*tensors, other):
        tensor.free()
    assert driver.device_bytes() - before < 4 * MIB


@over_the_fake_driver(torch=True)
def test_bytes_are_kept_only_if_that_was_asked():
    saver = memory_saver()
    with saver.region("cache"):
        cache = Tensor()
    copies, before = driver.calls("cuMemcpyDtoHAsync"), driver.device_bytes()
    saver.pause("cache")
    assert driver.calls("cuMemcpyDtoHAsync") == copies and before - driver.device_bytes() == 4 * MIB
    with pytest.raises(Exception, match="'cache' is paused: resume it before"), saver.region("cache"):
        pass
    saver.resume("cache")
    with saver.region("cache"):
        second = Tensor()
    driver.fail("cuMemUnmap", 2, 999)
    with pytest.raises(Exception, match="cuMemUnmap"):
        saver.pause("cache")
    saver.resume("cache")
    second.free()
    assert driver.device_bytes() == before
    cache.write(cache.sent)
    assert cache.has_its_bytes()
    cache.free()


@over_the_fake_driver(torch=True)
def test_memory_with_the_same_hash_is_not_copied_again():
    import penstock

    saver = memory_saver()
    with saver.region("hashed", enable_cpu_backup=True):
        tensors = [Tensor(), Tensor()]
    parked = penstock.Parked(saver._states["hashed", True, 0].region, skip="unchanged")

    def copies_of_a_park():
        before = driver.calls("cuMemcpyDtoHAsync")
        parked.park()
        copies = driver.calls("cuMemcpyDtoHAsync") - before
        parked.resume()
        assert all(tensor.has_its_bytes() for tensor in tensors)
        return copies

    assert copies_of_a_park() == 2 and parked.stats().skipped == {}
    assert copies_of_a_park() == 0 and parked.stats().skipped == {"unchanged": 8 * MIB}
    tensors[1].sent = random_bytes(1000)
    tensors[1].write(tensors[1].sent)
    for turn in (1, 2):
        driver.fail("cuLaunchKernel", turn, 999)
        with pytest.raises(Exception, match="cuLaunchKernel"):
            parked.park()
        assert not parked.is_parked and all(tensor.has_its_bytes() for tensor in tensors)
    assert copies_of_a_park() == 1 and parked.stats().skipped == {"unchanged": 4 * MIB}
    for tensor in tensors:
        tensor.free()


@over_the_fake_driver(torch=True)
def test_a_gpu_without_room_leaves_a_region_paused():
    import penstock

    saver = memory_saver()
    for keeps in (True, False):
        with saver.region("full", keeps):
            tensors = [Tensor(), Tensor()]
            driver.leave_room(0)
            assert saver._allocator().take(MIB) is None
        saver.pause("full")
        driver.leave_room(6 * MIB)
        for _ in range(2):
            before = driver.device_bytes()
            with pytest.raises(penstock.OutOfMemory):
                saver.resume("full")
            assert driver.device_bytes() == before
        driver.reset()
        saver.resume("full")
        assert not keeps or all(tensor.has_its_bytes() for tensor in tensors)
        for tensor in tensors:
            tensor.free()


@over_the_fake_driver(torch=True)
def test_any_failure_leaves_a_region_as_it_was():
    import penstock

    saver = memory_saver()
    with saver.region(enable_cpu_backup=True):
        tensors = [Tensor(), Tensor()]
    saver.pause()
    saver.resume()
    met = 0
    for nth in range(1, 1000):
        driver.fail_any(nth, 999)
        with contextlib.suppress(penstock.Error):
            saver.pause()
            saver.resume()
        failed = driver.failed()
        driver.reset()
        saver.resume()
        assert all(tensor.has_its_bytes() for tensor in tensors), nth
        if not failed:
            break
        met += 1
    assert met > 10
    for tensor in tensors:
        tensor.free()


@over_the_fake_driver(torch=True)
def test_tensors_that_go_while_they_are_paused():
    saver = memory_saver()
    with saver.region(enable_cpu_backup=True):
        kept, gone = Tensor(), Tensor()
    saver.pause()
    gone.free()
    new = Tensor()  # outside of the region, at the address that is free
    saver.resume()
    assert kept.has_its_bytes() and new.has_its_bytes()
    saver.pause()
    saver.resume()
    assert kept.has_its_bytes() and new.has_its_bytes()
    kept.free()
    new.free()


class Allocator:
    """vLLM's, as its backends of sleep mode use it: memory by address, with a handle (GPU, bytes, ...) and a tag."""

    def __init__(self):
        self.pointer_to_data = {}

    def add(self, tensor, tag):
        from penstock import _core

        memory = next(one for one in _core.memory_of_region(0) if one.address == tensor.address)
        self.pointer_to_data[tensor.address] = types.SimpleNamespace(
            handle=(0, memory.nbytes, tensor.address, memory), tag=tag
        )

    def sleep(self, offload_tags):
        assert offload_tags == ()
        for data in self.pointer_to_data.values():
            data.handle[3].drop_pages()

    def wake_up(self, tags):
        for data in self.pointer_to_data.values():
            if tags is None or data.tag in tags:
                data.handle[3].take_pages()


def vllm(allocator):
    """Modules that stand in for the ones of vLLM with backends of sleep mode."""

    class CuMemBackend:
        def suspend(self, level=1):
            allocator.sleep(offload_tags=("weights",) if level == 1 else ())

        def resume(self, tags=None):
            allocator.wake_up(tags)

    known = {}

    def register_backend(name, module, class_name):
        if name in known:
            raise ValueError(name)
        known[name] = lambda: getattr(importlib.import_module(module), class_name)

    names = ("vllm", "vllm.device_allocator", "vllm.device_allocator.sleep_mode_backend", "vllm.platforms")
    top, device_allocator, backends, platforms = modules = [types.ModuleType(name) for name in names]
    top.device_allocator, top.platforms, device_allocator.sleep_mode_backend = device_allocator, platforms, backends
    device_allocator.get_mem_allocator_instance = lambda: allocator
    backends.CuMemBackend, backends.SleepModeBackendFactory = (
        CuMemBackend,
        types.SimpleNamespace(register_backend=register_backend),
    )
    platforms.current_platform = types.SimpleNamespace(is_cuda=lambda: True)
    sys.modules.update(zip(names, modules, strict=True))
    return known


@over_the_fake_driver(torch=True)
def test_a_backend_of_vllms_sleep_mode():
    memory_saver()
    allocator = Allocator()
    from penstock._move import vllm_plugin

    vllm_plugin.register()  # without vLLM
    known = vllm(allocator)
    vllm_plugin.register()
    vllm_plugin.register()
    backend_class = known["penstock"]()
    assert backend_class.is_supported()
    backend = backend_class()
    weights, cache = [Tensor(), Tensor(5 * MIB)], Tensor()
    for tensor in weights:
        allocator.add(tensor, "weights")
    allocator.add(cache, "kv_cache")
    awake, copies = driver.device_bytes(), driver.calls("cuMemcpyDtoHAsync")
    for turn in range(3):
        backend.suspend()
        assert awake - driver.device_bytes() == 14 * MIB
        backend.resume(["weights"])
        assert all(tensor.has_its_bytes() for tensor in weights)
        backend.resume(["kv_cache"])
        assert driver.device_bytes() == awake
        cache.write(cache.sent)
        if turn == 1:  # other weights
            del allocator.pointer_to_data[weights[0].address]
            weights[0].free()
            weights[0] = Tensor()
            allocator.add(weights[0], "weights")
    assert driver.calls("cuMemcpyDtoHAsync") > copies
    copies = driver.calls("cuMemcpyDtoHAsync")
    backend.suspend(2)
    backend.resume()
    assert driver.calls("cuMemcpyDtoHAsync") == copies and driver.device_bytes() == awake
    for tensor in (*weights, cache):
        tensor.free()


def has_pages(address):
    """What the driver says of an address of a GPU: CU_POINTER_ATTRIBUTE_MAPPED."""
    mapped = ctypes.c_int()
    status = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute(ctypes.byref(mapped), 13, ctypes.c_uint64(address))
    return status == 0 and mapped.value == 1


@gpu
@pytest.mark.parametrize("keeps", [True, False])
def test_a_graph_replays_after_a_resume(keeps):
    import torch

    from penstock import memory_saver

    count = 64 * MIB
    with memory_saver.region("graph", enable_cpu_backup=keeps):
        source = torch.arange(count, dtype=torch.int32, device="cuda")
        result = torch.empty_like(source)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        torch.add(source, 1, out=result)
    address = source.data_ptr()
    for _ in range(2):
        assert has_pages(address)
        memory_saver.pause("graph")
        gone = not has_pages(address)
        memory_saver.resume("graph")
        assert gone
        assert source.data_ptr() == address
        if not keeps:
            torch.arange(count, dtype=torch.int32, out=source)
        result.zero_()
        graph.replay()
        assert torch.equal(result, torch.arange(1, count + 1, dtype=torch.int32, device="cuda"))


@gpu
def test_a_model_in_a_region_trains_on():
    import torch

    from penstock import memory_saver

    torch.manual_seed(0)
    with memory_saver.region("model", enable_cpu_backup=True):
        module = torch.nn.Linear(256, 256, device="cuda")
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for _ in range(3):
        memory_saver.pause("model")
        torch.rand(64 * MIB, device="cuda")
        memory_saver.resume("model")
        assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(1)
        before = {name: value.clone() for name, value in module.state_dict().items()}
