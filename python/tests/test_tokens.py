"""Files of tokens: windows, shards, Megatron's indices, and what does not fit."""

import os
import pickle
import struct

import numpy as np
import pytest
import torch

import penstock

TOKENS = np.random.default_rng(3).integers(0, 2**16, 1000, np.uint16)
LENGTHS = [3, 0, 400, 97, 500]


@pytest.fixture
def corpus(tmp_path):
    """A file of Megatron's, and its index."""
    TOKENS.tofile(tmp_path / "corpus.bin")
    places = 2 * np.concatenate([[0], np.cumsum(LENGTHS)[:-1]])
    parts = [
        struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, 8, len(LENGTHS), len(LENGTHS) + 1),
        np.int32(LENGTHS).tobytes(),
        np.int64(places).tobytes(),
        np.arange(len(LENGTHS) + 1, dtype=np.int64).tobytes(),
    ]
    (tmp_path / "corpus.idx").write_bytes(b"".join(parts))
    return tmp_path / "corpus.bin"


def windows_of(data, device="host", **options):
    got = []
    for x, y in penstock.Loader(data, 4, device=device, **options):
        x, y = torch.as_tensor(x), torch.as_tensor(y)
        assert torch.equal(x[:, 1:], y[:, :-1]) and x.data_ptr() + x.itemsize == y.data_ptr()
        got += torch.cat([x, y[:, -1:]], 1).tolist()
        del x, y
    return got


def expected(values, length, stride):
    return [values[begin : begin + length + 1].tolist() for begin in range(0, len(values) - length, stride)]


@pytest.mark.parametrize("stride", [None, 1, 50])
def test_windows_of_a_file(device, corpus, stride):
    data = penstock.tokens(corpus, "uint16", length=16, stride=stride)
    assert windows_of(data, device, to="int64") == expected(TOKENS, 16, stride or 16)
    assert sorted(windows_of(data, device, shuffle=True)) == sorted(expected(TOKENS, 16, stride or 16))
    assert windows_of(penstock.tokens(str(corpus), length=16, stride=stride), to="int64") == expected(
        TOKENS, 16, stride or 16
    )


def test_shards_are_one_set(device, tmp_path):
    for i, cut in enumerate(np.split(TOKENS, [17, 300])):
        cut.tofile(tmp_path / f"{i}.bin")
    each = [expected(cut, 16, 5) for cut in np.split(TOKENS, [17, 300])]
    data = penstock.tokens(tmp_path / "*.bin", np.uint16, length=16, stride=5)
    assert windows_of(data, device) == each[0] + each[1] + each[2]
    assert windows_of(penstock.tokens([tmp_path / "2.bin", tmp_path / "0.bin"], "uint16", length=16, stride=5)) == (
        each[2] + each[0]
    )
    whole = penstock.Loader(data, 4, shuffle=True, device="host")
    batches = iter(whole)
    next(batches)
    x, y = next(iter(pickle.loads(pickle.dumps(whole))))
    assert torch.equal(torch.as_tensor(x), torch.as_tensor(next(batches)[0])) and len(x[0]) == len(y[0]) == 16


@pytest.fixture
def parts(tmp_path):
    """Two files whose tokens say where they are: 24 windows of 16 tokens side by side in two shards, and 12."""
    for name, begin, end in (("a0", 0, 200), ("a1", 200, 400), ("b", 1000, 1200)):
        np.arange(begin, end, dtype=np.uint16).tofile(tmp_path / f"{name}.bin")
    return str(tmp_path / "a*.bin"), str(tmp_path / "b.bin")


def begins_of(data, device="host", epoch=0, **options):
    """Where the windows of an epoch begin."""
    loader = penstock.Loader(data, 4, device=device, **options)
    loader.set_epoch(epoch)
    return [begin for x, _ in loader for begin in torch.as_tensor(x)[:, 0].tolist()]


