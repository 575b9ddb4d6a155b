"""diagnose: the rules on made-up times, and loaders in which one stage is slow by far. Times are not compared."""

import contextlib
import copy
import functools
import itertools
import json
import multiprocessing
import multiprocessing.util
import os
import pty
import random
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate, get_worker_info

import penstock
from penstock import _core, _doctor_command, _verdict
from penstock._doctor import UNTRIED_TIMEOUT, Watch, _Examination, _numbers_to_try, _Order, _reason, _Run, examine
from penstock._doctor_progress import Progress
from penstock._doctor_stages import NOTHING, Staged, may_share_memory
from penstock._doctor_streams import Endless, Worker, _digest, rows_of, share_samples
from penstock._verdict import Timings
from support import times

BOX = 0.05
SLOW = 0.2  # what a planted stage takes for a batch, far more than all others take on a busy machine


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """PyTorch has one thread: several are measured in one more run or two."""
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)


def waiting(**changed):
    """Two processors and two workers, which wait for most of their time. /dev/shm has no room for more."""
    planted = {"busy": 0.003, "receive": 0.001, "processors": 2, "by_workers": {0: 0.024, 1: 0.024, 2: 0.012}}
    return times(**(planted | {"left_out": [4, 8]} | changed))


def serial(**changed):
    return times(**({"workers": 0, "whole": 0.024, "transport": None, "without": {}} | changed))


def alone(whole):
    return {"whole": whole, "fetch": whole * 0.75, "collate": whole * 0.25, "busy": whole}


def threaded(**changed):
    """No workers, and four threads of PyTorch in this process. One takes a quarter of their time."""
    return serial(
        **({"threads": 4, "one_thread": alone(0.006), "by_workers": {0: 0.024, 1: 0.006, 2: 0.004}} | changed)
    )


@pytest.mark.parametrize(
    ("measured", "stage"),
    [
        (times(), "fetch"),
        (times(without={"fetch": 0.011, "collate": 0.003, "transport": 0.011}), "collate"),
        (times(without={"fetch": 0.011, "collate": 0.011, "transport": 0.003}), "transport"),
        (times(pins=True, pin=0.012, without={"fetch": 0.011, "transport": 0.011, "pin": 0.003}), "pin"),
        (times(step=0.011), "fetch"),
        (times(step=0.013), "consumer"),
        (times(step=0.006, copy=0.007), "copy"),
        (times(step=0.007, copy=0.006), "consumer"),
        (times(step=0.010, receive=0.003), "consumer"),  # together they take longer than the loader
        (times(step=0.006, receive=0.007), "transport"),
        (times(step=0.010, receive=0.003, pins=True), "fetch"),  # a thread receives and pins
        (times(step=0.010, receive=0.001), "fetch"),
        (times(receive=0.013), "fetch"),  # there is no step that waits
        (serial(), "fetch"),
        (serial(fetch=0.004, collate=0.020), "collate"),
        (serial(pin=0.030), "fetch"),  # the loader does not pin
        (serial(pin=0.030, pins=True), "pin"),
        (serial(step=0.019), "fetch"),
        (serial(step=0.021), "consumer"),
        (serial(copy=0.021), "copy"),
    ],
)
def test_what_limits(measured, stage):
    assert penstock.LoaderVerdict(measured).limited_by == stage


def test_ceilings_are_the_turn_without_a_stage():
    left = _verdict.ceilings(times(step=0.005, copy=0.001))
    in_loader = {"fetch": 0.006, "collate": 0.010, "transport": 0.0115, "pin": None}
    assert left == in_loader | {"copy": 0.012, "consumer": 0.012}
    left = _verdict.ceilings(times(step=0.020, receive=0.004))
    assert left["fetch"] == 0.024 and left["transport"] == 0.020 and left["consumer"] == 0.012
    slower = times(without={"fetch": 0.013, "collate": 0.013, "transport": 0.013})
    assert _verdict.ceilings(slower)["fetch"] == slower.whole, "leaving out a stage slows nothing down"
    left = _verdict.ceilings(serial(step=0.006))
    assert left["fetch"] == pytest.approx(0.010) and left["consumer"] == pytest.approx(0.024)
    assert left["transport"] is None and left["copy"] is None
    left = _verdict.ceilings(serial(fetch=0.012, collate=0.036))
    assert left["collate"] == pytest.approx(0.006), "stages that took longer than the whole are taken as its parts"


@pytest.mark.parametrize(
    ("measured", "number"),
    [
        (times(), 4),
        (times(by_workers={0: 0.024, 2: 0.012, 4: 0.0100, 8: 0.0096}), 4),  # 4.2 % off the best
        (times(by_workers={0: 0.024, 2: 0.012, 4: 0.0100, 8: 0.0094}), 8),  # 6.4 % off
        (times(step=0.013), 2),
        (times(step=0.1), 1),  # without workers a turn would take 124 ms
        (times(by_workers={0: 0.001, 2: 0.012}, step=0.0), 0),
        (times(by_workers={0: 0.001, 2: 0.012}), 2),  # a step of 12 ms would take 13 ms without workers
        (times(by_workers={0: 0.0006, 2: 0.012}), 0),  # no step would take 5 % more
        (times(by_workers={0: 0.004, 2: 0.012}, receive=0.004), 0),  # it receives for as long
        (times(by_workers={0: 0.004, 2: 0.012}, receive=0.004, pins=True), 2),  # a thread receives
        (times(by_workers={0: 0.004, 2: 0.012}, receive=0.003, copy=0.02), 0),
        (times(by_workers={0: 0.004, 1: 0.0041, 2: 0.012}, receive=0.004), 0),
        (times(by_workers={0: 0.004, 1: 0.0041, 2: 0.012}, receive=0.003), 1),
        (times(by_workers={0: 0.004, 2: 0.012}, batches=20, starts={2: 0.1}), 0),  # the start costs 5 ms a batch
        (serial(by_workers={0: 0.001, 1: 0.012}), 0),
    ],
)
def test_workers_that_pay(measured, number):
    assert _verdict.workers_that_pay(measured) == number


