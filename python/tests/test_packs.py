"""Samples of different lengths: packed, padded, resumed, shared out, and refused."""

import itertools
import json
import pickle

import numpy as np
import pytest
import torch

import penstock
from support import groups_of

RNG = np.random.default_rng(11)
LENGTHS = RNG.integers(1, 60, 400)
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])
TOKENS = np.arange(OFFSETS[-1], dtype=np.int32)
SAMPLES = [TOKENS[begin:end].tolist() for begin, end in itertools.pairwise(OFFSETS)]
PACK = {"input_ids": 256}


def pa():
    return pytest.importorskip("pyarrow")


def arrow():
    return pa().array(SAMPLES)


def sliced():
    whole = pa().array([[7, 7], *SAMPLES, [7]], type=pa().large_list(pa().int32()))
    return pa().chunked_array([whole[1:100], whole[100:100], whole[100:-1]])


def hugging_face():
    datasets = pytest.importorskip("datasets")
    order = RNG.permutation(len(SAMPLES))
    rows = [None] * len(SAMPLES)
    for place, sample in zip(order, SAMPLES, strict=True):
        rows[place] = sample
    return datasets.Dataset.from_dict({"input_ids": rows}).select(order)


def polars_frame():
    return pytest.importorskip("polars").DataFrame({"input_ids": SAMPLES})


DATA = {
    "values and offsets": lambda: {"input_ids": (TOKENS, OFFSETS)},
    "tensors": lambda: {"input_ids": (torch.from_numpy(TOKENS), torch.from_numpy(OFFSETS))},
    "nested tensor": lambda: {
        "input_ids": torch.nested.nested_tensor_from_jagged(torch.from_numpy(TOKENS), torch.from_numpy(OFFSETS))
    },
    "arrow": lambda: {"input_ids": arrow()},
    "slices and chunks": lambda: {"input_ids": sliced()},
    "hugging face": hugging_face,
    "a column": lambda: {"input_ids": hugging_face()["input_ids"]},
    "polars": polars_frame,
}


def samples_of(batch):
    """The samples of a pack, one after the other."""
    batch = penstock.to_host(batch)
    ends = torch.as_tensor(batch["cu_seqlens"])
    assert ends.dtype == torch.int32 and ends[0] == 0 and ends[-1] == len(batch["input_ids"])
    return [torch.as_tensor(part).tolist() for part in np.split(np.asarray(batch["input_ids"]), ends[1:-1])]


@pytest.mark.parametrize("data", DATA)
def test_each_sample_comes_once_in_each_epoch(device, data):
    loader = penstock.Loader(DATA[data](), pack=PACK, shuffle=True, device=device)
    orders = []
    for _ in range(2):
        packs = []
        for batch in loader:
            packs.append(samples_of(batch))
            assert len(batch["input_ids"]) <= 256
            assert type(batch["max_seqlen"]) is int and batch["max_seqlen"] == max(map(len, packs[-1]))
            expected = np.concatenate([np.arange(len(sample)) for sample in packs[-1]])
            assert torch.as_tensor(batch.positions()).tolist() == expected.tolist()
            assert torch.as_tensor(batch.positions()).dtype == torch.int64
            del batch
        orders.append(list(itertools.chain(*packs)))
        assert sorted(orders[-1]) == SAMPLES
        assert len(packs) <= len(TOKENS) / 256 * 1.05
    assert orders[0] != orders[1]


def test_fields_are_packed_together_and_widened(device):
    data = {"input_ids": (TOKENS.astype(np.uint16), OFFSETS), "labels": (np.stack([TOKENS, -TOKENS], 1), OFFSETS)}
    for batch in penstock.Loader(data, pack=PACK, to={"input_ids": "int64"}, device=device):
        ids, labels = torch.as_tensor(batch["input_ids"]), torch.as_tensor(batch["labels"])
        assert ids.dtype == torch.int64 and torch.as_tensor(batch["cu_seqlens"]).dtype == torch.int32
        assert torch.equal(labels.cpu(), torch.stack([ids, -ids], 1).to(torch.int32).cpu())
        del batch, ids, labels
    batch = next(iter(penstock.Loader({"input_ids": (TOKENS, OFFSETS)}, pack=PACK, to="int64", device=device)))
    assert torch.as_tensor(batch["input_ids"]).dtype == torch.int64
    assert torch.as_tensor(batch["cu_seqlens"]).dtype == torch.int32


def test_only_values_cross_the_link(device):
    loader = penstock.Loader({"input_ids": (TOKENS[:300], [0, 10, 300])}, pack={"input_ids": 65_536}, device=device)
    wide = penstock.Loader({"input_ids": (TOKENS, [0, 10, 290, 300])}, 2, pad="longest", device=device)
    assert [len(batch["input_ids"]) for batch in loader] == [300]
    assert loader.stats().link_bytes == 4 * 300 + 4 * 3
    # The first matrix is as wide as any, and the second one is small.
    assert [tuple(batch["input_ids"].shape) for batch in wide] == [(2, 280), (1, 10)]
    assert wide.stats().link_bytes == 4 * (2 * 280 + 2) + 4 * (10 + 1)


