"""What the doctor says of a DataLoader, by made-up times."""

import html
import json

import pytest

import penstock
from penstock._doctor import verdict as _verdict
from support import times


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
        (_verdict.fetch_dominates, {}, "a whole batch at once (`__getitems__`)", "pictures=True"),
        (_verdict.fetch_dominates, {"pictures": True}, "penstock.feed(loader, pictures=True)", "for each sample"),
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
    assert verdict._repr_html_() == f"<pre>{html.escape(text)}</pre>"
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
    assert told["busy_seconds"] == 0.003 and told["receive_seconds"] == 0.001
    assert told["workers"]["processors"] == 2


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
