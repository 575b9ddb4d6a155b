"""diagnose: loaders in which one stage is slow by far. Times are not compared."""

import contextlib
import copy
import itertools
import multiprocessing
import multiprocessing.util
import os
import random
import re
import signal
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, get_worker_info

import penstock
from penstock import _core
from penstock._doctor.examination import (
    UNTRIED_TIMEOUT,
    Watch,
    _Examination,
    _numbers_to_try,
    _Order,
    _reason,
    _Run,
    examine,
)
from penstock._doctor.stages import NOTHING, Staged, may_share_memory
from penstock._doctor.streams import Endless, Worker, _digest, rows_of, share_samples
from penstock._doctor.verdict import Timings

BOX = 0.05
SLOW = 0.2  # what a planted stage takes for a batch, far more than all others take on a busy machine


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """PyTorch has one thread: several are measured in one more run or two."""
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)


def test_numbers_of_workers_that_are_tried():
    assert _numbers_to_try(1, 0, None) == [0, 1, 2, 4]
    assert _numbers_to_try(2, 2, 1000) == [0, 1, 2, 4, 8]
    assert _numbers_to_try(12, 3, 0) == [0, 1, 2, 3, 4, 8, 12, 24, 48]
    assert _numbers_to_try(4, 20, 5) == [0, 1, 2, 4, 8, 16, 20]
    assert _numbers_to_try(12, 3, 9) == [0, 1, 2, 3, 4, 8]
    assert _numbers_to_try(12, 3, 1) == [0, 1, 2, 3]


def test_the_order_goes_on_and_begins_again():
    order = _Order([[0, 1], [2, 3], [4]])
    first, second = iter(order), iter(order)
    assert [next(first), next(first), next(second), next(second)] == [[0, 1], [2, 3], [4], [0, 1]]
    assert order.taken == 4 and order.samples_per_batch() == 7 / 4


class Samples(Dataset):
    """Samples of which each takes `seconds`."""

    def __init__(self, count=64, seconds=0.0):
        self.count, self.seconds = count, seconds

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return {"x": torch.full((4,), float(index)), "noise": np.random.rand() + random.random() + torch.rand(())}


class Spinning(Samples):
    """Samples of which each takes 20 ms of a processor."""

    def __getitem__(self, index):
        begin = time.process_time()
        while time.process_time() - begin < 0.02:
            pass
        return super().__getitem__(index)


class Whole(Samples):
    """Batches of a dataset that gives nothing else."""

    def __getitems__(self, indices):
        time.sleep(self.seconds)
        return [super(Whole, self).__getitem__(index) for index in indices]

    def __getitem__(self, index):
        raise AssertionError("there is __getitems__")


class SlowToSend:
    """What takes a worker long to send."""

    def __reduce__(self):
        time.sleep(SLOW)
        return SlowToSend, ()

    def __deepcopy__(self, memo):
        return self


class Unwieldy(Samples):
    def __getitem__(self, index):
        return SlowToSend()


class Opened(Samples):
    """What worker_init_fn opens."""

    file = None

    def __getitem__(self, index):
        assert self.file == "open" and type(get_worker_info().dataset) is Opened
        return super().__getitem__(index)


def slow_collate(samples):
    time.sleep(SLOW)
    return default_collate(samples)


def taking_collate(samples):
    """Takes the samples apart, and keeps their tensors."""
    return [sample.pop("x") for sample in samples]


def open_file(worker):
    get_worker_info().dataset.file = "open"


@contextlib.contextmanager
def workers_are_ended():
    """Those of other tests may end meanwhile."""
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) <= before


def diagnose(loader, all_numbers=False, **options):
    """With no worker and as many as are configured, or with `all_numbers` of them."""
    with workers_are_ended(), pytest.MonkeyPatch.context() as patch:
        if not all_numbers:
            patch.setattr(
                "penstock._doctor.examination._numbers_to_try", lambda _, configured, batches: sorted({0, configured})
            )
        return penstock.diagnose(loader, seconds=BOX, **options)