@pytest.mark.parametrize(
    ("rule", "measured", "severity"),
    [
        (_verdict.more_workers, times(), "high"),
        (_verdict.more_workers, times(by_workers={2: 0.012, 4: 0.0105}), "medium"),
        (_verdict.more_workers, times(by_workers={2: 0.012, 4: 0.0112}), None),  # pays, by less than 10 %
        (_verdict.more_workers, times(step=0.013), None),
        (_verdict.fewer_workers, times(), None),
        (_verdict.fewer_workers, times(by_workers={1: 0.0121, 2: 0.012}), "note"),
        (_verdict.fewer_workers, times(by_workers={1: 0.006, 2: 0.012}), "high"),
        (_verdict.fetch_dominates, times(), "high"),
        (_verdict.fetch_dominates, times(fetch=0.006, collate=0.006, transport=0.001), None),  # 46 % of the time
        (_verdict.fetch_dominates, times(fetch=0.0061, collate=0.004, transport=0.002), "high"),
        (_verdict.fetch_dominates, times(without={"fetch": 0.0111, "transport": 0.012}), None),  # frees 8 %
        (_verdict.fetch_dominates, times(step=0.02), None),
        (_verdict.collate_dominates, times(), None),
        (_verdict.collate_dominates, serial(collate=0.018, fetch=0.006), "high"),
        (_verdict.collate_dominates, serial(collate=0.012, fetch=0.0121), None),
        (_verdict.transport_dominates, times(without={"fetch": 0.011, "transport": 0.006}), "high"),
        (_verdict.transport_dominates, times(without={"fetch": 0.012, "transport": 0.0105}), "medium"),
        (_verdict.transport_dominates, times(without={"fetch": 0.012, "transport": 0.0112}), None),
        (_verdict.transport_dominates, times(), None),
        (_verdict.transport_dominates, times(step=0.020, receive=0.003), "medium"),  # a turn of 23 ms, and of 20
        (_verdict.transport_dominates, times(step=0.020, receive=0.0019), None),
        (_verdict.transport_dominates, times(step=0.020, receive=0.003, pins=True), None),
        (_verdict.pin_dominates, times(pins=True, pin=0.01, without={"fetch": 0.011, "pin": 0.006}), "high"),
        (_verdict.pin_dominates, times(pins=True, pin=0.01, without={"fetch": 0.012, "pin": 0.0112}), None),
        (_verdict.copy_dominates, times(copy=0.024), "high"),
        (_verdict.copy_dominates, times(copy=0.013), None),
        (_verdict.copy_dominates, times(copy=0.024, step=0.1), None),
        (_verdict.small_shared_memory, waiting(), "high"),  # four workers would give twice as many batches
        (_verdict.small_shared_memory, waiting(step=0.009), "medium"),
        (_verdict.small_shared_memory, waiting(step=0.0115), None),
        (_verdict.small_shared_memory, waiting(left_out=[]), None),
        (_verdict.small_shared_memory, waiting(busy=0.024), None),  # all processors work already
        (_verdict.small_shared_memory, waiting(by_workers={0: 0.024}), None),  # nothing to predict from
        (_verdict.small_shared_memory, waiting(by_workers={0: 0.024, 2: 0.0151}), None),  # the model says 12 ms
        (_verdict.small_shared_memory, waiting(by_workers={0: 0.024, 2: 0.0095}), None),
        (_verdict.slow_start, times(starts={2: 2.0}), "medium"),  # of an epoch of 12 s
        (_verdict.slow_start, times(starts={2: 1.0}), None),
        (_verdict.slow_start, times(starts={2: 2.0}, persistent=True), None),
        (_verdict.slow_start, times(starts={2: 2.0}, batches=None), None),
        (_verdict.slow_start, serial(starts={0: 5.0}), None),
        (_verdict.more_workers, times(batches=20, starts={2: 0.1, 4: 0.3}), None),  # 328 ms an epoch, and 414
        (_verdict.more_workers, times(batches=20, starts={2: 0.1, 4: 0.3}, persistent=True), "high"),
        (_verdict.more_workers, times(batches=20, starts={2: 0.5, 4: 0.01}, by_workers={2: 0.012, 4: 0.006}), "medium"),
        (_verdict.more_workers, times(batches=None, starts={2: 0.1, 4: 9.0}), "high"),
        (_verdict.more_workers, serial(batches=1), None),
        (_verdict.more_workers, serial(batches=2), "high"),
        (_verdict.fewer_workers, times(batches=1, starts={2: 0.1}), None),  # persistent workers are as fast as none
        (_verdict.fewer_workers, times(batches=60, starts={2: 2.0}, by_workers={0: 0.012, 1: 0.012, 2: 0.012}), "high"),
        (_verdict.fewer_workers, times(batches=60, starts={1: 2.0}, by_workers={0: 0.024, 1: 0.012, 2: 0.012}), "note"),
        (_verdict.slow_start, times(batches=60, starts={2: 2}, by_workers={0: 0.012, 2: 0.012}, step=0.0), None),
        (_verdict.slow_start, times(batches=60, starts={2: 2.0}, by_workers={0: 0.024, 2: 0.012}), "medium"),
        (_verdict.transport_dominates, times(by_workers={0: 0.001, 2: 0.012}, step=0.02, receive=0.003), None),
        (_verdict.too_many_threads, threaded(), "high"),
        (_verdict.too_many_threads, threaded(one_thread=alone(0.020)), "medium"),
        (_verdict.too_many_threads, threaded(one_thread=alone(0.022)), None),
        (_verdict.too_many_threads, threaded(one_thread=None), None),
        (_verdict.too_many_threads, threaded(step=1.0), None),
        (_verdict.too_many_threads, times(one_thread={"whole": 0.001}), None),  # workers have one
        (_verdict.same_samples, times(shared=False), "high"),
        (_verdict.same_samples, times(shared=True), None),
        (_verdict.same_samples, times(), None),
        (_verdict.same_samples, serial(shared=False), None),
        (_verdict.small_shared_memory, waiting(batches=20, starts={2: 0.5}), None),  # without workers it takes 480 ms
    ],
)
def test_rules(rule, measured, severity):
    finding = rule(measured)
    assert (finding and finding.severity) == severity
    if finding is not None:
        assert finding.id == rule.__name__.replace("_", "-")
        assert finding.text.endswith(".") and finding.change


