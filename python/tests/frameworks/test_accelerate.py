"""What Accelerate says about the current batch, with a feed around its loader and without."""

import itertools
import pickle

import pytest
import torch
from recipe import CountingSGD, Journal, Model, Rows, TensorRows
from torch.utils.data import DataLoader, IterableDataset

import penstock

accelerate = pytest.importorskip("accelerate")


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Rows(22))


LOADERS = {
    "whole batches": lambda: DataLoader(Rows(24), 4),
    "a last batch of two": lambda: DataLoader(Rows(22), 4),
    "shuffle": lambda: DataLoader(Rows(22), 4, shuffle=True),
    "drop_last": lambda: DataLoader(Rows(22), 4, drop_last=True),
    "one batch": lambda: DataLoader(Rows(3), 4),
    "empty": lambda: DataLoader(Rows(0), 4),
    "workers": lambda: DataLoader(Rows(22), 4, shuffle=True, num_workers=2),
    "tensors": lambda: DataLoader(TensorRows(22), 4, shuffle=True),
    "iterable": lambda: DataLoader(Stream(), 4),
}


@pytest.fixture
def accelerator():
    """A function that makes one, as a new process would."""
    from accelerate.state import AcceleratorState, GradientState

    def make(**options):
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        torch.manual_seed(0)
        return accelerate.Accelerator(**options)

    yield make
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def settings(stateful=False, dispatch=None):
    return accelerate.utils.DataLoaderConfiguration(
        use_seedable_sampler=True, data_seed=1, use_stateful_dataloader=stateful, dispatch_batches=dispatch
    )


def whole(loader):
    try:
        return len(loader)
    except TypeError:
        return None


def ids(loader):
    return [batch["id"].tolist() for batch in loader]


def train(accelerator, loader, wrap):
    """The record of each batch, and the optimizer's steps, over two epochs."""
    journal = Journal(0)
    model = Model(journal)
    model, optimizer, loader = accelerator.prepare(model, CountingSGD(model.parameters(), journal), loader)
    loader, seen, state = wrap(loader), [], accelerator.gradient_state
    for _ in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch))
                optimizer.step()
                optimizer.zero_grad()
            gathered = accelerator.gather_for_metrics(batch["id"]).tolist()
            seen.append((gathered, state.end_of_dataloader, state.remainder, accelerator.sync_gradients))
        seen.append((state.in_dataloader, loader.iteration, whole(loader)))
    return seen, journal.optimizer_steps


@pytest.mark.parametrize("depth", [0, 2, 100])
@pytest.mark.parametrize("name", LOADERS)
def test_all_is_as_of_the_batch_in_hand(name, depth, accelerator):
    options = {"gradient_accumulation_steps": 4, "dataloader_config": settings()}
    expected = train(accelerator(**options), LOADERS[name](), lambda loader: loader)
    made = accelerator(**options)
    assert train(made, LOADERS[name](), lambda x: penstock.feed(x, made.device, prefetch_depth=depth)) == expected


def test_samples_of_a_prepared_loader_are_gathered_natively(accelerator):
    made = accelerator()
    fed = penstock.feed(made.prepare(LOADERS["tensors"]()), made.device)
    assert fed.describe()[0].startswith("the dataset is tensors")
    ids(fed)
    assert fed.describe()[0].startswith("the dataset is tensors")
    assert fed.stats().batches == 6
    assert fed.stats().limited_by not in ("loader", "fetch", "collate", "transport")
    whole_of_it = penstock.feed(made.prepare(LOADERS["workers"]()), made.device)
    assert "its dataset is a Rows" in whole_of_it.describe()[0]


def test_workers_of_a_prepared_loader_fill_slots(accelerator):
    expected = ids(accelerator().prepare(LOADERS["whole batches"]()))
    feed = penstock.feed(accelerator().prepare(DataLoader(Rows(24), 4, num_workers=2)))
    for _ in range(3):
        assert ids(feed) == expected
    assert "worker processes put their batches into shared memory" in feed.describe()
    assert max(feed._ways.workers.pool._granted) > 0


def test_the_last_optimizer_step_is_not_lost(accelerator):
    made = accelerator(gradient_accumulation_steps=4)
    _, steps = train(made, DataLoader(Rows(22), 4), lambda loader: penstock.feed(loader, made.device))
    assert steps == 2 * 2, "after batches 4 and 6 of 6, in each of two epochs"