def ids(verdict):
    return [finding.id for finding in verdict.findings]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_slow_dataset(workers):
    verdict = diagnose(DataLoader(Samples(seconds=SLOW / 4), 4, num_workers=workers))
    assert verdict.limited_by == "fetch" and "fetch-dominates" in ids(verdict)
    assert verdict.timings.fetch >= SLOW > verdict.timings.collate
    assert verdict.timings.samples == 4 and verdict.timings.batches == 16
    assert (verdict.timings.transport is None) == (workers == 0)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_slow_collate(workers):
    verdict = diagnose(DataLoader(Samples(), 4, num_workers=workers, collate_fn=slow_collate))
    assert verdict.limited_by == "collate" and "collate-dominates" in ids(verdict)


def test_a_slow_transport():
    verdict = diagnose(DataLoader(Unwieldy(), batch_size=None, num_workers=1))
    assert verdict.limited_by == "transport"
    assert ids(verdict) == ["fewer-workers"] and verdict.findings[0].change == "num_workers=0", "nothing is sent then"
    assert verdict.timings.samples == 1


def test_a_slow_step():
    verdict = diagnose(DataLoader(Samples(), 4, num_workers=1), step_seconds=1000.0)
    assert verdict.limited_by == "consumer" and "nothing-to-gain" in ids(verdict)
    assert verdict.timings.step == 1000.0


def test_more_workers_pay_while_samples_only_wait():
    verdict = diagnose(DataLoader(Samples(seconds=0.03), 4), all_numbers=True)
    assert set(verdict.timings.by_workers) >= {0, 1}
    assert min(verdict.timings.by_workers) == 0
    if not torch.cuda.is_available():
        assert any("not measured" in note for note in verdict.timings.notes), "the GPU's stages"


@pytest.mark.parametrize("processors", [2, 8])
def test_numbers_of_workers_are_tried_whatever_their_start_takes(monkeypatch, processors):
    def planted(examination, what, clone):
        next(iter(examination.order))
        result = _Run(2.0 if clone.num_workers else 0.05)
        result.seconds = 0.05 / max(1, clone.num_workers)
        result.batches = [(0.05, 0.0, 0.05)]
        return result

    monkeypatch.setattr("penstock._doctor.examination._core.processors", lambda: processors)
    monkeypatch.setattr("penstock._doctor.examination._Examination.run", planted)
    verdict = diagnose(DataLoader(Samples(60), 1, num_workers=1), all_numbers=True)
    assert list(verdict.timings.by_workers) == [1, 2] + ([4, 8] if processors == 8 else []) + [0]
    assert ids(verdict)[1:] == ["slow-start"] and verdict.findings[0].id == "more-workers"
    assert verdict.findings[0].change == f"num_workers={processors}"


@pytest.fixture
def one_of_four_threads(monkeypatch):
    """The numbers of threads that PyTorch has in turn, four at first, and of each run its workers and threads."""
    threads, runs = [4], {}

    def planted(examination, what, clone):
        next(iter(examination.order))
        runs[what] = clone.num_workers, threads[-1]
        result = _Run(0.0)
        result.seconds = 0.01 * (1 if clone.num_workers else threads[-1])
        result.batches = [(0.02, 0.01, 0.03)]
        return result

    monkeypatch.setattr("torch.get_num_threads", lambda: threads[-1])
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    monkeypatch.setattr("penstock._doctor.examination._Examination.run", planted)
    return threads, runs


def test_a_loader_in_this_process_is_measured_with_one_thread_too(one_of_four_threads):
    threads, runs = one_of_four_threads
    verdict = diagnose(DataLoader(Samples(), 4))
    assert threads == [4, 1, 4] and [what for what, run in runs.items() if run[1] == 1] == [
        "no worker, with one thread",
        "fetch and collate with one thread",
    ]
    assert verdict.timings.one_thread == {"whole": 0.01, "fetch": 0.02, "collate": 0.01, "busy": 0.03}
    assert ids(verdict)[0] == "too-many-threads" and verdict.findings[0].gain_seconds_per_step.low == pytest.approx(
        0.03
    )


def test_workers_are_compared_with_one_thread_in_this_process(one_of_four_threads):
    threads, runs = one_of_four_threads
    verdict = diagnose(DataLoader(Samples(), 4, num_workers=1), step_seconds=0.0)
    assert threads == [4, 1, 4] and list(runs)[-2:] == ["0 workers", "no worker, with one thread"]
    assert verdict.timings.one_thread == {"whole": 0.01} and verdict.timings.by_workers[0] == 0.04
    assert "too-many-threads" not in ids(verdict) and verdict.as_dict()["workers"]["pays"] == 0