@pytest.mark.parametrize(
    ("rule", "measured", "low", "high"),
    [
        (_verdict.more_workers, times(batches=None, step=0.001), 0.006, 0.006),
        (_verdict.more_workers, times(batches=None), 0, 0.006),  # a step may hide all of it
        (_verdict.more_workers, serial(batches=None), 0.018, 0.018),  # no step hides a loader without workers
        (_verdict.more_workers, times(batches=20, starts={2: 0.1, 4: 0.105}, step=0.0), 0.00545, 0.00545),
        (_verdict.fewer_workers, times(by_workers={1: 0.0121, 2: 0.012}), 0, 0),
        (_verdict.fewer_workers, times(by_workers={1: 0.006, 2: 0.012}, batches=None, step=0.0), 0.006, 0.006),
        (_verdict.fewer_workers, times(by_workers={1: 0.006, 2: 0.012}, batches=None), 0, 0.006),
        (_verdict.too_many_threads, threaded(), 0.018, 0.018),
        (_verdict.fetch_dominates, times(), 0, 0.009),
        (_verdict.transport_dominates, times(without={"fetch": 0.011, "transport": 0.006}), 0, 0.006),
        (_verdict.pin_dominates, times(pins=True, pin=0.01, without={"fetch": 0.011, "pin": 0.006}), 0, 0.006),
        (_verdict.copy_dominates, times(copy=0.024), 0, 0.012),
        (_verdict.small_shared_memory, waiting(), 0, 0.009),
        (_verdict.slow_start, times(starts={2: 2.0}), 0.001974, 0.001974),
    ],
)
def test_what_findings_gain(rule, measured, low, high):
    gain = rule(measured).gain_seconds_per_step
    assert (gain.low, gain.high) == pytest.approx((low, high))


def test_threads_that_cost_more_than_they_save_come_first():
    measured = threaded(batches=None, step=0.0)
    verdict = penstock.LoaderVerdict(measured)
    assert [finding.id for finding in verdict.findings] == ["too-many-threads", "more-workers", "fetch-dominates"]
    threads, workers, fetch = verdict.findings
    assert "4 threads in this process" in threads.text and "4.0 times as many" in threads.text
    assert threads.change.startswith("torch.set_num_threads(1) before the loop")
    assert "at most 4.0 times" in fetch.text and "1.5 times" in workers.text, "of the loader with one thread"
    assert verdict.limited_by == "fetch" and verdict.timings is measured
    assert "\n0                 41.7   yours\n0                  167   one thread\n1                  167\n" in str(
        verdict
    )
    assert verdict.as_dict()["workers"]["with_one_thread"] == pytest.approx(1 / 0.006)
    assert "The other findings are of the loader with one thread." in _verdict.notes(measured)
    [only] = _verdict.findings(threaded(one_thread=alone(0.004) | {"fetch": 0.002, "collate": 0.0019}, step=0.05))
    assert only.id == "too-many-threads"


def test_a_loader_with_workers_is_compared_with_one_thread_in_this_process():
    slow = {0: 0.024, 1: 0.013, 2: 0.012}
    measured = times(by_workers=slow, one_thread={"whole": 0.004}, threads=4, step=0.0)
    [finding] = [finding for finding in _verdict.findings(measured) if finding.id == "fewer-workers"]
    assert finding.change == "num_workers=0, and torch.set_num_threads(1) before the loop"
    assert "3.0 times as many" in finding.text
    assert "0                  250   one thread, pays\n" in str(penstock.LoaderVerdict(measured))
    same = times(by_workers=slow | {0: 0.004}, one_thread={"whole": 0.0039}, threads=4, step=0.0)
    assert _verdict.fewer_workers(same).change == "num_workers=0"
    assert "one thread" not in str(penstock.LoaderVerdict(same))


