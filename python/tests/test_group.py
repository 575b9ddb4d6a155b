"""Several devices that receive together, and one that receives over the links of others."""

import logging
import os

import numpy as np
import pytest
import torch

import penstock
import safetensors_files as files
from penstock import _core
from penstock._destination import Destination
from penstock._engines import engine_for, group_for
from support import groups_of, same, send_to

LARGE = 3 << 20
# Each device opens once in a process, so the specs are those of this file.
GROUPS = groups_of(4, 5, 6)


@pytest.fixture(params=GROUPS)
def group(request):
    return GROUPS[request.param]


def large_nest(random):
    return {
        "large": torch.from_numpy(random.integers(0, 256, LARGE, np.uint8)),
        "parts": [random.random((300, 700)), (random.random(7), 3, "kept")],
        "none": torch.empty(0, 4),
        "many": [torch.full((100,), float(i)) for i in range(50)],
    }


def test_each_device_gets_the_whole_nest(group, random):
    for nest in large_nest(random), {"small": torch.arange(5), "rest": [1, np.arange(3)]}, [], 7, None:
        there = penstock.to_device(nest, group=group)
        assert len(there) == len(group)
        assert all(same(one, nest) for one in there)


def test_each_device_has_memory_of_its_own(group, random):
    nest = large_nest(random)
    there = penstock.to_device(nest, group=group)
    for spec, one in zip(group, there, strict=True):
        array = one["parts"][0]
        engine = engine_for(spec)
        assert send_to(engine, one["large"]).land() is one["large"], "it is there already"
        array[:] = 0
        assert not one["parts"][0].any()
    there[0]["large"].zero_()
    assert same(there[1]["large"], nest["large"])
    assert same(nest["large"], there[-1]["large"])


def test_sources_may_change_after_the_call(group, random):
    nest = large_nest(random)
    expected = {"large": nest["large"].clone(), "parts": nest["parts"][0].copy()}
    there = penstock.to_device({"large": nest["large"], "parts": nest["parts"][0]}, group=group)
    nest["large"].zero_()
    nest["parts"][0][:] = 0
    assert all(same(one, expected) for one in there)


def test_a_device_receives_over_the_links_of_others(group, random):
    for nest in large_nest(random), [np.arange(3)], {}:
        assert same(penstock.to_device(nest, group[0], relay=group[1:]), nest)
        assert same(penstock.to_device(nest, group[1], relay=[group[0]]), nest)
        assert same(penstock.to_device(nest, group[0], relay=[]), nest)
        assert same(penstock.to_device(nest, group[0], relay="auto"), nest)


def test_arrays_that_are_on_a_device_stay_there_and_go_to_the_others(group, random):
    nest = large_nest(random)
    first = penstock.to_device(nest, group[0])
    there = penstock.to_device(first, group=group)
    assert there[0]["large"] is first["large"]
    assert there[1]["large"] is not first["large"]
    assert all(same(one, nest) for one in there)


def write_model(random, tmp_path):
    """Two files, and their tensors' bytes by name."""
    parts = [files.mixed(random, ("F32", "BF16", "U8")), {"large": ("U8", (LARGE,), random.bytes(LARGE))}]
    paths = [files.write(tmp_path / f"{i}.safetensors", part) for i, part in enumerate(parts)]
    return paths, {name: data for part in parts for name, (_, _, data) in part.items()}


def bytes_of(tensors):
    return {name: tensor.reshape(-1).view(torch.uint8).numpy().tobytes() for name, tensor in tensors.items()}


def test_each_device_gets_all_weights(group, random, tmp_path):
    paths, model = write_model(random, tmp_path)
    there = penstock.load_safetensors(paths, group=group)
    assert [bytes_of(tensors) for tensors in there] == [model] * len(group)
    for spec, tensors in zip(group, there, strict=True):
        engine = engine_for(spec)
        assert send_to(engine, tensors["large"]).land() is tensors["large"], "it is there already"
    there[0]["large"].zero_()
    assert bytes_of(there[1]) == model
    some = penstock.load_safetensors(paths, names=["F32.17x3"], group=group)
    assert [bytes_of(tensors) for tensors in some] == [{"F32.17x3": model["F32.17x3"]}] * len(group)