def test_matrices_are_padded_to_their_longest_sample(device):
    loader = penstock.Loader({"input_ids": arrow()}, 32, pad="longest", shuffle=True, seed=5, device=device)
    got = []
    for batch in loader:
        lengths = torch.as_tensor(batch["lengths"]).cpu()
        matrix = torch.as_tensor(batch["input_ids"]).cpu()
        assert matrix.shape == (len(lengths), lengths.max())
        for row, length in zip(matrix, lengths, strict=True):
            got.append(row[:length].tolist())
            assert not row[length:].any()
        del batch
    assert sorted(got) == SAMPLES and got != SAMPLES
    assert len(loader) == 13
    assert len(list(penstock.Loader({"input_ids": arrow()}, 32, pad="longest", drop_last=True, device=device))) == 12


def loader_of(device="host", **options):
    """In packs of which some stay half empty, so that their number differs from epoch to epoch."""
    data = {"input_ids": (TOKENS, OFFSETS)}
    return penstock.Loader(data, pack={"input_ids": 80}, shuffle=True, seed=2, device=device, **options)


def test_an_epoch_goes_on_where_it_was_left():
    whole = loader_of()
    epochs = [[samples_of(batch) for batch in whole] for _ in range(3)]
    assert len({len(epoch) for epoch in epochs}) > 1, "the test wants epochs of different lengths"
    taken = loader_of()
    iter_of_0 = list(taken)
    assert len(taken) == len(epochs[1]) and len(iter_of_0) == len(epochs[0])
    del iter_of_0
    running = iter(taken)
    for done in range(len(epochs[1])):
        assert samples_of(next(running)) == epochs[1][done]
        if done % 40 != 3:
            continue
        state = json.loads(json.dumps(taken.state_dict()))
        other = loader_of()
        other.load_state_dict(state)
        assert [samples_of(batch) for batch in other] == epochs[1][done + 1 :]
        assert [samples_of(batch) for batch in other] == epochs[2]
        copy = pickle.loads(pickle.dumps(taken))
        assert samples_of(next(iter(copy))) == epochs[1][done + 1]


def test_processes_share_an_epoch_out():
    alone = [samples_of(batch) for batch in loader_of()]
    ranks = [[samples_of(batch) for batch in loader_of(rank=rank, world_size=3)] for rank in range(3)]
    assert len({len(packs) for packs in ranks}) == 1
    for rank, packs in enumerate(ranks):
        assert packs == [alone[(rank + 3 * i) % len(alone)] for i in range(len(packs))]
    # Two go on where three stopped.
    states = set()
    for rank in range(3):
        loader = loader_of(rank=rank, world_size=3)
        batches = iter(loader)
        for _ in range(2):
            next(batches)
        states.add(json.dumps(loader.state_dict()))
    (state,) = states
    rest = []
    for rank in range(2):
        loader = loader_of(rank=rank, world_size=2)
        loader.load_state_dict(json.loads(state))
        rest.append([samples_of(batch) for batch in loader])
    both = [pack for pair in zip(*rest, strict=True) for pack in pair]
    assert both[: len(alone) - 6] == alone[6:]


def test_a_state_of_other_packs_is_refused():
    states = {
        "other packs": penstock.Loader({"input_ids": (TOKENS, OFFSETS)}, pack={"input_ids": 512}, shuffle=True, seed=2),
        "no packs": penstock.Loader(np.zeros(len(SAMPLES)), shuffle=True, seed=2, device="host"),
    }
    for other in states.values():
        with pytest.raises(penstock.InvalidArgument, match=r"The state is of .*give both the same data, `pack`"):
            loader_of().load_state_dict(other.state_dict())
        with pytest.raises(penstock.InvalidArgument, match=r"The state is of .*give both the same data, `pack`"):
            other.load_state_dict(loader_of().state_dict())


@pytest.mark.parametrize("group", groups_of(0, 1).values(), ids=groups_of(0, 1))
def test_a_group_gets_the_same_packs(group):
    alone = [samples_of(batch) for batch in loader_of()]
    for batches, expected in zip(loader_of(group), alone, strict=True):
        assert [samples_of(batch) for batch in batches] == [expected] * len(group)
        assert len({batch["max_seqlen"] for batch in batches}) == 1


def test_it_says_how_full_packs_are():
    loader = loader_of()
    packs = len(loader)
    assert loader.describe()[-1].startswith(f"{packs} packs of up to 80 values")
    assert loader.describe()[-1].endswith(f"epoch 0, {100 * len(TOKENS) / packs / 80:.1f} % full")
    list(loader)
    assert "in epoch 1" in loader.describe()[-1]
    assert len(loader.dataset) == len(SAMPLES) and loader.dataset[3]["input_ids"].tolist() == SAMPLES[3]


def of_lists(values, **options):
    return {"input_ids": pa().array(values, **options)}


