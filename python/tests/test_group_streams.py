"""GPUs that receive together, over the fake driver.

Copies that start late turn a wait that is missing into wrong bytes. PyTorch itself is not imported here: it could not
use the fake driver.
"""

import numpy as np
import pytest

import penstock
import safetensors_files as files
import stand_in_torch
from fake_driver import LARGE, SOON_NS, driver, over_the_fake_driver, random_bytes
from penstock import _core
from penstock._engines import engine_for, group_for
from penstock._move.transfers import expander_for

GPUS = ["cuda:0", "cuda:1"]


def nest():
    return [random_bytes(LARGE), random_bytes(2 * LARGE), random_bytes(10)]


def same(arrays, sent):
    return all(np.array_equal(*pair) for pair in zip(penstock.to_host(arrays), sent, strict=True))


@over_the_fake_driver
def test_gpus_receive_together():
    sent = nest()
    for late in "cuMemcpyHtoDAsync", "cuMemcpyDtoDAsync":
        driver.delay_work(late, SOON_NS)
        there = penstock.to_device(sent, group=GPUS)
        for device, arrays in enumerate(there):
            assert [array.__dlpack_device__() for array in arrays] == [(2, device)] * 3
            assert same(arrays, sent)
        driver.reset()


@over_the_fake_driver
def test_a_gpu_receives_over_the_link_of_another():
    sent = nest()
    driver.delay_work("cuMemcpyDtoDAsync", SOON_NS)
    for relay in ["cuda:1"], "auto":
        there = penstock.to_device(sent, "cuda:0", relay=relay)
        assert [array.__dlpack_device__() for array in there] == [(2, 0)] * 3
        assert same(there, sent)


@over_the_fake_driver
def test_a_loader_feeds_a_gpu_over_the_link_of_another():
    data = {"images": random_bytes(64 * 5000).reshape(64, 5000), "labels": np.arange(64)}
    for late in "cuMemcpyHtoDAsync", "cuMemcpyDtoDAsync":
        for relay in ["cuda:1"], "auto":
            loader = penstock.Loader(
                data, 16, device="cuda:0", relay=relay, tuning=penstock.Tuning(gather="host", narrow=False)
            )
            assert (loader.device, loader.devices) == ("cuda:0", GPUS)
            driver.delay_work(late, SOON_NS)
            batches = [penstock.to_host(batch) for batch in loader]
            driver.reset()
            for name, stored in data.items():
                assert np.array_equal(np.concatenate([batch[name] for batch in batches]), stored)
            assert min(account.link_bytes for account in loader.device_stats()) > 0


@over_the_fake_driver(torch=True)
def test_batches_over_two_links_are_there_for_the_current_stream():
    stream, data, read = driver.stream(), random_bytes(8 * LARGE).reshape(8, LARGE), []
    driver.delay_work("cuMemcpyDtoDAsync", SOON_NS)
    with stand_in_torch.current(stream):
        for batch in penstock.Loader(data, 2, device="cuda:0", relay=["cuda:1"]):
            read.append(driver.read(stream, batch.address, 2 * LARGE))
    assert b"".join(reading.bytes() for reading in read) == data.tobytes()


@over_the_fake_driver
def test_a_loader_of_a_gpu_that_no_other_reaches_has_one_link():
    driver.set_peer_access(0)
    data = random_bytes(64 * 100).reshape(64, 100)
    for relay in ["cuda:0"], "auto":
        loader = penstock.Loader(data, 16, device="cuda:1", relay=relay)
        assert loader.devices == ["cuda:1"]
        assert np.array_equal(np.concatenate([penstock.to_host(batch) for batch in loader]), data)
        with pytest.raises(penstock.InvalidArgument, match="its own link"):
            loader.device_stats()