@pytest.mark.parametrize("depth", [0, 2, 100])
@pytest.mark.parametrize("count", range(1, 8))
def test_what_save_state_writes_is_of_the_batch_in_hand(count, depth, accelerator, tmp_path):
    pytest.importorskip("torchdata")
    rests = []
    for wrap in (lambda x: x, lambda x: penstock.feed(x, prefetch_depth=depth)):
        made = accelerator(dataloader_config=settings(stateful=True))
        loader = wrap(made.prepare(DataLoader(Rows(22), 4, shuffle=True)))
        assert hasattr(loader, "state_dict")
        for _ in zip(range(count), loader, strict=False):
            pass
        made.save_state(tmp_path / str(len(rests)))
        made = accelerator(dataloader_config=settings(stateful=True))
        loader = wrap(made.prepare(DataLoader(Rows(22), 4, shuffle=True)))
        made.load_state(tmp_path / str(len(rests)))
        rests.append([ids(loader), ids(loader)])
    assert rests[1] == rests[0]


def test_a_state_only_where_there_is_one(accelerator):
    made = accelerator()
    fed = penstock.feed(made.prepare(DataLoader(Rows(22), 4)), made.device)
    assert not hasattr(fed, "state_dict") and not hasattr(fed, "load_state_dict")
    with pytest.raises(ValueError, match="state_dict"):
        made.register_for_checkpointing(fed)


def test_batches_are_skipped_in_the_right_epoch(accelerator):
    """transformers.Trainer skips in what it was given: the feed."""
    for wrap in (lambda x: x, penstock.feed):
        made = accelerator(dataloader_config=settings())
        prepared = made.prepare(DataLoader(Rows(22), 4, shuffle=True))
        epochs = [ids(prepared) for _ in range(3)]
        loader = wrap(prepared)
        rest = accelerate.skip_first_batches(loader, 2)
        rest.set_epoch(1)
        assert ids(rest) == epochs[1][2:]


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize("name", ["whole batches", "drop_last", "iterable"])
def test_batches_are_skipped_in_a_loader_that_dispatches(name, fed, accelerator):
    one = accelerator(dataloader_config=settings(dispatch=True))
    loader = one.prepare(LOADERS[name]())
    wanted = ids(loader)[2:]
    rest = accelerate.skip_first_batches(penstock.feed(loader) if fed else loader, 2)
    assert type(rest).__name__ == "DataLoaderDispatcher"
    assert ids(penstock.feed(rest) if fed else rest) == wanted


def test_to_skip_in_the_feed_of_a_plain_loader_is_refused(accelerator):
    accelerator()
    with pytest.raises(Exception, match="feed"):
        accelerate.skip_first_batches(penstock.feed(DataLoader(Rows(22), 4)), 2)


def test_a_loop_left_early_and_the_next(accelerator):
    expected = None
    for wrap in (lambda x: x, penstock.feed):
        made = accelerator(dataloader_config=settings())
        loader = wrap(made.prepare(DataLoader(Rows(60), 4, shuffle=True)))
        seen = [ids(itertools.islice(loader, 3)), ids(loader), ids(loader)]
        expected = expected or seen
        assert seen == expected


def test_the_loader_stays_what_it_is_while_it_is_fed(accelerator):
    prepared = accelerator().prepare(DataLoader(Rows(22), 4))
    base = prepared.base_dataloader
    fed = penstock.feed(prepared)
    iterator = iter(fed)
    next(iterator)
    assert isinstance(prepared, DataLoader) and prepared._dataset_kind == base._dataset_kind
    assert not isinstance(pickle.loads(pickle.dumps(prepared.base_dataloader)), penstock.Feed)
    iterator.close()
    assert prepared.base_dataloader is base


def test_loops_that_overlap_leave_the_loader_as_it_was(accelerator):
    prepared = accelerator().prepare(DataLoader(Rows(22), 4))
    base = prepared.base_dataloader
    fed = penstock.feed(prepared)
    first, second = iter(fed), iter(fed)
    next(first), next(second)
    first.close()
    assert sum(1 for _ in second) == 5
    assert prepared.base_dataloader is base
    assert [(a["id"].tolist(), b["id"].tolist()) for a, b in zip(fed, fed, strict=True)] == [
        (x, x) for x in ids(prepared)
    ]
    assert prepared.base_dataloader is base


def test_another_gpu_than_accelerates_is_refused(accelerator):
    prepared = accelerator().prepare(DataLoader(Rows(22), 4))
    prepared.device = torch.device("cuda:0")
    with pytest.raises(penstock.InvalidArgument, match="leave `device` out"):
        penstock.feed(prepared, device="cuda:1")