def bad_arrow_offsets():
    return {"input_ids": pa().ListArray.from_arrays(np.int32([0, 3, 2, 4]), np.arange(4))}


REFUSED = {
    "descending offsets": (lambda: {"input_ids": (TOKENS, [0, 5, 3, 9])}, "Sample 1 of field 'input_ids' goes from"),
    "negative offsets": (lambda: {"input_ids": (TOKENS, [-1, 5])}, "Sample 0 of field 'input_ids' goes from"),
    "offsets past the end": (
        lambda: {"input_ids": (TOKENS[:4], [0, 2, 5])},
        "Sample 1 .* and offsets ascend from 0 to 4",
    ),
    "offsets of Arrow": (bad_arrow_offsets, "Sample 1 of field 'input_ids' goes from value 3 to 2"),
    "a null": (lambda: of_lists([[1], None]), "Sample 1 of field 'input_ids' is null"),
    "a null within": (lambda: of_lists([[1], [], [2, None]]), "Sample 2 of field 'input_ids' holds a null"),
    "a long list": (lambda: of_lists([[1], [2] * 257]), "Sample 1 of field 'input_ids' has 257 values"),
    "no lists": (lambda: of_lists([1, 2]), "holds int64, and `pack` and `pad` are for lists"),
    "texts": (lambda: of_lists([["a"]]), "Column 'input_ids' holds string"),
    "nothing": (lambda: of_lists([[], []], type=pa().list_(pa().int64())), "have no values"),
    "an array": (lambda: {"input_ids": TOKENS}, "neither a column of lists nor a pair"),
    "float offsets": (lambda: {"input_ids": (TOKENS, [0.0, 1.0])}, "offsets of field 'input_ids' are whole"),
    "objects": (lambda: {"input_ids": (np.array([None]), [0, 1])}, "values of field 'input_ids' are object"),
    "a list": (lambda: SAMPLES, "for a table of lists"),
    "other lengths": (lambda: {"input_ids": arrow(), "y": arrow()[1:]}, "'input_ids' has 400 samples, and 'y' has 399"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused(what):
    data, message = REFUSED[what]
    with pytest.raises(penstock.InvalidArgument, match=message):
        penstock.Loader(data(), pack=PACK, device="host")


def test_damaged_offsets_of_arrow_are_refused_or_harmless(random):
    refused = 0
    for _ in range(200):
        offsets = OFFSETS.astype(np.int32)
        offsets[random.integers(1, len(LENGTHS), 2)] += random.integers(-50, 50, 2, np.int32)
        data = {"x": pa().ListArray.from_arrays(offsets, TOKENS)}
        try:
            [batch] = penstock.Loader(data, pack={"x": len(TOKENS)}, device="host")
        except penstock.InvalidArgument as error:
            assert "of field 'x' goes from value" in str(error)
            refused += 1
        else:
            assert np.array_equal(batch["x"], TOKENS) and np.array_equal(batch["cu_seqlens"], np.unique(offsets))
    assert 20 < refused < 200


@pytest.mark.parametrize(
    "options, message",
    [
        ({"pack": 256}, "`pack` names a field"),
        ({"pack": {"labels": 256}}, "pack={'input_ids': 65_536}"),
        ({"pack": {"input_ids": 0}}, "pack is a number of values"),
        ({"pack": PACK, "batch_size": 2}, "A batch of packed samples is one pack"),
        ({"pack": PACK, "sampler": range(3)}, "leave the sampler out"),
        ({"pad": "max"}, '`pad` is "longest"'),
        ({"pad": "longest", "pack": PACK}, "`pack` is then left out"),
        ({"pack": PACK, "to": {"cu_seqlens": "int64"}}, "unknown fields: cu_seqlens"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(penstock.InvalidArgument, match=message):
        penstock.Loader({"input_ids": (TOKENS, OFFSETS)}, device="host", **options)


def test_a_feed_with_a_collator_names_the_loader_that_packs_or_pads():
    datasets, transformers = pytest.importorskip("datasets"), pytest.importorskip("transformers")
    rows = datasets.Dataset.from_dict({"input_ids": SAMPLES, "labels": SAMPLES})

    def last_line(collator, data=rows):
        return penstock.feed(torch.utils.data.DataLoader(data, 8, collate_fn=collator), "host").describe()[-1]

    flat, padding = transformers.DataCollatorWithFlattening(), transformers.DataCollatorWithPadding(None)
    for collator, call in (
        (flat, 'penstock.Loader(dataset, pack={"input_ids": N}) gives packs'),
        (padding, 'penstock.Loader(dataset, 8, pad="longest") gives such matrices'),
    ):
        assert call in last_line(collator)
        others = [rows.add_column("score", [0.5] * len(SAMPLES)), rows.rename_column("input_ids", "ids"), SAMPLES]
        assert all("penstock.Loader" not in last_line(collator, other) for other in others)
    assert "penstock.Loader" not in last_line(type("DataCollatorWithPadding", (), {"__call__": None})())