@pytest.mark.parametrize(
    ("rule", "changed", "told", "untold"),
    [
        (_verdict.fetch_dominates, {}, "a whole batch at once (`__getitems__`)", "for each batch"),
        (_verdict.fetch_dominates, {"takes_batches": True}, "do less for each batch, or", "at once"),
        (_verdict.fetch_dominates, {"takes_batches": True, "streams": True}, "more of a file at once", "__getitems__"),
        (_verdict.collate_dominates, {}, "The same work in the dataset takes as long", "tensors"),
        (_verdict.collate_dominates, {"stacks": True}, "fewer and larger tensors", "collate_fn"),
    ],
)
def test_the_advice_names_what_changes_a_stage(rule, changed, told, untold):
    stage = rule.__name__.removesuffix("_dominates")
    planted = {"fetch": 0.001, "collate": 0.001, stage: 0.02, "without": {stage: 0.003, "transport": 0.012}}
    finding = rule(times(**planted, **changed))
    assert told in finding.change and untold not in finding.change
    assert "at most 4.0 times as many batches." in finding.text, "the gain is what leaving it out gained"


def test_workers_of_short_epochs_are_persistent():
    assert _verdict.more_workers(serial(batches=20, starts={4: 0.3})).change == "num_workers=4, persistent_workers=True"
    assert _verdict.more_workers(serial(batches=9000, starts={4: 0.3})).change == "num_workers=4"
    assert _verdict.more_workers(serial(starts={4: 0.3}, batches=None)).change == "num_workers=4"


@pytest.mark.parametrize("rule", [_verdict.more_workers, _verdict.small_shared_memory])
def test_workers_share_samples_out_before_there_are_more(rule):
    def change(**more):
        return rule((serial if rule == _verdict.more_workers else waiting)(**more)).change

    assert "let workers share the samples out" in change(shared=False)
    assert "share" not in change(shared=True).replace("/dev/shm", "") and change() == change(shared=True)


def test_an_epoch_too_short_for_the_rates_of_workers_is_noted():
    [note] = _verdict.notes(serial(batches=1, step=0.0))
    assert note == (
        "An epoch has 1 batch, so that its first one counts. The rates of workers are those of a long epoch."
    )
    assert _verdict.notes(serial(step=0.0)) == []
    assert _verdict.notes(serial(batches=1, notes=["No GPU."]))[0] == "No GPU."


def test_the_loop_is_told_apart_from_the_loader():
    measured = serial(step=0.010, by_workers={0: 0.024, 1: 0.0238}, batches=None)
    text = str(penstock.LoaderVerdict(measured))
    assert "41.7 batches/s, " in text and "\nthe loop: 29.4 batches/s\n" in text
    assert "1.4 times as many batches" in text, "the loop makes one turn in 23.8 ms in place of 34"
    assert (
        "note: The rates of workers are those of the loader alone. In the loop, with its step and the start of each "
        "epoch, they are 29.4 batches/s with no worker and 42 batches/s with 1 worker." in text
    )
    alone = str(penstock.LoaderVerdict(serial(by_workers={0: 0.024, 1: 0.012}, batches=None)))
    assert "2.0 times as many batches" in alone and "In the loop" not in alone and "the loop:" not in alone


def test_fewer_workers_are_told_by_the_rates_of_the_loop_too():
    measured = times(by_workers={0: 0.004, 2: 0.012}, step=0.002, batches=None)
    assert "2.0 times as many" in _verdict.fewer_workers(measured).text
    [note] = _verdict.notes(measured)
    assert "they are 83.3 batches/s with 2 workers and 167 batches/s with no worker." in note
    assert _verdict.notes(times(by_workers={0: 0.006, 2: 0.012}, batches=None, step=0.0)) == []


def test_a_step_that_comes_on_top_without_workers_is_noted():
    quick = {0: 0.004, 2: 0.012}
    note, of_gains = _verdict.notes(times(by_workers=quick))
    assert note.startswith("Without workers, your step comes on top")
    assert _verdict.notes(times()) == [of_gains] and _verdict.notes(serial(by_workers=quick))[0] == note
    assert note not in _verdict.notes(times(by_workers=quick, step=0.0))
    assert note not in _verdict.notes(times(by_workers=quick, receive=0.004))


def test_gains_of_a_loop_without_a_step_are_noted():
    [note] = _verdict.notes(times())
    assert note.startswith("The gains are those of a loop whose step takes no time.")
    assert _verdict.notes(times(step=0.0)) == []
    even = {"fetch": 0.012, "collate": 0.012, "transport": 0.012}
    assert _verdict.notes(times(without=even, by_workers={2: 0.012})) == [], "nothing gains"


def test_a_consumer_that_receives_is_told_how_long():
    finding = _verdict.transport_dominates(times(step=0.020, receive=0.003, transport=0.004))
    assert "takes 4 ms, 3 ms of it in this process, where the step waits." in finding.text
    assert "of it" not in _verdict.transport_dominates(times(without={"fetch": 0.011, "transport": 0.006})).text


def test_a_loader_that_is_not_as_fast_again_is_noted():
    for again in (0.0095, 0.0151):
        [note] = _verdict.notes(times(again=again, step=0.0))
        assert f"took {again * 1e3:.3g} ms a batch in place of 12 ms" in note
    assert _verdict.notes(times(again=0.0097, step=0.0)) == _verdict.notes(times(again=0.0149, step=0.0)) == []


