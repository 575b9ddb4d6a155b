import types

import pytest

from penstock import _plots

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


def batch(asked, arrived, gather=(0.0, 0.0), link_bytes=1, loader=(0.0, 0.0)):
    return types.SimpleNamespace(
        asked=asked,
        arrived=arrived,
        loader_begin=loader[0],
        loader_end=loader[1],
        gather_begin=gather[0],
        gather_end=gather[1],
        transfer_begin=asked + 1,
        transfer_end=arrived,
        link_bytes=link_bytes,
    )


def test_a_loaders_step_lies_between_arrival_and_request():
    rows = dict(_plots.rows([batch(0, 3, (0, 1)), batch(5, 7, link_bytes=0), batch(7, 9)]))
    assert list(rows) == ["loader", "host gather", "transfer", "device gather", "waiting for data", "your step"]
    assert rows["host gather"][0] == (0, 1)
    assert rows["transfer"] == [(1, 3), (8, 9)]
    assert rows["device gather"] == [(6, 7)]
    assert rows["waiting for data"] == [(0, 3), (5, 7), (7, 9)]
    assert rows["your step"] == [(3, 5), (7, 7)]


def test_a_wrapped_loader_has_lanes_of_its_own():
    rows = dict(_plots.rows([batch(0, 3, (1, 2), loader=(0, 1)), batch(5, 7, (0, 0))]))
    assert rows["loader"] == [(0, 1), (0, 0)] and rows["send"] == [(1, 2), (0, 0)]
    assert "host gather" not in rows
    assert all(spans == [] for spans in dict(_plots.rows([])).values())


def texts_inside(axes):
    """The texts of axes. All of them must lie inside the figure."""
    axes.figure.canvas.draw()
    drawn, whole = axes.get_tightbbox(), axes.figure.bbox
    assert drawn.x0 >= -1 and drawn.y0 >= -1 and drawn.x1 <= whole.x1 + 1 and drawn.y1 <= whole.y1 + 1
    return {text.get_text() for text in axes.findobj(matplotlib.text.Text)}


def test_lanes_have_their_labels_inside_the_figure():
    rows = _plots.rows([batch(0, 3, (0, 1)), batch(5, 7), batch(7.5, 9)])
    axes = _plots.draw_rows(rows, title="The last 3 batches")
    texts = texts_inside(axes)
    assert {"The last 3 batches", "time in ms", "host gather", "waiting for data", "your step"} <= texts
    assert "device gather" not in texts, "there was none"
    top, bottom = axes.get_ylim()[::-1]
    assert top < bottom, "the first lane is on top"
    assert len(axes.collections) == 4
    assert _plots.draw_rows([], axes=axes) is axes


def test_long_timelines_are_in_seconds():
    assert _plots.draw_rows([("loader", [(3.0, 14.0)])]).get_xlabel() == "time in s"