def test_threads_are_given_back_after_an_error(one_of_four_threads, monkeypatch):
    planted = _Examination.run

    def failing(examination, what, clone):
        if "thread" in what:
            raise LookupError
        return planted(examination, what, clone)

    monkeypatch.setattr("penstock._doctor.examination._Examination.run", failing)
    with pytest.raises(LookupError):
        diagnose(DataLoader(Samples(), 4))
    assert one_of_four_threads[0] == [4, 1, 4]


def test_what_the_advice_needs_to_know_of_a_loader(one_of_four_threads):
    def known(loader):
        timings = diagnose(loader).timings
        return timings.stacks, timings.takes_batches

    assert known(DataLoader(Samples(), 4)) == (True, False)
    assert known(DataLoader(Whole(), 4, collate_fn=taking_collate)) == (False, True)
    assert known(DataLoader(Samples(), batch_size=None)) == (True, True)


def test_workers_gain_nothing_in_an_epoch_of_one_batch():
    verdict = diagnose(DataLoader(Samples(5, seconds=0.02), 16), all_numbers=True)
    assert set(verdict.timings.by_workers) == {0, 1} and "more-workers" not in ids(verdict)
    assert verdict.as_dict()["workers"]["pays"] == 0
    assert verdict.timings.starts[1] > 0


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1, "persistent_workers": True, "prefetch_factor": 3},
        {"num_workers": 1, "batch_size": 4, "shuffle": True},
        {"num_workers": 1, "multiprocessing_context": "forkserver", "batch_size": 4},
        {"num_workers": 1, "collate_fn": taking_collate, "batch_size": 4},
        {"num_workers": 1, "timeout": 600, "drop_last": True, "batch_size": 5},
        {"batch_sampler": [[0, 1], [2], [3, 4, 5]]},
        {"batch_size": None, "sampler": [3, 1, 2]},
        {"dataset": Whole(), "batch_size": 4},
        {"dataset": Opened(), "num_workers": 1, "batch_size": 4, "worker_init_fn": open_file},
    ],
    ids=lambda options: "-".join(map(str, options)),
)
def test_all_kinds_of_loaders(options):
    loader = DataLoader(**({"dataset": Samples()} | options))
    verdict = diagnose(loader)
    assert verdict.timings.whole > 0 and loader.num_workers in verdict.timings.by_workers
    assert loader._iterator is None


def test_the_loader_and_the_random_states_stay_as_they_were():
    generator = torch.Generator()
    generator.manual_seed(7)
    loader = DataLoader(Samples(), 4, shuffle=True, generator=generator)
    before = generator.get_state(), torch.get_rng_state(), random.getstate(), copy.deepcopy(np.random.get_state())
    attributes = dict(vars(loader))
    diagnose(loader)
    assert torch.equal(generator.get_state(), before[0])
    assert torch.equal(torch.get_rng_state(), before[1])
    assert random.getstate() == before[2]
    assert np.array_equal(np.random.get_state()[1], before[3][1]) and np.random.get_state()[2] == before[3][2]
    assert vars(loader) == attributes


class Broken(Samples):
    def __getitem__(self, index):
        torch.rand(())
        raise LookupError(f"sample {index} is broken")


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_the_dataset_pass_through(workers):
    state = torch.get_rng_state()
    with workers_are_ended(), pytest.raises(LookupError, match="sample 0 is broken") as raised:
        diagnose(DataLoader(Broken(), 4, num_workers=workers))
    assert "test_doctor.py" in str(raised.value) or raised.traceback[-1].path.name == "test_doctor.py"
    assert torch.equal(torch.get_rng_state(), state)


class Ended(Samples):
    def __getitem__(self, index):
        return next(iter(()))  # here


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_raises_stop_iteration_is_told(workers):
    with open(__file__) as file:
        line = next(number for number, text in enumerate(file, 1) if text.endswith("# here\n"))
    place = re.escape(f"raises StopIteration at {__file__}({line}): __getitem__. An epoch ends there")
    with workers_are_ended(), pytest.raises(penstock.InvalidArgument, match=place) as raised:
        diagnose(DataLoader(Ended(), 4, num_workers=workers))
    assert isinstance(raised.value.__cause__, StopIteration)