def test_a_short_epoch_tells_what_persistent_workers_change():
    [note] = _verdict.notes(times(batches=60, starts={2: 0.6, 4: 0.6}, step=0.0, by_workers={0: 0.018, 2: 0.012}))
    assert note.endswith("As long as workers start for each epoch, none pays. With persistent workers, 2 pay.")


def test_findings_are_in_order_and_never_empty():
    found = _verdict.findings(times(starts={2: 2.0}))
    assert [finding.id for finding in found] == ["more-workers", "fetch-dominates", "slow-start"]
    [nothing] = _verdict.findings(times(step=0.013))
    assert nothing.id == "nothing-to-gain" and "Nothing to gain from the loader" in nothing.text
    even = {"fetch": 0.012, "collate": 0.012, "transport": 0.012}
    found = _verdict.findings(times(without=even, by_workers={1: 0.0121, 2: 0.012}))
    assert [finding.id for finding in found] == ["fewer-workers", "nothing-to-gain"]
    assert "pass its time" in found[1].text


def test_the_verdict_as_text_and_as_a_dict():
    verdict = penstock.LoaderVerdict(times(notes=["No GPU."]))
    text = str(verdict)
    assert len(text.splitlines()) < 30
    rates = "83.3 batches/s, 667 samples/s with 2 workers"
    for part in (rates, "limited by fetch", "2 workers where 4 pay", "No GPU."):
        assert part in text
    told = json.loads(json.dumps(verdict.as_dict()))
    assert told["schema"] == "penstock-loader-verdict/1" and told["limited_by"] == "fetch"
    assert told["workers"]["configured"] == 2 and told["workers"]["pays"] == 4
    assert [tried["workers"] for tried in told["workers"]["tried"]] == [0, 1, 2, 4, 8]
    assert set(told["stages"]) == set(told["ceilings"]) == {"fetch", "collate", "transport", "pin", "copy", "consumer"}
    assert told["stages"]["pin"] is None and told["ceilings"]["copy"] is None
    assert set(told["findings"][0]) == {"id", "severity", "text", "change", "gain_seconds_per_step"}


def test_workers_that_were_left_out_are_predicted_from_those_that_were_tried():
    measured = waiting(by_workers={0: 0.024, 1: 0.024, 2: 0.0126})
    assert measured.predicted(4) == pytest.approx(0.0063), "the level is measured, and the model adds the ratio"
    assert measured.predicted(100) == pytest.approx(0.0126 / 0.012 * 0.002), "two processors do 4 ms of each batch"
    assert waiting(receive=0.011).predicted(4) == pytest.approx(0.011), "this process takes one batch after another"
    verdict = penstock.LoaderVerdict(measured)
    assert [finding.id for finding in verdict.findings] == ["small-shared-memory", "fetch-dominates"]
    finding = verdict.findings[0]
    assert "/dev/shm has no room for the batches of 8 workers" in finding.text and "num_workers=8" in finding.change
    assert "as predicted from 2 workers: 4.0 times as many batches." in finding.text
    assert "\n4                  159   predicted, not tried\n" in str(verdict)
    told = json.loads(json.dumps(verdict.as_dict()))
    assert [row["workers"] for row in told["workers"]["predicted"]] == [4, 8]
    assert told["workers"]["predicted"][0]["batches_per_second"] == pytest.approx(1 / 0.0063)
    assert told["busy_seconds"] == 0.003 and told["workers"]["processors"] == 2


@pytest.mark.parametrize(
    ("measured", "promises"),
    [
        (waiting(), True),
        (waiting(busy=0.024), False),
        (waiting(busy=0.030), False),  # several threads in a worker
        (waiting(step=0.0105), False),  # 4 % fewer seconds, with what receiving takes
        (waiting(step=0.010), True),  # 8 %
        (times(by_workers={2: 0.012}), False),  # nothing says how busy workers are
    ],
)
def test_more_workers_than_processors_are_tried_if_the_model_promises_a_gain(measured, promises):
    assert measured.promises(4) == promises


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
            patch.setattr("penstock._doctor._numbers_to_try", lambda _, configured, batches: sorted({0, configured}))
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
    assert verdict.limited_by == "transport" and "transport-dominates" in ids(verdict)
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

    monkeypatch.setattr("penstock._doctor._core.processors", lambda: processors)
    monkeypatch.setattr("penstock._doctor._Examination.run", planted)
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
    monkeypatch.setattr("penstock._doctor._Examination.run", planted)
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

    monkeypatch.setattr("penstock._doctor._Examination.run", failing)
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
    monkeypatch.setattr("penstock._doctor._core.processors", lambda: 2)
    verdict = diagnose(DataLoader(OnlyHere(Shared("the file is open\nin another process")), 4), all_numbers=True)
    assert list(verdict.timings.by_workers) == [0]
    notes = [note for note in verdict.timings.notes if "worker" in note]
    for note, count in zip(notes[:2], ("1 worker was", "2 workers were"), strict=True):
        assert re.fullmatch(count + r" not measured: (\w+\.)?Shared: the file is open", note)


class Unsendable(Samples):
    def __getitem__(self, index):
        return lambda: index