def test_weights_come_over_the_links_of_others(group, random, tmp_path):
    paths, model = write_model(random, tmp_path)
    for relay in group[1:], "auto", []:
        assert bytes_of(penstock.load_safetensors(paths, group[0], relay=relay)) == model


def test_a_file_that_is_cut_meanwhile_is_an_error_of_all(group, random, tmp_path):
    paths, model = write_model(random, tmp_path)
    opened = _core.WeightLoad(Destination(group).native, list(map(str, paths)), None)
    os.truncate(paths[1], LARGE // 2)
    opened.start()
    with pytest.raises(penstock.Error, match=r"1\.safetensors"):
        opened.wait()
    files.write(paths[1], {"large": ("U8", (LARGE,), model["large"])})
    assert bytes_of(penstock.load_safetensors(paths, group[0], relay=group[1:])) == model


def test_the_group_says_what_each_device_carried(group):
    members = group_of(group)
    before = members.carried()
    penstock.to_device(torch.zeros(LARGE, dtype=torch.uint8), group=group)
    assert sum(members.carried()) - sum(before) == LARGE


def test_relays_carry_a_part_over_their_own_links(group, random, tmp_path):
    members = group_of(group)
    path = files.write(tmp_path / "large.safetensors", {"large": ("U8", (4 * LARGE,), bytes(4 * LARGE))})
    for relayed in (
        lambda: penstock.to_device(torch.zeros(4 * LARGE, dtype=torch.uint8), group[0], relay=group[1:]),
        lambda: penstock.load_safetensors(path, group[0], relay=group[1:]),
    ):
        before = members.carried()
        relayed()
        carried = [now - then for now, then in zip(members.carried(), before, strict=True)]
        assert sum(carried) == 4 * LARGE
        assert carried[0] < 4 * LARGE


def group_of(specs):
    return group_for([engine_for(spec) for spec in specs])


def test_devices_that_do_not_reach_each_other_pull_for_themselves(random, caplog):
    nest = large_nest(random)
    with caplog.at_level(logging.WARNING, "penstock"):
        there = penstock.to_device(nest, group=["host:7", "host:8,late=1"])
        assert all(same(one, nest) for one in there)
        assert same(penstock.to_device(nest, "host:7", relay=["host:8,late=1"]), nest)
        assert same(penstock.to_device(nest, "host:7", relay="auto"), nest)
    assert "host:7 and host:8,late=1 do not reach each other" in caplog.text


def test_what_has_no_meaning_is_refused():
    for wrong in "host:4", 4:
        with pytest.raises(penstock.InvalidArgument, match="group is a list of devices"):
            penstock.to_device([], group=wrong)
        with pytest.raises(penstock.InvalidArgument, match="relay is a list of devices"):
            penstock.to_device([], "host:4", relay=wrong)
    with pytest.raises(penstock.InvalidArgument, match="needs a device"):
        penstock.to_device([], group=[])
    with pytest.raises(penstock.InvalidArgument, match="twice"):
        penstock.to_device([], group=["host:4", "host:4"])
    with pytest.raises(penstock.InvalidArgument, match="twice"):
        penstock.to_device([], "host:4", relay=["host:4"])
    with pytest.raises(penstock.InvalidArgument, match="Leave out device"):
        penstock.to_device([], "host:4", group=["host:4"])
    with pytest.raises(penstock.InvalidArgument, match="Leave out device"):
        penstock.to_device([], group=["host:4"], relay=["host:5"])
    for wrong in {"device": "host:4"}, {"relay": ["host:5"]}:
        with pytest.raises(penstock.InvalidArgument, match="Leave out device"):
            penstock.load_safetensors("model", group=["host:4"], **wrong)
    with pytest.raises(penstock.InvalidArgument, match="relay is a list of devices"):
        penstock.load_safetensors("model", "host:4", relay="host:5")
    with pytest.raises(TypeError, match=r"batch\[0\]"):
        penstock.to_device([np.array(["a", None], dtype=object)], group=["host:4", "host:5"])