def test_windows_at_random_positions_follow_from_seed_and_epoch(device, parts):
    data = penstock.tokens(list(parts), "uint16", length=16, at="random")
    windows = windows_of(data, device, to="int64")
    assert all(window == list(range(window[0], window[0] + 17)) for window in windows)
    begins = [window[0] for window in windows]
    assert len(set(begins)) == len(begins) == 36 and {begin // 1000 for begin in begins} == {0, 1}
    assert not {begin % 200 for begin in begins} & set(range(184, 200)) and any(begin % 200 % 16 for begin in begins)
    assert begins == begins_of(data) == begins_of(data, shuffle=True)
    others = begins_of(data, epoch=1), begins_of(data, seed=1)
    assert all(len(set(other) & set(begins)) < 20 and len(other) == 36 for other in others)
    ranks = [begins_of(data, rank=rank, world_size=3) for rank in range(3)]
    assert [begin for turn in zip(*ranks, strict=True) for begin in turn] == begins


def test_a_mixture_has_its_weights_in_each_epoch(device, parts, tmp_path):
    a, b = parts
    data = penstock.tokens({a: 1, b: 3.0}, "uint16", length=16)
    for epoch in range(3):
        begins = begins_of(data, device, epoch)
        assert [sum(begin // 1000 == part for begin in begins) for part in (0, 1)] == [9, 27]
        assert all(0 < sum(begin >= 1000 for begin in some) < 12 for some in (begins[:12], begins[24:]))
        assert len(set(begins)) == 36
    assert sum(begin >= 1000 for begin in begins_of(penstock.tokens({b: 2, a: 1.3}, "uint16", length=16))) == 22
    said = penstock.Loader(data, 4, device="host").describe()[-1]
    assert said.startswith("36 windows an epoch") and said.endswith(f"27 of {b} (2.25 of it)")
    np.arange(5000, 5020, dtype=np.uint16).tofile(tmp_path / "small.bin")
    begins = begins_of(penstock.tokens({a: 1, tmp_path / "small.bin": 1}, "uint16", length=16))
    assert sorted(begins)[-12:] == sorted(3 * [5000, 5001, 5002, 5003]) and len(begins) == 25


def test_a_state_in_mid_epoch_is_exact(parts):
    data = penstock.tokens(dict.fromkeys(parts, 1), "uint16", length=16)
    whole = begins_of(data, epoch=2, seed=5)
    loader = penstock.Loader(data, 4, device="host", seed=5)
    loader.set_epoch(2)
    for _, _ in zip(range(3), loader, strict=False):
        state = loader.state_dict()
    ranks = [penstock.Loader(data, 5, device="host", seed=5, rank=rank, world_size=2) for rank in range(2)]
    for rank, there in enumerate(ranks):
        there.load_state_dict(state)
        rest = [begin for x, _ in there for begin in torch.as_tensor(x)[:, 0].tolist()]
        assert rest == whole[12:][rank::2]
    for other in (penstock.tokens(dict(zip(parts, (1, 2), strict=True)), "uint16", length=16), {"x": np.zeros(36)}):
        with pytest.raises(penstock.InvalidArgument, match=r"'tokens': \[18, 18\]"):
            penstock.Loader(other, device="host", seed=5).load_state_dict(state)
    with pytest.raises(penstock.InvalidArgument, match="seed"):
        penstock.Loader(data, device="host").load_state_dict(state)


def test_documents_of_megatron_are_packed(corpus):
    for path in (corpus, corpus.with_suffix(".idx")):
        packs = list(penstock.Loader({"text": path}, pack={"text": 1000}, device="host"))
        assert [torch.as_tensor(pack["cu_seqlens"]).tolist() for pack in packs] == [[0, 3, 403, 500, 1000]]
        assert np.array_equal(np.asarray(packs[0]["text"]), TOKENS)


def test_what_does_not_fit_is_refused(corpus, tmp_path):
    (tmp_path / "odd.bin").write_bytes(b"abc")
    (tmp_path / "empty.bin").write_bytes(b"")
    np.zeros(9, np.int32).tofile(tmp_path / "wide.bin")
    for files, options, message in [
        (tmp_path / "odd.bin", {"dtype": "uint16"}, "odd.bin has 3 bytes"),
        (tmp_path / "empty.bin", {"dtype": "uint16"}, "empty.bin has 0 bytes"),
        (tmp_path / "wide.bin", {}, "wide.idx does not exist: pass the type"),
        (tmp_path / "wide.bin", {"dtype": "int32", "length": 9}, "wide.bin has 9 tokens, and a window takes 10"),
        ([corpus, tmp_path / "wide.bin"], {"dtype": "float32", "length": 0}, "length is a number of tokens"),
        ([], {}, "`files` is a path"),
        ({}, {}, "`files` is a path"),
        ({"a.bin": 1, "b.bin": 0}, {}, r"numbers above 0, not \[1, 0\]"),
        ({"a.bin": 1e308, "b.bin": 1e308}, {}, "finite numbers above 0"),
        (corpus, {"at": "start"}, '`at` is "random"'),
        (corpus, {"at": "random", "stride": 4}, "`stride` is then left out"),
    ]:
        with pytest.raises(penstock.InvalidArgument, match=message):
            penstock.Loader(penstock.tokens(files, **{"length": 4, **options}), device="host")
    with pytest.raises(penstock.InvalidArgument, match="leave the sampler out"):
        penstock.Loader(penstock.tokens(corpus, length=4, at="random"), device="host", sampler=[0])
    with pytest.raises(penstock.InvalidArgument, match="differ from epoch to epoch: give the tokens to a Loader"):
        penstock.SharedDataset(lambda: penstock.tokens(corpus, length=4, at="random"))
    assert len(penstock.Loader(penstock.tokens(corpus, length=4, stride=2**61 + 1), 1, device="host")) == 1
    with pytest.raises(FileNotFoundError):
        penstock.Loader(penstock.tokens(tmp_path / "none.bin", "uint16", length=4), device="host")


def test_a_file_that_is_cut_meanwhile_is_an_error_and_no_signal(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock._loader.tokens.LARGE", 0)
    for options in ({}, {"stride": 1}, {"at": "random"}):
        np.tile(TOKENS, 100).tofile(tmp_path / "long.bin")
        batches = iter(penstock.Loader(penstock.tokens(tmp_path / "long.bin", "uint16", length=64, **options), 4))
        next(batches)
        os.truncate(tmp_path / "long.bin", 20_000)
        with pytest.raises(penstock.Error, match=r"long.bin was cut short .* sample \d+ of field 'tokens'"):
            list(batches)


def test_a_damaged_index_is_an_error_or_harmless(corpus, random):
    index = corpus.with_suffix(".idx")
    whole = index.read_bytes()
    refused = 0
    for i in range(400):
        data = bytearray(whole[: random.integers(len(whole) + 1)] if i % 4 == 0 else whole)
        for place in random.integers(0, max(len(data), 1), random.integers(1, 4)):
            data[place : place + 1] = bytes([random.integers(256)])
        index.write_bytes(data)
        try:
            for batch in penstock.Loader({"text": index}, pack={"text": 4096}, device="host"):
                assert np.isin(np.asarray(batch["text"]), TOKENS.view(np.asarray(batch["text"]).dtype)).all()
        except penstock.InvalidArgument as error:
            assert "corpus" in str(error) or "'text'" in str(error)
            refused += 1
    assert refused > 100
