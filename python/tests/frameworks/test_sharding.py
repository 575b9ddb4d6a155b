"""If several processes train together and nothing shares out the samples, one warning says what to write."""

import json

import pytest
from launch import HERE, launch


@pytest.fixture(scope="module")
def warnings(tmp_path_factory):
    directory = tmp_path_factory.mktemp("sharding")
    launch(2, [HERE / "sharding.py", directory], directory)
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(2)]


UNSHARDED = {
    "DataLoader": "sampler=DistributedSampler(dataset)",
    "a list": "sharded=True",
    "accelerate, prepared after the feed": "penstock.feed(accelerator.prepare(loader))",
    "webdataset, no splitter": "",
    "webdataset, WebLoader, no splitter": "",
    "datasets, streamed": "",
}


def test_each_process_warns_once(warnings):
    for results in warnings:
        for title, advice in UNSHARDED.items():
            if title in results:
                [text] = results[title]
                assert "all samples to each of the 2 processes" in text and advice in text, title


def test_what_is_sharded_is_silent(warnings):
    for results in warnings:
        assert {title for title, texts in results.items() if texts} <= set(UNSHARDED)
        assert len(results) > len(UNSHARDED)
