"""Which worker processes fill slots, which processes inherit them, and how both end."""

import copy
import gc
import multiprocessing
import os
import sys
import time
import weakref

import pytest
import torch
from torch.utils.data import DataLoader

import penstock
from penstock._feed import workers as _worker_feed
from support import run_program
from worker_loaders import AllEqual, Heavy, Tensors, check_all_free, equal, kept, slots_of

pytestmark = pytest.mark.usefixtures("no_worker_leaks")


def test_persistent_workers_that_run_already_are_kept():
    loader = DataLoader(Tensors(), 5, num_workers=1, persistent_workers=True)
    expected = kept(loader)
    workers = [process.pid for process in loader._iterator._workers]
    feed = penstock.feed(loader, "host")
    equal(kept(feed), expected)
    assert [process.pid for process in loader._iterator._workers] == workers
    assert "started without penstock.feed" in feed.describe()[-1]


def test_persistent_workers_stay():
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=2, persistent_workers=True), "host")
    kept(feed)
    before = [process.pid for process in slots_of(feed).processes]
    kept(feed)
    assert [process.pid for process in slots_of(feed).processes] == before
    assert {process.pid for process in multiprocessing.active_children()} >= set(before)


def test_persistent_workers_are_the_loaders():
    loader = DataLoader(Tensors(), 5, num_workers=1, persistent_workers=True)
    expected, processes = kept(DataLoader(Tensors(), 5)), set()
    for _ in range(3):
        feed = penstock.feed(loader, "host")
        equal(kept(feed), expected)
        processes |= {process.pid for process in slots_of(feed).processes}
    assert len(processes) == 1


def begun(loader):
    feed = penstock.feed(loader, "host")
    kept(feed)
    return feed


def test_loaders_that_are_equal_have_workers_of_their_own():
    first = AllEqual(Tensors(10), 5, num_workers=1, persistent_workers=True)
    second = AllEqual(Tensors(10, 3), 5, num_workers=1, persistent_workers=True)
    for loader, shape in ((first, (16, 33)), (second, (3,))):
        equal(kept(penstock.feed(loader, "host")), kept(DataLoader(Tensors(10, *shape), 5)))
    copied = copy.copy(first)
    processes = {id(slots_of(feed)) for feed in map(begun, (first, copied))}
    assert len(processes) == 2


class Owner:
    """Has a loader whose collate_fn is its own method."""

    def __init__(self):
        self.loader = DataLoader(Tensors(), 5, num_workers=1, persistent_workers=True, collate_fn=self.collate)

    def collate(self, samples):
        return torch.stack([image for image, _ in samples])


def test_persistent_workers_go_with_the_owner_of_their_loader(impatient):
    owner = Owner()
    gone = weakref.ref(owner)
    kept(penstock.feed(owner.loader, "host"))
    del owner
    gc.collect()
    assert gone() is None
    assert _worker_feed.granted() == 0


def test_an_idle_feed_keeps_no_process_open():
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=2), "host")
    kept(feed)
    assert slots_of(feed).processes == []


def test_new_workers_get_no_slot_of_one_that_still_runs():
    feed = penstock.feed(DataLoader(Heavy(), 4, num_workers=1), "host", native=False)
    kept(feed)
    iterator = iter(feed)
    next(iterator)
    source = weakref.ref(iterator._source)
    workers = iterator._source.iterator  # kept, and with it the worker
    before = slots_of(feed)
    del iterator
    assert source() is None
    equal(kept(feed), kept(DataLoader(Heavy(), 4)))
    assert slots_of(feed) is not before
    del workers


def test_a_fork_while_batches_are_held_frees_no_slot():
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=1, persistent_workers=True), "host")
    kept(feed)
    expected = kept(DataLoader(Tensors(), 5))
    iterator = iter(feed)
    held = [next(iterator), next(iterator)]
    child = os.fork()
    if child == 0:
        held.clear()
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    rest = list(iterator)
    equal(held + rest, expected)
    del iterator, held, rest


class Remembering(Tensors):
    """Tells how often what it remembers has changed."""

    memory = None

    def __getitem__(self, i):
        if self.memory is None:
            return torch.zeros(900), 0
        time.sleep(0.002)
        return torch.full((900,), float(i)), int((self.memory != self.memory[0, 0]).any() or self.memory[0, 0] != 1)


def test_what_workers_have_inherited_is_not_overwritten():
    dataset = Remembering()
    feed = penstock.feed(DataLoader(dataset, 4, num_workers=1), "host")
    kept(feed)
    batch = list(feed)[-1]
    batch[0][:] = 1
    dataset.memory = batch[0]
    changed = 0
    for number, batch in enumerate(feed):
        if number == 1:
            dataset.memory = None
        changed += int(batch[1].sum())
    assert changed == 0
    assert slots_of(feed).shared.retired == 0
    batch = None
    kept(feed)
    check_all_free(slots_of(feed))


def test_a_child_keeps_the_batch_that_it_inherited():
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=1, persistent_workers=True), "host")
    for _ in range(2):
        kept(feed)
    batch = next(iter(feed))
    expected = batch[0].clone()
    go_on, theirs = multiprocessing.get_context("fork").Pipe()

    def look(batch, connection, expected):
        same = torch.equal(batch[0], expected)
        connection.recv()
        connection.send(same and torch.equal(batch[0], expected))

    child = multiprocessing.get_context("fork").Process(target=look, args=(batch, theirs, expected))
    child.start()
    del batch
    for _ in range(3):
        kept(feed)
    go_on.send(None)
    assert go_on.recv()
    child.join()
    assert slots_of(feed).shared.retired == 1


def test_workers_that_are_forked_retire_no_slot():
    feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=1), "host")
    pools = set()
    for _ in range(3):
        for batch in feed:  # the last one is kept when the next workers start
            assert len(batch) == 2
        pools.add(id(slots_of(feed)))
    assert len(pools) == 1
    assert slots_of(feed).shared.retired == 0


EXIT = """
import sys
import penstock, torch
from worker_loaders import Tensors
from torch.utils.data import DataLoader

feed = penstock.feed(DataLoader(Tensors(), 5, num_workers=2, persistent_workers=sys.argv[1] == "1"), "host")
for _ in range(2):
    for number, batch in enumerate(feed):
        if number == 3:
            break
iterator = iter(feed)
kept = [next(iterator) for _ in range(3)]
print("leaving")
"""


@pytest.mark.parametrize("persistent", "01")
def test_an_interpreter_that_exits_in_an_epoch_leaves_nothing(persistent):
    done = run_program(EXIT, persistent, PYTHONPATH=os.pathsep.join(sys.path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "leaving\n"
    assert "Traceback" not in done.stderr and "leaked" not in done.stderr