def die_at_the_end(worker):
    multiprocessing.util.Finalize(None, os.kill, (os.getpid(), signal.SIGKILL), exitpriority=0)


def test_workers_that_die_as_they_are_ended_spoil_nothing():
    loader = DataLoader(Samples(), 4, num_workers=2, worker_init_fn=die_at_the_end)
    verdict = diagnose(loader)
    assert set(verdict.timings.by_workers) == {0, 2}


class Shared(RuntimeError):
    pass


class OnlyHere(Samples):
    """Workers raise `error`."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def __getitem__(self, index):
        if get_worker_info() is not None:
            raise self.error
        return super().__getitem__(index)


def test_numbers_of_workers_that_fail_are_told(monkeypatch):
    monkeypatch.setattr("penstock._doctor.examination._core.processors", lambda: 2)
    verdict = diagnose(DataLoader(OnlyHere(Shared("the file is open\nin another process")), 4), all_numbers=True)
    assert list(verdict.timings.by_workers) == [0]
    notes = [note for note in verdict.timings.notes if "worker" in note]
    for note, count in zip(notes[:2], ("1 worker was", "2 workers were"), strict=True):
        assert re.fullmatch(count + r" not measured: (\w+\.)?Shared: the file is open", note)


class Unsendable(Samples):
    def __getitem__(self, index):
        return lambda: index


def test_workers_that_send_nothing_are_waited_for_once(monkeypatch):
    monkeypatch.setattr("penstock._doctor.examination.UNTRIED_TIMEOUT", 3.0)
    monkeypatch.setattr("penstock._doctor.examination._numbers_to_try", lambda *facts: [0, 1, 2, 4])
    verdict = diagnose(DataLoader(Unsendable(), 4, collate_fn=list), all_numbers=True)
    assert list(verdict.timings.by_workers) == [0]
    [note] = [note for note in verdict.timings.notes if "worker" in note]
    assert re.match(r"1 worker was not measured: .*timed out", note)
    assert note.endswith("(pickle them) look like that. No more numbers were tried.")


class LateInOneWorker(Samples):
    """A single worker sends nothing within any time-out of a test, and is ended then."""

    def __getitem__(self, index):
        if get_worker_info() is not None and get_worker_info().num_workers == 1:
            time.sleep(100)
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("loader", "tried"),
    [
        (DataLoader(OnlyHere(TimeoutError("the database timed out")), 4), [0]),
        (DataLoader(LateInOneWorker(), 4, num_workers=2, timeout=10), [2, 4, 0]),
    ],
    ids=["own error", "own timeout"],
)
def test_other_numbers_are_tried_after_another_error(monkeypatch, loader, tried):
    monkeypatch.setattr("penstock._doctor.examination._core.processors", lambda: 4)
    monkeypatch.setattr("penstock._doctor.examination._numbers_to_try", lambda *facts: [0, 1, 2, 4])
    verdict = diagnose(loader, all_numbers=True)
    assert list(verdict.timings.by_workers) == tried
    notes = [note for note in verdict.timings.notes if "not measured:" in note and "worker" in note]
    assert len(notes) == 4 - len(tried) and not any("No more numbers" in note for note in notes)


def test_the_reason_of_an_error():
    assert _reason(ValueError()) == "ValueError"
    assert _reason(RuntimeError("no room\nat all")) == "RuntimeError: no room"
    unfinished = 'Caught KeyError in DataLoader worker process 0.\n  File "a.py", line 1, in f\n    x'
    assert _reason(KeyError(unfinished)).startswith("KeyError: ")


class Stream(IterableDataset):
    """Samples one after the other, of which each takes `seconds`. Workers `share` them out, or each yields all."""

    def __init__(self, count=64, share=True, seconds=0.0):
        self.count, self.share, self.seconds = count, share, seconds

    def __iter__(self):
        info = get_worker_info()
        assert info is None or type(info.dataset) is type(self)
        first, step = (info.id, info.num_workers) if info is not None and self.share else (0, 1)
        for index in range(first, self.count, step):
            time.sleep(self.seconds)
            yield {"x": torch.full((4,), float(index)), "name": "sample"}


class Sized(Stream):
    def __len__(self):
        return self.count


class Batches(Stream):
    """It makes whole batches."""

    def __iter__(self):
        for sample in super().__iter__():
            yield sample["x"]


class Noise(Stream):
    def __iter__(self):
        for sample in super().__iter__():
            yield sample | {"x": torch.rand(4)}


class Slice(Stream):
    """Its worker_init_fn shares its samples out."""

    first = 0

    def __iter__(self):
        for index in range(self.first, self.count):
            yield torch.full((4,), index)


def take_a_slice(worker):
    info = get_worker_info()
    info.dataset.first = info.id * info.dataset.count // info.num_workers


class Once(Stream):
    def __init__(self):
        self.samples = iter(torch.zeros(4, 4))

    def __iter__(self):
        return self.samples


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_slow_stream(workers):
    verdict = diagnose(DataLoader(Stream(seconds=SLOW / 4), 4, num_workers=workers))
    assert verdict.limited_by == "fetch" and "fetch-dominates" in ids(verdict)
    assert verdict.timings.fetch >= SLOW > verdict.timings.collate
    assert verdict.timings.samples == 4 and verdict.timings.batches is None
    assert "__getitems__" not in str(verdict) and "more of a file at once" in str(verdict)
    assert any("begins anew in each run" in note for note in verdict.timings.notes)
    assert ("collate" in verdict.timings.without) == (workers > 0)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1, "persistent_workers": True, "prefetch_factor": 3},
        {"num_workers": 2, "multiprocessing_context": "forkserver", "batch_size": 4, "drop_last": True},
        {"num_workers": 1, "collate_fn": taking_collate, "batch_size": 100},
        {"dataset": Batches(), "num_workers": 2, "batch_size": None},
        {"dataset": Slice(), "num_workers": 2, "batch_size": 4, "worker_init_fn": take_a_slice},
        {"dataset": Stream(1), "num_workers": 2, "batch_size": 4},  # the other worker has none
    ],
    ids=lambda options: "-".join(map(str, options)),
)
def test_all_kinds_of_loaders_of_streams(options):
    loader = DataLoader(**({"dataset": Stream()} | options))
    attributes = dict(vars(loader))
    verdict = diagnose(loader)
    assert verdict.timings.whole > 0 and loader.num_workers in verdict.timings.by_workers
    assert verdict.timings.samples == (loader.batch_size or 4)
    assert verdict.timings.shared is True
    assert "same-samples" not in ids(verdict)
    idle = "1 worker was without samples, of 2: the dataset has too few parts for them, such as files."
    assert (idle in verdict.timings.notes) == (loader.dataset.count == 1)
    assert vars(loader) == attributes


def test_the_epoch_of_a_stream_that_tells_its_length():
    loader = DataLoader(Sized(10), 4)
    attributes = dict(vars(loader))
    assert diagnose(loader).timings.batches == 3
    assert vars(loader) == attributes, "it does not know that it was asked"


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_that_yield_the_same_samples_are_told(workers):
    verdict = diagnose(DataLoader(Stream(share=False), 4, num_workers=workers))
    assert verdict.timings.shared is False
    assert ("same-samples" in ids(verdict)) == (workers == 2)
    assert not any("asks which one" in note for note in verdict.timings.notes)


def test_random_samples_of_workers_may_be_the_same_and_may_not():
    verdict = diagnose(DataLoader(Noise(share=False), 4, num_workers=2))
    assert verdict.timings.shared is None and "same-samples" not in ids(verdict)
    assert any("No worker asks which one it is" in note for note in verdict.timings.notes)


def test_pipes_that_pytorch_shares_out_are_refused():
    from torch.utils.data import datapipes

    loader = DataLoader(datapipes.iter.IterableWrapper(range(8)), num_workers=2)
    with pytest.raises(penstock.InvalidArgument, match="does not measure an IterDataPipe"):
        penstock.diagnose(loader)


def test_a_stream_that_works_only_here_is_measured_without_workers(monkeypatch):
    class OnlyHereToo(Stream):
        def __iter__(self):
            if get_worker_info() is not None:
                raise Shared("the file is open in another process")
            yield from super().__iter__()

    monkeypatch.setattr("penstock._doctor.examination._core.processors", lambda: 1)
    verdict = diagnose(DataLoader(OnlyHereToo(), 4), all_numbers=True)
    assert list(verdict.timings.by_workers) == [0] and verdict.timings.shared is None
    assert any("Shared: the file is open" in note for note in verdict.timings.notes)


def test_whether_workers_share_samples():
    def share(*workers, may_be_told=False):
        shared, notes = share_samples({worker.number: worker for worker in workers}, may_be_told)
        return shared, [note.split(" ")[0] for note in notes]

    first, same, other = Worker(0, False, b"a"), Worker(1, False, b"a"), Worker(1, False, b"b")
    assert share(Worker(0, True, b"a"), other) == (True, [])
    assert share(Worker(0, True, b"a"), same) == (None, ["Workers"]), "it asks, perhaps for a seed"
    assert share(first, same) == share(first, same, may_be_told=True) == (False, [])
    assert share(first, other) == (None, ["No"]) and share(first, other, may_be_told=True) == (None, [])
    assert share(Worker(0, False, None), Worker(1, False, None)) == (None, ["No"]), "objects that are not looked into"
    assert share(first) == share() == (None, [])


class Seen:
    """Not a tensor, an array or a plain value."""


@pytest.mark.parametrize(
    ("sample", "is_read"),
    [
        (torch.arange(10.0)[::2], True),
        (torch.ones(1).expand(4), True),
        (torch.ones(2, dtype=torch.bfloat16), True),
        ({"x": [torch.tensor(1.5)], "name": "a"}, True),
        (np.arange(4000.0).reshape(40, 100), True),
        (torch.ones(2, 2).to_sparse(), False),
        (np.array([Seen()], dtype=object), False),
        (Seen(), False),
    ],
)
def test_what_workers_begin_with(sample, is_read):
    told = _digest([sample])
    assert (told is not None) == is_read and told == _digest([copy.deepcopy(sample)])
    if isinstance(sample, np.ndarray) and is_read:
        sample[20, 50] = -1
        assert _digest([sample]) != told, "also far from the ends"


class Lazy(Samples):
    """It opens its file when a sample is first asked for, so that workers of a process that has share its place."""

    def __init__(self, path):
        super().__init__()
        self.path, self.file = path, None

    def __getitem__(self, index):
        if self.file is None:
            self.file = self.path.open("rb", buffering=0)
        self.file.seek(index)
        time.sleep(0.001)
        if self.file.read(1)[0] != index:
            raise LookupError("another worker moved the file")
        return torch.tensor(index)


def test_no_worker_begins_with_what_the_dataset_did_in_this_process(tmp_path):
    (tmp_path / "data").write_bytes(bytes(range(64)))
    verdict = diagnose(DataLoader(Lazy(tmp_path / "data"), 4, num_workers=2))
    assert {0, 2} == set(verdict.timings.by_workers) and verdict.timings.again > 0


def test_a_loader_that_fails_again_keeps_its_verdict(monkeypatch):
    run = _Examination.run

    def failing(examination, what, clone):
        if what.endswith("again"):
            raise LookupError("gone")
        return run(examination, what, clone)

    monkeypatch.setattr(_Examination, "run", failing)
    verdict = diagnose(DataLoader(Samples(), 4))
    assert verdict.timings.again is None and "at the end, the loader failed: LookupError: gone" in str(verdict)


class Unsized(Stream):
    def __len__(self):
        raise NotImplementedError


def test_a_stream_that_cannot_tell_its_length():
    assert diagnose(DataLoader(Unsized(), 4)).timings.batches is None


def test_sparse_samples():
    samples = [torch.eye(3).to_sparse()] * 8
    assert diagnose(DataLoader(samples, batch_size=None)).timings.whole > 0


def test_the_epochs_of_a_stream_follow_each_other():
    assert [int(sample[0]) for sample in itertools.islice(Endless(Slice(3)), 7)] == [0, 1, 2, 0, 1, 2, 0]
    assert list(Endless(Slice(0))) == []
    assert len(list(Endless(Once()))) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_is_read_once_is_told(workers):
    with workers_are_ended(), pytest.raises(penstock.InvalidArgument, match=r"^The dataset gives no samples when"):
        penstock.diagnose(DataLoader(Once(), 4, num_workers=workers), seconds=BOX)


def test_the_samples_of_batches_that_the_dataset_makes():
    assert rows_of({"step": torch.tensor(1), "x": [torch.zeros(5, 2)]}) == 5
    assert rows_of("text") == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_of_a_stream_pass_through(workers):
    class Failing(Stream):
        def __iter__(self):
            yield from itertools.islice(super().__iter__(), 6)
            raise LookupError("the file is broken")

    with workers_are_ended(), pytest.raises(LookupError, match="the file is broken"):
        diagnose(DataLoader(Failing(), 4, num_workers=workers))


class Uncopied:
    def __iter__(self):
        raise AssertionError("it is not used")

    def __deepcopy__(self, memo):
        raise TypeError("no copy")


@pytest.mark.parametrize(
    ("loader", "options", "words"),
    [
        ([1, 2], {}, "not list"),
        (DataLoader(Stream(0)), {}, "no batches"),
        (DataLoader(Stream(0), num_workers=2), {}, "no batches"),
        (DataLoader(Samples(), batch_sampler=Uncopied()), {}, "cannot be copied"),
        (DataLoader(Samples(), batch_sampler=[]), {}, "no batches"),
        (DataLoader(Samples()), {"seconds": 0}, "seconds is a number above 0"),
        (DataLoader(Samples()), {"seconds": "2"}, "seconds is a number above 0, not '2'"),
        (DataLoader(Samples()), {"seconds": True}, "seconds is a number above 0"),
        (DataLoader(Samples()), {"seconds": float("inf")}, "seconds is a number above 0"),
        (DataLoader(Samples()), {"step_seconds": float("inf")}, "step_seconds is a number from 0 on"),
        (DataLoader(Samples()), {"step_seconds": "1"}, "step_seconds is a number from 0 on"),
        (diagnose, {}, "not function. Call it, and pass what it returns."),
        (None, {}, "not NoneType.$"),
        (DataLoader(Samples()), {"step_seconds": -1.0}, "step_seconds"),
    ],
)
def test_what_is_refused(loader, options, words):
    with pytest.raises(penstock.InvalidArgument, match=words):
        penstock.diagnose(loader, **options)


class Listed(Watch):
    def __init__(self):
        self.runs, self.timeouts, self.batches = [], [], 0

    def begins(self, what, number, most, timeout):
        self.runs.append((what, number, most))
        self.timeouts.append(timeout)

    def arrived(self):
        self.batches += 1


@pytest.mark.parametrize("workers", [0, 1])
def test_a_watch_sees_each_run_and_batch(workers):
    watch = Listed()
    with workers_are_ended():
        examine(DataLoader(Samples(12), 4, num_workers=workers), watch, seconds=0.01)
    names = [what for what, _, _ in watch.runs]
    assert names[:2] == ["the loader as it is", "fetch and collate"]
    left_out = ["transport", "the loader without collate", "the loader without fetch"]
    others = [name for name in names[2:] if name not in ("pinning", "the copy to the device")]  # where a GPU is
    assert others[-1 - workers :] == [names[0] + ", again", "0 workers"][: 1 + workers]
    others.remove(names[0] + ", again")
    assert names[2:] == [*left_out, *names[5:]] if workers else all("worker" in name for name in others)
    assert [number for _, number, _ in watch.runs] == list(range(1, len(names) + 1))
    [most] = {most for _, _, most in watch.runs}
    assert most >= len(names) and watch.batches >= 2 * len(names)
    untried = "[1-9].* workers?" + "|.* again" * workers
    given_up = [UNTRIED_TIMEOUT if re.fullmatch(untried, name) else 0 for name in names]
    assert watch.timeouts == given_up


def test_a_watch_sees_pinning_and_copies(monkeypatch):
    class Counted(Listed):
        def begins(self, what, *more):
            super().begins(what, *more)
            self.before = {**getattr(self, "before", {}), what: self.batches}

    monkeypatch.setattr("penstock._doctor.examination._gpu", lambda device, torch: torch.device("cpu"))
    monkeypatch.setattr("torch.cuda.synchronize", lambda device: None)
    monkeypatch.setattr("torch.Tensor.pin_memory", lambda tensor: tensor.clone())
    watch = Counted()
    examine(DataLoader(Samples(12), 12), watch, seconds=0.01)
    names = [what for what, _, _ in watch.runs]
    place = names.index("pinning")
    assert names[place + 1] == "the copy to the device"
    pinning, copying, after = (watch.before[name] for name in names[place : place + 3])
    assert pinning + 2 <= copying <= after - 2
    assert watch.runs[-1][1] == len(names) <= watch.runs[-1][2]


LARGE = torch.ones(8)


def storages(batch):
    return {tensor.data_ptr() for tensor in batch.values()}


def test_a_stage_is_left_out_after_it_was_done_once():
    loads = []

    class Counted(Samples):
        def __getitem__(self, index):
            loads.append(index)
            return {"x": torch.full((4,), float(index))}

    def run(left_out, collate_fn=default_collate):
        loads.clear()
        stage = Staged(Counted(), collate_fn, True, left_out)
        batches = [stage.collate(stage[indices]) for indices in ([0, 1], [2, 3], [4, 5])]
        for kept in (stage._samples, stage._made):
            assert kept is NOTHING or not may_share_memory(kept, batches), "the memory of what is sent may move"
        return batches

    first, second, third = run({"fetch"})
    assert loads == [0, 1] and torch.equal(second["x"], first["x"]) and not storages(second) & storages(third)
    first, second, third = run({"fetch"}, lambda samples: samples[0])
    assert loads == [0, 1] and torch.equal(second["x"], first["x"]) and not storages(second) & storages(third)
    first, second, third = run({"collate"})
    assert loads == [0, 1, 2, 3, 4, 5] and torch.equal(second["x"], first["x"])
    assert not storages(second) & storages(third) and third["x"].is_shared()
    told = run({"transport"})
    assert loads == [0, 1, 2, 3, 4, 5] and all(seconds >= 0 for times in told for seconds in times.times)


@pytest.mark.parametrize(
    ("one", "other", "may"),
    [
        ([torch.ones(2)], {"x": torch.ones(2), "name": "a", "array": np.ones(2), "none": None}, False),
        ([LARGE[:2]], (LARGE[4:], 1), True),
        ([LARGE], ({1, 2},), True),  # a set is not looked into
        ([torch.ones(2).to_sparse()], 1, True),
        ([{"x": [(LARGE,)]}], [LARGE.view(2, 4)], True),
    ],
)
def test_whatmay_share_memory(one, other, may):
    assert may_share_memory(one, other) == may


@pytest.mark.parametrize("promised", [True, False])
@pytest.mark.filterwarnings("error:This DataLoader will create")
def test_more_workers_than_processors_are_measured_only_if_they_are_promised_to_pay(monkeypatch, promised):
    monkeypatch.setattr("penstock._doctor.examination._core.processors", lambda: 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})
    monkeypatch.setattr(Timings, "promises", lambda timings, workers: promised and workers < 4)
    verdict = diagnose(DataLoader(Samples(), 4), all_numbers=True)
    assert set(verdict.timings.by_workers) - {0, 1} == ({2} if promised else set())
    assert verdict.timings.processors == 1


def test_how_busy_processes_are():
    verdict = diagnose(DataLoader(Samples(seconds=SLOW / 4), 4, num_workers=1))
    timings = verdict.timings
    assert timings.fetch >= SLOW > 2 * timings.busy > 0, "sleeping needs no processor"
    assert 0 < timings.receive < SLOW / 2
    assert timings.processors == _core.processors()
    verdict = diagnose(DataLoader(Spinning(), 1))
    assert verdict.timings.busy >= 0.02


def test_workers_that_do_not_fit_into_shared_memory_are_left_out(monkeypatch):
    monkeypatch.setattr("penstock._doctor.examination._core.processors", lambda: 4)
    monkeypatch.setattr("penstock._doctor.examination._free_shared_memory", lambda: 400)
    verdict = diagnose(DataLoader(Samples(), 4), all_numbers=True)
    assert set(verdict.timings.by_workers) == {0, 1}
    assert verdict.timings.left_out == [2, 4, 8, 16]


def test_workers_that_do_not_fit_into_shared_memory_are_not_tried(monkeypatch):
    monkeypatch.setattr("penstock._doctor.examination._free_shared_memory", lambda: 4 * 4 * 4)
    verdict = diagnose(DataLoader(Samples(), 4), all_numbers=True)
    assert list(verdict.timings.by_workers) == [0]
    assert "1 worker was not tried: the batches would not fit into /dev/shm." in verdict.timings.notes