@over_the_fake_driver
def test_a_loader_raises_what_a_gpu_that_relays_raises_and_goes_on():
    data = random_bytes(64 * 5000).reshape(64, 5000)
    loader = penstock.Loader(data, 4, device="cuda:0", relay=["cuda:1"])
    iterator = iter(loader)
    next(iterator)
    driver.fail("cuMemcpyDtoDAsync", 1, 700)
    with pytest.raises(penstock.DeviceError, match="cuMemcpyDtoDAsync"):
        list(iterator)
    driver.reset()
    loader.set_epoch(0)
    assert np.array_equal(np.concatenate([penstock.to_host(batch) for batch in loader]), data)


@over_the_fake_driver
def test_weights_come_to_one_gpu_or_to_all(tmp_path):
    data = random_bytes(3 * LARGE).tobytes()
    path = files.write(tmp_path / "model", {"w": ("U8", (len(data),), data)})
    for late in "cuMemcpyHtoDAsync", "cuMemcpyDtoDAsync":
        driver.delay_work(late, SOON_NS)
        for loaded in [
            *penstock.load_safetensors(path, group=GPUS),
            penstock.load_safetensors(path, "cuda:0", relay=["cuda:1"]),
            penstock.load_safetensors(path, "cuda:0", relay="auto"),
        ]:
            assert penstock.to_host(loaded["w"]).tobytes() == data
        driver.reset()


@over_the_fake_driver
def test_a_feed_gives_all_gpus_each_batch():
    sent = [nest() for _ in range(5)] + [[random_bytes(10)]]
    for late in "cuMemcpyHtoDAsync", "cuMemcpyDtoDAsync":
        driver.delay_work(late, SOON_NS)
        fed = penstock.feed(sent, group=GPUS)
        for batch, one in zip(fed, sent, strict=True):
            for device, arrays in enumerate(batch):
                assert all(array.__dlpack_device__() == (2, device) for array in arrays)
                assert same(arrays, one)
        driver.reset()
        assert fed.stats().link_bytes == 5 * (3 * LARGE + 10) + 2 * 10


@over_the_fake_driver
def test_a_failure_of_one_gpu_comes_in_the_place_of_its_batch():
    sent = [nest() for _ in range(6)]
    iterator = iter(penstock.feed(sent, group=GPUS, prefetch_depth=0))
    assert all(same(arrays, sent[0]) for arrays in next(iterator))
    driver.fail("cuMemcpyDtoDAsync", 1, 700)
    with pytest.raises(penstock.DeviceError, match="cuMemcpyDtoDAsync"):
        for array in next(iterator)[1]:
            penstock.to_host(array)
    driver.reset()
    assert all(same(arrays, one) for batch, one in zip(iterator, sent[2:], strict=True) for arrays in batch)


@over_the_fake_driver
def test_gpus_without_a_link_between_them_pull_for_themselves():
    driver.set_peer_access(0)
    sent = nest()
    engines = [engine_for(spec) for spec in reversed(GPUS)]  # a group that no other test has made
    assert not engines[0].reaches(engines[1])
    copies = driver.calls("cuMemcpyDtoDAsync")
    destination = _core.Destination.group(group_for(engines), relays=False)
    there = destination.send(sent, [expander_for(engine) for engine in engines]).land()
    assert all(same(arrays, sent) for arrays in there)
    assert same(penstock.to_device(sent, "cuda:0", relay="auto"), sent)
    assert driver.calls("cuMemcpyDtoDAsync") == copies


@over_the_fake_driver
def test_a_failure_of_one_gpu_is_raised():
    sent = nest()
    assert all(same(arrays, sent) for arrays in penstock.to_device(sent, group=GPUS))
    driver.fail("cuMemcpyDtoDAsync", 1, 700)
    with pytest.raises(penstock.DeviceError, match="cuMemcpyDtoDAsync"):
        penstock.to_device(sent, group=GPUS)
    driver.reset()
    assert all(same(arrays, sent) for arrays in penstock.to_device(sent, group=GPUS))