def test_workers_that_send_nothing_are_waited_for_once(monkeypatch):
    monkeypatch.setattr("penstock._doctor.UNTRIED_TIMEOUT", 3.0)
    monkeypatch.setattr("penstock._doctor._numbers_to_try", lambda *facts: [0, 1, 2, 4])
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
        (DataLoader(LateInOneWorker(), 4, num_workers=2, timeout=3), [2, 4, 0]),
    ],
    ids=["own error", "own timeout"],
)
def test_other_numbers_are_tried_after_another_error(monkeypatch, loader, tried):
    monkeypatch.setattr("penstock._doctor._core.processors", lambda: 4)
    monkeypatch.setattr("penstock._doctor._numbers_to_try", lambda *facts: [0, 1, 2, 4])
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
        self.samples = iter(torch.zeros(64, 4))

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

    monkeypatch.setattr("penstock._doctor._core.processors", lambda: 1)
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
    assert len(list(Endless(Once()))) == 64


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


PROGRAM = """
    import multiprocessing, torch
    from torch.utils.data import DataLoader, Dataset

    class Samples(Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            return torch.zeros(4)

    print("imported as", __name__)
    multiprocessing.set_forkserver_preload(["torch.utils.data"])
    loader = DataLoader(Samples(), 4, num_workers=1, multiprocessing_context="forkserver")
    number = 7
    empty = DataLoader([], 4)
    def made():
        return loader
    def sized(size, other=3):
        return DataLoader(Samples(), size)
    def leaving():
        raise SystemExit(3)
    class Called(DataLoader):
        def __call__(self, batch):
            raise AssertionError("it is a loader")
    called = Called(Samples(), 4)
    def refusing():
        import penstock
        raise penstock.InvalidArgument("of the user")
    class Uncopied:
        def __iter__(self):
            return iter([[0]])
        def __deepcopy__(self, memo):
            raise TypeError("no copy")
    uncopied = DataLoader(Samples(), batch_sampler=Uncopied())
    if __name__ == "__main__":
        hidden = loader
"""


ARGUMENTS = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.parse_args()
"""


def run_main(folder, *arguments, text=PROGRAM, file="train_it.py"):
    """Runs the command in a child of this process, which has imported PyTorch, and at the root of the folder's tree."""
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(textwrap.dedent(text))
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            sys.stdout, sys.stderr = out, errors
            os.chdir(folder.parent)
            os._exit(run_here(str(folder / file), *arguments))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for stream in (out, errors):
            stream.seek(0)
        return subprocess.CompletedProcess(arguments, status, out.read(), errors.read())


def run_here(*arguments):
    """What Python's own end does with the command's."""
    try:
        status = _doctor_command.main(*arguments)
    except SystemExit as end:
        print(end.code, file=sys.stderr)
        status = 1
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def start_main(folder, *arguments, text=PROGRAM, file="train_it.py", **options):
    """Runs the command in a Python of its own."""
    (folder / file).write_text(textwrap.dedent(text))
    program = "import sys; from penstock._doctor_command import main; sys.exit(main(*sys.argv[1:]))"
    words = [sys.executable, "-c", program, str(folder / file), *arguments]
    return subprocess.run(words, capture_output=True, text=True, cwd=folder.parent, timeout=600, check=False, **options)


@pytest.mark.parametrize("name", ["made", "called"])
def test_the_program_of_the_command(tmp_path, name):
    done = start_main(tmp_path, name, "0.1", "1000000", "")
    assert done.returncode == 0, done.stderr
    assert "imported as train_it" in done.stdout and "limited by consumer" in done.stdout
    assert "imported as __mp_main__" not in done.stdout


@pytest.mark.parametrize("beside", ["sizes.py", "__init__.py"])
def test_a_file_with_relative_imports_is_a_part_of_its_package(tmp_path, beside):
    package = tmp_path / "project" / "inner"
    package.mkdir(parents=True)
    for name in {beside, "sizes.py"}:
        (package / name).write_text("SIZE = 4")
    (package.parent / beside).write_text("")
    text = """
        from torch.utils.data import DataLoader
        from .sizes import SIZE
        print("imported as", __name__)
        loader = DataLoader([1, 2, 3], SIZE)
    """
    done = run_main(package, "loader", "0.02", "", "", text=text)
    assert done.returncode == 0, done.stderr
    name = "project.inner.train_it" if beside == "__init__.py" else "inner.train_it"
    assert f"imported as {name}\n" in done.stdout


@pytest.mark.parametrize("file", ["train_it.py", "copy.py"])
def test_a_file_of_a_package_finds_its_folder_too(tmp_path, file):
    package = tmp_path / "project" / "inner"
    package.mkdir(parents=True)
    for name in ("__init__.py", "../__init__.py"):
        (package / name).write_text("")
    (package / "sizes.py").write_text("SIZE = 4")
    (package / "names.py").write_text("from .sizes import SIZE")
    text = """
        from sizes import SIZE
        from .names import SIZE as size
        from torch.utils.data import DataLoader
        loader = DataLoader([1, 2, 3], SIZE)
    """
    done = run_main(package, "loader", "0.02", "", "", text=text, file=file)
    assert done.returncode == 0, done.stderr


def test_a_relative_import_is_tried_again_if_what_takes_its_place_fails_too(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "sizes.py").write_text("SIZE = 4")
    text = """
        from torch.utils.data import DataLoader
        try:
            from .sizes import SIZE
        except ImportError:
            from absent.sizes import SIZE
        loader = DataLoader([1, 2, 3], SIZE)
    """
    done = run_main(tmp_path / "inner", "loader", "0.02", "", "", text=text)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("above", [1, 2])
