"""The memory of the slots that worker processes fill: its limit, and what happens if there is none."""

import gc
import json
import os
import pathlib
import resource
import subprocess
import sys
import time

import pytest
from torch.utils.data import DataLoader, Dataset

import penstock
from penstock import _core
from penstock._feed import workers as _worker_feed
from worker_loaders import COUNT, DEVICES, SHARED, Counting, Growing, Tensors, equal, kept, noise, slots_of

pytestmark = pytest.mark.usefixtures("no_worker_leaks")


@pytest.fixture
def limit():
    """Sets the limit of all feeds for the test."""
    yield penstock.worker_memory_limit
    _worker_feed._limit = None


@pytest.mark.parametrize("room", [1, 2 << 20, 7 << 20])
@DEVICES
def test_the_limit_is_kept_and_batches_are_right(device, limit, room):
    limit(room)
    assert penstock.worker_memory_limit() == room
    loader = DataLoader(Growing(), 1, num_workers=2)
    expected = kept(loader)
    feed = penstock.feed(loader, device)
    for _ in range(3):
        equal(kept(feed), expected)
        assert _worker_feed.granted() <= room


def test_a_limit_of_0_leaves_workers_alone(limit):
    limit(0)
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=1), "host")
    equal(kept(feed), kept(DataLoader(Tensors(), 5)))
    assert slots_of(feed) is None
    assert "worker_memory_limit is 0" in feed.describe()[-1]
    limit(1 << 30)
    kept(feed)
    assert SHARED in feed.describe()


def test_feeds_share_the_limit(limit):
    limit(20 << 20)
    feeds = [penstock.feed(DataLoader(Tensors(), 5, num_workers=1), "host") for _ in range(2)]
    for _ in range(3):
        for feed in feeds:
            kept(feed)
    granted = [sum(slots_of(feed)._granted) for feed in feeds]
    assert sum(granted) == _worker_feed.granted() == 20 << 20
    del feeds[0], feed
    gc.collect()
    assert _worker_feed.granted() == granted[1]


@pytest.mark.parametrize("wrong", [-1, 1.5, "1GiB", True])
def test_a_limit_that_is_no_number_of_bytes_is_refused(wrong):
    with pytest.raises((penstock.InvalidArgument, TypeError), match="limit"):
        penstock.worker_memory_limit(wrong)


def test_the_limit_is_a_quarter_of_the_memory():
    assert penstock.worker_memory_limit() == _core.host_memory_bytes() // 4 > 0


def test_a_raised_limit_gives_room(limit):
    limit(1 << 20)
    feed = penstock.feed(DataLoader(Tensors(60, 900, 900), 5, num_workers=1), "host")
    kept(feed)
    assert "is larger than a slot may be" in feed.describe()[-1]
    limit(1 << 30)
    kept(feed)
    assert max(slots_of(feed)._granted) == 4 << 20


class Outlier(Dataset):
    """Batches of one sample each, the first of which is huge."""

    def __len__(self):
        return 60

    def __getitem__(self, i):
        return noise(i, 9_000_000 if i == 0 else 1_000_000)


def test_a_batch_beyond_the_limit_is_alone(monkeypatch, limit):
    limit(16 << 20)
    counted = Counting(monkeypatch)
    feed = penstock.feed(DataLoader(Outlier(), 1, num_workers=1, persistent_workers=True), "host")
    for _ in range(2):
        for batch in feed:
            assert len(batch[0]) > 0
            time.sleep(0.001)
    assert counted.slots > 80
    del batch


def test_slots_grow_when_others_are_gone(limit):
    limit(8 << 20)
    feeds = [penstock.feed(DataLoader(Tensors(), 5, num_workers=1), "host") for _ in range(2)]
    for _ in range(2):
        for feed in feeds:
            kept(feed)
    assert sum(slots_of(feed)._granted) == 0
    assert feed.describe()[-1] == "worker_memory_limit allows no more"
    del feeds[0]
    gc.collect()
    for _ in range(2):
        kept(feed)
    assert sum(slots_of(feed)._granted) == 8 << 20


