"""`device` says where data goes: one device, several, one over the links of others, or a process's own in a group."""

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import penstock
from penstock._destination import Destination
from support import same

# Each device opens once in a process, so the specs are those of this file.
FIRST, SECOND = "host:4", "host:5"
BOTH = [FIRST, SECOND]
RELAYED = penstock.relayed(FIRST, over=[SECOND])
LARGE = 3 << 20  # smaller nests and batches go over one link


def alone():
    return penstock.ProcessGroup(rank=0, processes=1)


@pytest.fixture
def tensors(random):
    return {
        "x": torch.from_numpy(random.integers(0, 256, (12, LARGE // 4), np.uint8)),
        "y": torch.arange(12),
    }


def carried():
    return Destination(RELAYED).group.carried()


def test_a_list_for_a_list_of_one_device(tensors):
    one = penstock.to_device(tensors, [FIRST])
    assert type(one) is list and same(one[0], tensors)


@pytest.mark.parametrize("native", [True, False])
def test_feed_takes_each(tensors, native):
    def loader():
        return DataLoader(TensorDataset(tensors["x"], tensors["y"]), batch_size=4, shuffle=True)

    def fed(device):
        torch.manual_seed(5)
        return [penstock.to_host(batch) for batch in penstock.feed(loader(), device, native=native)]

    expected = fed("host")
    assert same(fed(FIRST), expected)
    assert same(fed(BOTH), [[batch, batch] for batch in expected])
    before = carried()
    assert same(fed(RELAYED), expected)
    if not native:
        assert sum(carried()) - sum(before) >= 3 * LARGE
    if native:
        assert same(fed(alone()), expected)


def test_a_relayed_feed_says_what_its_links_carry(tensors):
    loader = DataLoader(TensorDataset(tensors["x"], tensors["y"]), batch_size=4)
    fed = penstock.feed(loader, RELAYED)
    list(fed)
    assert fed.device == FIRST and FIRST in fed.describe()[-1] and SECOND in fed.describe()[-1]
    assert len(fed.device_stats()) == 2
    plain = penstock.feed(loader, RELAYED, native=False)
    list(plain)
    assert FIRST in plain.describe()[-1] and SECOND in plain.describe()[-1]


def test_other_spellings_are_the_same(tensors):
    for device, others in [(BOTH, {"group": BOTH}), (RELAYED, {"device": FIRST, "relay": [SECOND]})]:
        loader, other = penstock.Loader(tensors, 4, device=device), penstock.Loader(tensors, 4, **others)
        assert (loader.device, loader.devices) == (other.device, other.devices)
        assert loader.describe()[:-1] == other.describe()[:-1]


@pytest.mark.parametrize("device", [BOTH, RELAYED], ids=["list", "relayed"])
def test_a_pickled_one_goes_to_the_same_place(device, tensors):
    loader = penstock.Loader(tensors, 4, device=device)
    next(iter(loader))
    again = pickle.loads(pickle.dumps(loader))
    assert (again.device, again.devices) == (loader.device, loader.devices)
    assert again.state_dict() == loader.state_dict()
    fed = penstock.feed(DataLoader(TensorDataset(tensors["y"]), batch_size=4), device)
    again = pickle.loads(pickle.dumps(fed))
    assert (again.device, again.devices, again.group) == (fed.device, fed.devices, fed.group)
    assert same(list(again), list(fed))


def test_two_spellings_at_once_are_refused(tensors):
    loader = DataLoader(TensorDataset(tensors["y"]), batch_size=4)
    for device in BOTH, RELAYED, alone():
        for others in {"group": BOTH}, {"relay": [SECOND]}:
            with pytest.raises(penstock.InvalidArgument, match="Leave out group and relay"):
                penstock.to_device(tensors, device, **others)
            with pytest.raises(penstock.InvalidArgument, match="Leave out group and relay"):
                penstock.Loader(tensors, 4, device=device, **others)
        with pytest.raises(penstock.InvalidArgument, match="Leave out group and relay"):
            penstock.feed(loader, device, group=BOTH)
    with pytest.raises(penstock.InvalidArgument, match="needs a device"):
        penstock.to_device(tensors, [])
    with pytest.raises(penstock.InvalidArgument, match="list of devices"):
        penstock.to_device(tensors, penstock.relayed(FIRST, over=SECOND))
    with pytest.raises(penstock.InvalidArgument, match="PENSTOCK_NOBODY"):
        penstock.to_device(tensors, [FIRST, "PENSTOCK_NOBODY"])
