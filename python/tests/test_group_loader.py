"""A Loader of a group: every device, or one over the links of all, gets the batches of a Loader on one device."""

import pickle

import numpy as np
import pytest
import torch

import penstock
from support import groups_of, same

# Each device opens once in a process, so the specs are those of this file.
GROUPS = groups_of(7, 8, 9)
SAMPLES = 101


@pytest.fixture(params=GROUPS)
def group(request):
    return GROUPS[request.param]


@pytest.fixture
def data(random):
    return {
        "images": torch.from_numpy(random.integers(0, 256, (SAMPLES, 3, 5), np.uint8)),
        "labels": random.integers(0, 9, SAMPLES),
    }


def arguments_of(group, receives):
    return {"group": group} if receives == "all" else {"device": group[0], "relay": group[1:]}


@pytest.fixture(params=["all", "one"])
def place(request, group):
    """Who receives: all devices of the group, or the first over the links of all."""
    return arguments_of(group, request.param)


def receivers(batch):
    """What each device that receives gets."""
    return batch if isinstance(batch, list) else [batch]


def copies_of(loader):
    """The batches of an epoch, on the host. Their slots are overwritten, so that old bytes would show."""
    batches = []
    for batch in loader:
        batches.append([penstock.to_host(part) for part in receivers(batch)])
        for part in receivers(batch):
            for array in part.values():
                array[:] = 99
    return batches


OPTIONS = pytest.mark.parametrize("options", [{}, {"shuffle": True, "seed": 5}, {"drop_last": True}, {"to": "float32"}])


@OPTIONS
@pytest.mark.parametrize("receives", ["all", "one", "one, auto"])
def test_each_device_gets_the_batches_of_a_loader_on_one(group, data, receives, options):
    place, wanted = arguments_of(group, receives), set(group)
    if receives == "one, auto":
        for device in group:
            penstock.to_device(data["labels"], device)  # opens it: "auto" takes the host devices that are open
        place["relay"] = "auto"
    loader = penstock.Loader(data, 16, **place, **options)
    alone = penstock.Loader(data, 16, device="host", **options)
    assert len(loader) == len(alone)
    assert loader.devices[0] == group[0] and wanted <= set(loader.devices)
    assert receives == "one, auto" or loader.devices == group
    for _ in range(2):
        batches = copies_of(loader)
        expected = [penstock.to_host(batch) for batch in alone]
        assert len(batches) == len(expected) == len(loader)
        for parts, one in zip(batches, expected, strict=True):
            assert len(parts) == (len(group) if receives == "all" else 1)
            assert all(same(part, one) for part in parts)


def test_each_device_has_memory_of_its_own(group, data):
    for first, *others in penstock.Loader(data, 16, group=group):
        kept = penstock.to_host(others[-1])
        first["images"].zero_()
        assert same(penstock.to_host(others[-1]), kept)


def test_goes_on_where_a_state_was_taken(place, data):
    loader = penstock.Loader(data, 16, shuffle=True, **place)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    copy = pickle.loads(pickle.dumps(loader))
    rest = copies_of(loader_at(loader, state))
    assert len(rest) == 4
    assert same(copies_of(copy), rest)
    alone = penstock.Loader(data, 16, shuffle=True, device="host")
    alone.load_state_dict(state)
    assert same([penstock.to_host(batch) for batch in alone], [devices[0] for devices in rest])
    loader.set_epoch(4)
    alone.set_epoch(4)
    assert same([devices[0] for devices in copies_of(loader)], [penstock.to_host(batch) for batch in alone])


def loader_at(loader, state):
    loader.load_state_dict(state)
    return loader


def test_an_epoch_may_be_left_early(group, data):
    loader = penstock.Loader(data, 8, shuffle=True, group=group)
    for _ in range(3):
        for devices in loader:
            assert len(devices) == len(group)
            break
    loader.close()
    with pytest.raises(penstock.Closed):
        next(iter(loader))


def test_batches_may_be_kept(place, data):
    kept = [receivers(batch) for batch in penstock.Loader(data, 16, **place)]
    for parts in zip(*kept, strict=True):
        assert torch.equal(torch.cat([part["images"] for part in parts]), data["images"])


@pytest.mark.parametrize("receives", ["all", "one"])
def test_each_byte_crosses_one_link(data, receives):
    group = GROUPS["plain"]
    place, tuning = arguments_of(group, receives), penstock.Tuning(gather="host")
    loader = penstock.Loader({"images": data["images"]}, 10, **place, tuning=tuning)
    copies_of(loader)
    carried = [account.link_bytes for account in loader.device_stats()]
    assert "batches" in repr(loader.device_stats()[0])
    stored = data["images"].numel()
    assert stored <= sum(carried) < 2 * stored
    assert min(carried) > 0.4 * stored
    figures = loader.stats()
    assert figures.batches == len(loader)
    assert figures.samples == SAMPLES
    assert all(device in loader.describe()[-1] for device in group)
    with pytest.raises(penstock.InvalidArgument, match="one device"):
        penstock.Loader(data, 16, device="host").device_stats()


def test_a_relay_over_no_other_link_is_a_loader_on_one(data):
    alone = penstock.Loader(data, 10, device="host:7", relay=iter([]))
    assert alone.devices == ["host:7"]
    assert len(alone.describe()) == 2


def test_a_sampler_chooses_the_samples(place, data):
    sampler = torch.utils.data.WeightedRandomSampler(torch.arange(1.0, SAMPLES + 1), 70)
    for options in {"sampler": sampler}, {"batch_sampler": [[3, 3, 3], [0], [100, 5]], "batch_size": 3}:
        loader = penstock.Loader(data, **{"batch_size": 16, **options}, **place)
        alone = penstock.Loader(data, **{"batch_size": 16, **options}, device="host")
        for _ in range(2):
            given = []
            torch.manual_seed(4)
            for batch in loader:
                parts = [penstock.to_host(part) for part in receivers(batch)]
                assert all(same(part, parts[0]) for part in parts)
                given.append({name: torch.as_tensor(array).clone() for name, array in parts[0].items()})
            torch.manual_seed(4)
            expected = [{name: torch.as_tensor(array).clone() for name, array in batch.items()} for batch in alone]
            assert same(given, expected)


def test_refuses_what_has_no_meaning(data):
    for arguments, words in [
        ({"group": "host:7"}, "list of devices"),
        ({"group": []}, "needs a device"),
        ({"group": ["host:7", "host:7"]}, "twice"),
        ({"group": GROUPS["plain"], "device": "host"}, "Leave out device"),
        ({"group": GROUPS["plain"], "sampler": range(10), "shuffle": True}, "leave out shuffle"),
        ({"group": GROUPS["plain"], "relay": "auto"}, "Leave out device and relay"),
        ({"device": "host:7", "relay": "host:8"}, "list of devices"),
        ({"device": "host:7", "relay": ["host:7"]}, "twice"),
        ({"device": "host:7", "relay": ["host:8"], "residency": "all"}, "leave out the residency"),
    ]:
        with pytest.raises(penstock.InvalidArgument, match=words):
            penstock.Loader(data, 16, **arguments)