def test_a_budget_of_one_batch_is_one_slot(limit, monkeypatch):
    """The workers whose slots have no room send as they do without penstock."""
    limit(2 << 20)
    counted = Counting(monkeypatch)
    loader = DataLoader(Tensors(COUNT, 3, 100, 1000), 4, num_workers=3)
    expected = kept(loader)
    feed = penstock.feed(loader, "host")
    for _ in range(3):
        equal(kept(feed), expected)
    assert counted.slots > 0 and counted.others > 0
    assert sorted(slots_of(feed)._granted, reverse=True) == [2 << 20] + [0] * (slots_of(feed).shared.slots - 1)
    assert feed.describe()[-2].startswith("1 of ")
    assert feed.describe()[-1] == "worker_memory_limit allows no more"


SHARES = """
import json, os, sys
import penstock, torch
from worker_loaders import Tensors, kept, slots_of
from support import same
from torch.utils.data import DataLoader

if __name__ == "__main__":
    loader = DataLoader(Tensors(), 5, num_workers=2)
    feed = penstock.feed(loader, "host", sharded=True)
    right = all(same(kept(feed), kept(loader)) for _ in range(2))
    facts = {"right": right, "limit": penstock.worker_memory_limit(), "slots": sum(slots_of(feed)._granted)}
    with open(sys.argv[1] + os.environ["RANK"], "w") as file:
        json.dump(facts, file)
"""


def test_processes_of_torchrun_on_one_host_share_the_limit(tmp_path):
    script = tmp_path / "shares.py"
    script.write_text(SHARES)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launcher, str(script), str(tmp_path / "rank")],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(pathlib.Path(__file__).parent), *sys.path])},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for rank in "01":
        facts = json.loads((tmp_path / f"rank{rank}").read_text())
        assert facts["right"] and facts["slots"] > 0
        assert facts["limit"] == _core.host_memory_bytes() // 4 // 2


@pytest.mark.parametrize("refused", ["files", "addresses"])
def test_shared_memory_that_is_refused_leaves_the_workers_alone(refused):
    expected = kept(DataLoader(Tensors(), 5))
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=2), "host")
    addresses = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    what, room, why = {
        "files": (resource.RLIMIT_FSIZE, 1 << 20, "files may have 1 MiB"),
        "addresses": (resource.RLIMIT_AS, addresses + (2 << 30), "mmap: Cannot allocate memory"),
    }[refused]
    before = resource.getrlimit(what)
    resource.setrlimit(what, (room, before[1]))
    try:
        equal(kept(feed), expected)
        assert slots_of(feed) is None
        (line,) = feed.describe()[1:]
        assert line.startswith("worker processes send their batches as they do without penstock: shared memory")
        assert why in line
    finally:
        resource.setrlimit(what, before)
    equal(kept(feed), expected)
    assert SHARED in feed.describe(), "the next epoch asks again"


@pytest.fixture
def reserved_pages():
    """Sets how many huge pages the machine has in reserve, for the test."""
    file = pathlib.Path("/proc/sys/vm/nr_hugepages")
    before = file.read_text()

    def reserve(count):
        try:
            file.write_text(str(count))
        except OSError as error:
            pytest.skip(f"{file} cannot be written: {error}")
        if int(file.read_text()) != count:
            pytest.skip(f"the machine has no {count} huge pages in a row")

    yield reserve
    if file.read_text() != before:
        file.write_text(before)


@pytest.mark.parametrize("count", [0, 1, 16])
def test_huge_pages_in_reserve_change_no_batch(reserved_pages, count):
    """None, too few for the slots, and enough for some."""
    reserved_pages(count)
    expected = kept(DataLoader(Tensors(COUNT, 3, 100, 1000), 4))
    feed = penstock.feed(DataLoader(Tensors(COUNT, 3, 100, 1000), 4, num_workers=2), "host")
    for _ in range(2):
        equal(kept(feed), expected)
    assert SHARED in feed.describe()