def test_a_file_with_relative_imports_is_a_part_of_as_many_folders_as_it_needs(tmp_path, above):
    package = tmp_path / "project" / "inner"
    package.mkdir(parents=True)
    ([package, package.parent][above - 1] / "sizes.py").write_text("SIZE = 4")
    text = f"""
        from torch.utils.data import DataLoader
        from {"." * above}sizes import SIZE
        print("imported as", __name__)
        loader = DataLoader([1, 2, 3], SIZE)
    """
    done = run_main(package, "loader", "0.02", "", "", text=text)
    assert done.returncode == 0, done.stderr
    assert f"imported as {['inner', 'project.inner'][above - 1]}.train_it\n" in done.stdout


@pytest.mark.parametrize(
    "imports",
    [
        "try:\n    from .sizes import SIZE\nexcept ImportError:\n    from sizes import SIZE\n",
        "if False:\n    from .x import T\n",
    ],
)
def test_relative_imports_that_need_not_succeed_make_no_package(tmp_path, imports):
    folder = tmp_path / "v1.2"
    folder.mkdir()
    (folder / "sizes.py").write_text("SIZE = 4")
    text = f"{imports}from sizes import SIZE\nfrom torch.utils.data import DataLoader\nloader = DataLoader([1], SIZE)\n"
    done = run_main(folder, "loader", "0.02", "", "", text=text)
    assert done.returncode == 0, done.stderr


class Maker:
    def __call__(self, size=4):
        return DataLoader([size] * 8, size)


def supplied(function):
    return functools.wraps(function)(lambda *more: function(4, *more))


@supplied
def made_with(size):
    return DataLoader([1], size)


class Untold:
    __signature__ = "none"

    def __call__(self):
        return DataLoader([1])


@pytest.mark.parametrize(
    "function",
    [functools.partial(DataLoader, [1], 4), Maker(), Maker().__call__, lambda: [1], made_with, Untold(), list],
)
def test_what_can_be_called_without_arguments_is_called(function):
    assert isinstance(_doctor_command._call("train.py:made", function), DataLoader | list)


@pytest.mark.parametrize("function", [DataLoader, functools.partial(DataLoader, batch_size=4), lambda size, *, of: 1])
def test_what_needs_arguments_is_not_called(function):
    with pytest.raises(SystemExit, match=r"penstock: train.py:made needs arguments: \("):
        _doctor_command._call("train.py:made", function)


def test_the_file_gets_no_arguments_of_the_command(tmp_path):
    text = """
        import argparse, sys
        from torch.utils.data import DataLoader
        parser = argparse.ArgumentParser()
        parser.add_argument("--size", type=int, default=4)
        options = parser.parse_args()
        print("arguments", sys.argv)
        loader = DataLoader(list(range(16)), options.size)
    """
    done = run_main(tmp_path, "loader", "0.05", "", "", text=text)
    assert done.returncode == 0, done.stderr
    assert f"arguments {[str(tmp_path / 'train_it.py')]}" in done.stdout


def test_the_json_of_the_command(tmp_path):
    out = os.open(tmp_path / "verdict.json", os.O_RDWR | os.O_CREAT)
    text = PROGRAM.replace('forkserver")', 'fork")')
    done = start_main(tmp_path, "loader", "0.1", "", str(out), text=text, pass_fds=[out])
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "verdict.json").read_text())
    assert told["schema"] == "penstock-loader-verdict/1" and f"limited by {told['limited_by']}" in done.stdout
    os.close(out)


@pytest.mark.parametrize(
    ("name", "text", "file", "words"),
    [
        ("nothing", PROGRAM, "train_it.py", "defines no nothing"),
        ("hidden", PROGRAM, "train_it.py", "move it to the level of the module"),
        ("number", PROGRAM, "train_it.py", "not int"),
        ("empty", PROGRAM, "train_it.py", "penstock: {file}:empty: The loader has no batches."),
        ("uncopied", PROGRAM, "train_it.py", "penstock: {file}:uncopied: The loader's Uncopied cannot be copied"),
        ("sized", PROGRAM, "train_it.py", "penstock: {file}:sized needs arguments: (size, other=3)."),
        ("refusing", PROGRAM, "train_it.py", "InvalidArgument: of the user"),
        ("loader", PROGRAM, "random.py", "Rename the file"),
        ("leaving", PROGRAM, "train_it.py", "penstock: {file}:leaving ends itself (3) when it is called"),
        ("loader", "import sys; sys.exit()", "train_it.py", "penstock: {file} ends itself (0) when it is imported"),
        ("loader", ARGUMENTS, "train_it.py", "penstock: {file} ends itself (2) when it is imported without arguments."),
        ("loader", "from .. import x", "v1.2/train_it.py", "its folder cannot be a package"),
        ("loader", "from .x import y", "inner/train_it.py", "No module named 'inner.x'"),
        ("loader", "import no_such_module", "train_it.py", "No module named 'no_such_module'"),
        ("loader", "1 / 0", "train_it.py", "ZeroDivisionError"),
    ],
)
def test_what_the_command_refuses(tmp_path, name, text, file, words):
    done = run_main(tmp_path, name, "0.1", "", "", text=text, file=file)
    assert done.returncode == 1 and words.format(file=tmp_path / file) in done.stderr
    assert ("Traceback" in done.stderr) == (words.startswith(("No module", "Zero", "Invalid")))


