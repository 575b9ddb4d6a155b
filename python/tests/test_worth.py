import numpy as np
import pytest
import torch

import penstock
from penstock._doctor.worth import Row


def row(size=1, cpu=10.0, kernel=1.0, h2d=4.0, d2h=1.0):
    return Row(
        size=size,
        cpu_seconds=cpu,
        kernel_seconds=kernel,
        h2d_pageable_seconds=4 * h2d,
        h2d_pinned_seconds=h2d,
        d2h_pageable_seconds=4 * d2h,
        d2h_pinned_seconds=d2h,
    )


@pytest.mark.parametrize(
    ("arguments", "pinned", "pageable"),
    [
        ({}, 1, 4),  # 10 > 4/n + 1 + 1 from n = 1; 10 > 16/n + 1 + 4 from n = 4
        ({"cpu": 6.0}, 2, 17),  # 6 > 4/n + 2 from n = 2 (equal is no win); 6 > 16/n + 5 from n = 17
        ({"cpu": 2.0}, None, None),
        ({"cpu": 1.5}, None, None),
        ({"h2d": 0.0}, 1, 1),
    ],
)
def test_from_how_many_uses_the_gpu_wins(arguments, pinned, pageable):
    measured = row(**arguments)
    assert measured.reuses() == pinned and measured.reuses(pinned=False) == pageable
    for is_pinned, uses in ((True, pinned), (False, pageable)):
        if uses is not None:
            assert measured.gpu_seconds(is_pinned, uses) < measured.cpu_seconds
            assert uses == 1 or measured.gpu_seconds(is_pinned, uses - 1) >= measured.cpu_seconds


def test_from_which_size_the_gpu_wins():
    answer = penstock.Worth([row(1, cpu=7), row(8, cpu=3), row(64, cpu=7), row(512, cpu=60)], "cuda:0")
    assert answer.winning_size() == 64, "it has to win from there on, not here and there"
    assert answer.winning_size(pinned=False) == 512
    assert "from batches of 64" in answer.sentence() and "10.0 times" in answer.sentence()
    assert "never" not in str(answer).splitlines()[1]
    losing = penstock.Worth([row(1, cpu=9), row(8, cpu=1)], "cuda:0")
    assert losing.winning_size() is None and "does not win" in losing.sentence()
    assert "2 uses" in penstock.Worth([row(cpu=6)], "cuda:0").sentence()


def test_on_the_cpu_alone_it_says_what_is_missing():
    calls = []

    def fn(x, options):
        calls.append((x.shape, options["y"].shape))
        return x @ options["y"]

    inputs = np.ones((4, 3)), {"y": torch.ones(3, 2).double()}
    answer = penstock.worth(fn, *inputs, device="host", repetitions=3, seconds=600)
    assert len(answer.rows) == 1 and answer.rows[0].size == 4
    assert answer.rows[0].cpu_seconds > 0 and answer.rows[0].kernel_seconds is None
    assert (answer.rows[0].input_bytes, answer.rows[0].output_bytes) == (4 * 3 * 8 + 6 * 8, 4 * 2 * 8)
    assert "Only the CPU was measured" in str(answer) and "<table>" in answer._repr_html_()
    assert len(calls) == 5 and set(calls) == {((4, 3), (3, 2))}


def test_sizes_cut_and_repeat_the_inputs():
    seen = []
    answer = penstock.worth(
        lambda x: seen.append(x.clone()) or x, torch.arange(3), sizes=[7, 2], device="host", repetitions=1
    )
    assert [r.size for r in answer.rows] == [2, 7]
    assert torch.equal(seen[0], torch.arange(2)) and torch.equal(seen[-1], torch.tensor([0, 1, 2, 0, 1, 2, 0]))


def test_plot():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    assert len(penstock.Worth([row(1), row(8)], "cuda:0").plot().lines) == 4


@pytest.mark.parametrize("arguments", [{"sizes": []}, {"sizes": [0]}, {"repetitions": 0}])
def test_what_makes_no_sense(arguments):
    with pytest.raises(penstock.InvalidArgument):
        penstock.worth(lambda x: x, torch.ones(1), **arguments)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that PyTorch can use")
def test_on_a_gpu():
    answer = penstock.worth(torch.nn.Linear(64, 64), torch.ones(8, 64), sizes=[1, 1024], repetitions=3)
    assert all(
        part > 0 for r in answer.rows for part in (r.kernel_seconds, r.h2d_pinned_seconds, r.d2h_pageable_seconds)
    )
    assert answer.sentence()