def test_an_interrupted_command_ends_its_workers(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import os, time, torch.utils.data as data\n"
        "class Slow:\n"
        "    def __len__(self): return 64\n"
        "    def __getitem__(self, index):\n"
        "        print('worker', os.getpid(), flush=True)\n"
        "        time.sleep(0.1)\n"
        "        return index\n"
        "loader = data.DataLoader(Slow(), num_workers=1)\n"
    )
    program = "import sys; from penstock._doctor_command import main; sys.exit(main('slow.py', 'loader', '60', '', ''))"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        worker = int(process.stdout.readline().split()[1])
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(60) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


@contextlib.contextmanager
def start_command(folder, text):
    """The command as `penstock doctor --loader slow.py:loader` starts it, in a group of its own."""
    (folder / "slow.py").write_text(textwrap.dedent(text))
    program = (
        "import signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # it may be ignored, as it is in background jobs
        "from penstock._doctor_command import main\n"
        "sys.exit(main('slow.py', 'loader', '60', '', ''))"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=pipe, stderr=pipe, text=True, cwd=folder, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_signal_during_the_import_ends_the_command_at_once(tmp_path):
    text = """
        import time
        print("importing", flush=True)
        while True:
            try:
                time.sleep(60)
            except BaseException:
                print("caught", flush=True)
    """
    with start_command(tmp_path, text) as process:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")
        assert process.returncode == -signal.SIGINT


CATCHING = """
    import sys, time, torch.utils.data as data
    class Catching:
        def __len__(self):
            return 64
        def __getitem__(self, index):
            try:
                print("fetching", flush=True)
                time.sleep(0.2)
            except BaseException:
                print("caught", file=sys.stderr, flush=True)
            return index
    loader = data.DataLoader(Catching(), num_workers=WORKERS)
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_catches_the_interrupt_does_not_go_on(tmp_path, workers):
    with start_command(tmp_path, CATCHING.replace("WORKERS", str(workers))) as process:
        assert process.stdout.readline() == "fetching\n"
        os.killpg(process.pid, signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=60)[1]
        assert process.returncode == 130
        assert errors in (("", "caught\n") if workers == 0 else ("",)), "workers end without a word"


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

    monkeypatch.setattr("penstock._doctor._gpu", lambda device, torch: (torch.device("cpu"), []))
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


def test_the_progress_on_a_terminal_and_elsewhere(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("penstock._doctor_progress.time.monotonic", lambda: clock[0])
    master, terminal = pty.openpty()
    reader, pipe = os.pipe()
    for descriptor, read in ((terminal, master), (pipe, reader)):
        with Progress(descriptor, 60) as progress:
            progress.begins("fetch", 2, 8, 0)
            clock[0] += 59
            progress.look()
            progress.arrived()
            clock[0] += 59
            progress.look()
            clock[0] += 1
            progress.look()
            progress.look()
            progress.begins("4 workers", 3, 8, 120)
            clock[0] += 60
            progress.look()
        os.write(descriptor, b"end")
        text = ""
        while not text.endswith("end"):  # a terminal passes it on in parts
            text += os.read(read, 1000).decode()
        text = text.removesuffix("end")
        assert text.count("no batch has come for 60 s, measuring fetch.") == 1
        own, other = text.index("waited for until you interrupt this."), text.index("given up after 120 s without")
        assert own < text.index("measuring 4 workers.") < other
        assert ("\rmeasuring fetch, 2 of at most 8\033[K" in text) == (descriptor == terminal)
        assert text.endswith("\r\033[K") == (descriptor == terminal)
    for descriptor in (master, terminal, reader, pipe):
        os.close(descriptor)


def test_a_loader_that_hangs_is_told(tmp_path):
    (tmp_path / "hangs.py").write_text(
        "import threading, torch.utils.data as data\n"
        "class Hanging:\n"
        "    def __len__(self): return 64\n"
        "    def __getitem__(self, index): threading.Event().wait(60)\n"
        "loader = data.DataLoader(Hanging(), num_workers=1)\n"
    )
    program = (
        "import sys; from penstock import _doctor_command as command; from penstock._doctor_progress import Progress\n"
        "command.Progress = lambda: Progress(patience=0.1)\n"
        "sys.exit(command.main('hangs.py', 'loader', '60', '', ''))"
    )
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert "no batch has come" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130


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
    monkeypatch.setattr("penstock._doctor._core.processors", lambda: 1)
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
    monkeypatch.setattr("penstock._doctor._core.processors", lambda: 4)
    monkeypatch.setattr("penstock._doctor._free_shared_memory", lambda: 400)
    verdict = diagnose(DataLoader(Samples(), 4), all_numbers=True)
    assert set(verdict.timings.by_workers) == {0, 1}
    assert verdict.timings.left_out == [2, 4, 8, 16]


def test_workers_that_do_not_fit_into_shared_memory_are_not_tried(monkeypatch):
    monkeypatch.setattr("penstock._doctor._free_shared_memory", lambda: 4 * 4 * 4)
    verdict = diagnose(DataLoader(Samples(), 4), all_numbers=True)
    assert list(verdict.timings.by_workers) == [0]
    assert "1 worker was not tried: the batches would not fit into /dev/shm." in verdict.timings.notes
