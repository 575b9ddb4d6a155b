import copy
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import results  # noqa: E402
import rows  # noqa: E402

PAGE = "".join(f"<!-- results: {key} -->\nold\n<!-- /results -->\n" for key in ("answers", "about", "rows"))
STARTS = {"samples_per_second": {}}
NEWER = ["run", "park", "replay", "pictures", "training"]


def of_compare(good: bool) -> list[dict]:
    """What compare.py writes of each contender that a row reads, with figures that meet all goals or none."""

    def result(workload: str, contender: str, ours: bool, **more: object) -> dict:
        fast = ours == good
        figures = {
            "samples_per_second": 9e8 if fast else 1e3,
            "stored_gbps": 55.0 if fast else 1.0,
            "alone_samples_per_second": 1e3,
            "share_of_compute": 1.0 if fast else 0.1,
            "gbps": 55.0 if fast else 1.0,
            "batch_us": 20.0 if fast else 900.0,
            "step_ms": 10.0 if fast else 20.0,
            "copy_p99_ms": 0.1 if fast else 5.0,
            "thread_us_after_rest": 10.0 if fast else 900.0,
            "limited_by": "loader",
            "steps": [{"alone_ms": 2.0, "fed_ms": 9.0}, {"alone_ms": 10.0, "fed_ms": 10.0 if fast else 20.0}],
        }
        return {"workload": workload, "contender": contender, "verified": True, "figures": figures | more}

    found = []
    for workload in ("images", "small samples", "images to float32"):
        # The native feed stands beside Loader, too, and both beside DataLoader.
        found += [result(workload, name, True) for name in (rows.LOADER, rows.TENSORS)]
        found.append(result(workload, "DataLoader, best of N workers", False))
    if not good:
        next(each for each in found if each["contender"] == rows.LOADER)["figures"]["samples_per_second"] = 1e5
    for count in (4, 8, 14):
        found += [
            result(f"images, tensors, {count} workers", name, name == rows.FEED) for name in (rows.FEED, "DataLoader")
        ]
    found.append(result("images, decoding, 8 workers", rows.FEED, True))
    found.append(result("images, decoding, 8 workers", "DataLoader, left on the host", False))
    beside = "a copy of 51 KB beside images from 14 processes, at full speed"
    found += [result(beside, rows.FEED, True), result(beside, "nothing beside it", False)]
    for table in ("one int64 column", "28 int64 columns", "100 int64 columns", "400 int64 columns"):
        found.append(result(f"{table}, batch 8192", rows.LOADER, True))
    found.append(result("28 int64 columns, batch 8192, 20,000,000 rows", rows.LOADER, True))
    for name in ("resnet18, batch 256", "perceptron, batch 4096", "recommender of 28 columns, batch 8192"):
        found.append(result(f"train {name}", rows.FEED, True))
    for name in ("Lightning", "Accelerate", "Trainer"):
        found += [result(f"a step of 10 ms in {name}", rows.FEED, True, step_ms=10.0 if good else 20.0)]
        found += [result(f"a step of 10 ms in {name}", "resident", True, step_ms=10.0)]
    for batch in ("2 tensors, 256x64 float32 and 256 int64", "2 tensors, 256x3x224x224 uint8 and 256 int64"):
        found += [result(f"own cost: {batch}", name, name == rows.FEED) for name in (rows.FEED, rows.PINNED_BEFORE)]
    dict_of = "own cost: dict of 500 tensors of 1 KiB"
    found += [result(dict_of, name, name == rows.FEED) for name in (rows.FEED, rows.PINNED_BEFORE)]
    one, state = "one pageable tensor of 1024 MiB", rows.STATE
    for workload, ours, theirs in (
        (one, "penstock.to_device", rows.RAW),
        (state, "penstock.to_device", rows.FLAT),
        (state.replace("48", "5000"), "penstock.to_device", rows.FLAT),
        (f"{state}, back", "penstock.to_host(out=)", rows.PINNED),
        (f"{state}, in a file", "penstock.load_safetensors", rows.FLAT),
        (f"{state}, to a file", "penstock.save_safetensors(wait=False)", "torch.save"),
        (f"{state}, back", "penstock.to_host", "`.cpu()` of each"),
    ):
        found += [result(workload, ours, True), result(workload, theirs, False)]
    return found


def of_pictures(good: bool, *beside: str) -> dict:
    """What pictures.py writes."""
    ours = (rows.PICTURES, rows.FED_PICTURES, rows.DEVICE_PICTURES, f"{rows.PICTURES}, decoded before")
    return {"ways": {way: {"rate": 100.0} for way in beside} | {way: {"rate": 999.0 if good else 9.0} for way in ours}}


def a_run(good: bool) -> dict:
    def lines(of: tuple) -> list[dict]:
        return [
            {"work": first, "penstock": "ours", "beside": "theirs", "ratio": "2 x", "goal": goal, "met": good}
            for _, _, goal, first in of
        ]

    fast, slow = (100.0, 50.0) if good else (50.0, 50.0)
    beside = "beside `to_device(relay=)` to the first, pinned"
    replay = {"sampled": 50.0 if good else 1.0, "written": 1.0, "written alone": 1.0 if good else 2.0}
    return {
        "machine": "nvidia-test-x2",
        "gpus": ["NVIDIA Test", "NVIDIA Test"],
        "driver": "580.1",
        "cores": 16,
        "date": "2026-11-27",
        "commit": "0123abcd",
        "older": {},
        "missing": [],
        "parts": {
            "engine": {"table": lines(rows.ENGINE)},
            "loader": {"table": lines(rows.LOADER_TABLE)},
            "compare": {"about": {"PyTorch": "2.11"}, "results": of_compare(good)},
            "starts": {
                "samples_per_second": {
                    name: {way: {"first second": 10} for way in (rows.FEED, "DataLoader")}
                    for name in ("images", "columns", "text")
                }
            },
            "recorder": {
                "not recorded": {"step_ms": 1.0},
                "recorded": {"step_ms": 1.01 if good else 1.2},
                "without lines (--no-lines)": {"step_ms": 1.01 if good else 1.2},
                "torch.profiler": {"step_ms": 1.1},
            },
            "gains": {"fixed": [{"name": "a", "in_range": False}, {"name": "a", "in_range": good}]},
            "run": {"rows": [{"work": name, "alone_gbps": 1.0, "run_gbps": fast if good else 0.5} for _, _, name in rows.RUN]},
            "park": {
                "ways": {
                    "raw pinned copy": {"down_gbps": 50.0, "up_gbps": 50.0},
                    rows.LATER: {"down_gbps": fast if good else 1.0, "up_gbps": fast if good else 1.0},
                    "penstock, first": {"down_gbps": fast if good else 1.0},
                    **dict.fromkeys((".to('cpu')", rows.SAVER), {"down_gbps": 1.0}),
                },
                "held": 1.0 if good else 2.0,
                "loop": {size: dict.fromkeys(("penstock", "by hand"), {"share": 0.1, "step_s": 1.0}) for size in ("1 B", "7 B")},
                "relayed": {"gbps": {"one link": 50.0, "both links": fast}},
                "unchanged": {"again_s": 0.01, "whole_s": 0.2, "times": 20},
                "frozen": {"again_s": 0.01, "whole_s": 0.2, "times": 20 if good else 2},
                "swap": {"swap_s": 0.1, "one_way_s": 0.1, "times": 1.0 if good else 2},
            },
            "replay": {"gbps": {"penstock.ReplayBuffer": replay, "shared tensors": {"sampled": 1.0}}},
            "pictures": of_pictures(good, rows.PILLOW, rows.NVJPEG),
            "training": of_pictures(good, rows.THERE),
            "groups": {
                "devices": ["cuda:0", "cuda:1"],
                "gbps": {
                    rows.EACH: slow,
                    "to_device(group=), pinned": fast,
                    "to_device(relay=), pinned": fast,
                    "Loader(group=)": fast,
                },
                "all_reduce": {
                    "alone": [fast, 0, []],
                    "alone, again": [fast, 0, []],
                    beside: [fast if good else 1, 0, []],
                },
            },
            "processes": {
                "devices": ["cuda:0", "cuda:1"], "gbps": {
                    "raw copies": 50.0, "later epochs": 50.0 if good else 1.0,
                    "the same batches for all, once": fast,
                },
                "shared_bytes": 100 if good else 200, "dataset_bytes": 100},
        },
    }


class ResultsTests(unittest.TestCase):
    def test_the_page_is_made_from_the_kept_runs(self):
        page = results.PAGE.read_text()
        self.assertEqual(results.page_with(page, results.kept()), page, "run benchmarks/results.py write")

    def test_kept_runs_say_where_and_of_what_they_are(self):
        for file in results.KEPT.glob("*.json"):
            run = json.loads(file.read_text())
            self.assertEqual(file.stem, run["machine"])
            self.assertTrue(run["commit"] and run["date"] and run["gpus"] and run["driver"], file)

    def test_each_row_has_a_name_of_its_own(self):
        works = [row.work for row in rows.ROWS]
        self.assertEqual(len(works), len(set(works)))
        self.assertLessEqual({row.part for row in rows.ROWS}, results.PARTS.keys())
        self.assertEqual(sum(row.answers for row in rows.ROWS), 5)

    def test_every_row_is_read_and_judged(self):
        good, bad = a_run(True), a_run(False)
        for row in rows.ROWS:
            cell, worse = (results.cell_of(row, run) for run in (good, bad))
            self.assertIsNotNone(cell, row.work)
            self.assertIsNotNone(worse, row.work)
            self.assertEqual(cell.met, True if row.goal else None, row.work)
            self.assertEqual(worse.met, False if row.goal else None, row.work)

    def test_what_was_not_measured_is_said(self):
        run = a_run(True)
        whole = results.page_with(PAGE, [run])
        self.assertNotIn("not measured", whole)
        self.assertIn("NVIDIA Test**: 2026-11-27, commit 0123abcd, driver 580.1, 16 cores, PyTorch 2.11.", whole)
        for part in results.PARTS:
            without = copy.deepcopy(run)
            del without["parts"][part]
            self.assertIn("not measured", results.page_with(PAGE, [without]), part)
        self.assertIn("not measured", results.page_with(PAGE, []))
        one = copy.deepcopy(run)
        one["gpus"].pop()
        self.assertIn("not measured", results.page_with(PAGE, [one]))
        both = results.page_with(PAGE, [one, run])
        self.assertNotIn("not measured", both)
        self.assertEqual(both.count("| 2 NVIDIA Test |"), len(rows.ROWS))

    def test_a_missed_goal_is_said(self):
        self.assertNotIn("missed", results.page_with(PAGE, [a_run(True)]))
        self.assertEqual(
            results.page_with(PAGE, [a_run(False)]).count("**missed**"), sum(bool(row.goal) for row in rows.ROWS)
        )

    def test_goals_of_a_benchmark_are_those_of_the_page(self):
        run = a_run(True)
        run["parts"]["engine"]["table"][0]["goal"] = "50 %"
        with self.assertRaisesRegex(ValueError, "goal '50 %', rows.py '99 %'"):
            results.page_with(PAGE, [run])

    def test_a_page_without_its_blocks_is_refused(self):
        for page in ("", PAGE + PAGE):
            with self.assertRaisesRegex(ValueError, "not one"):
                results.page_with(page, [])

    def test_outputs_are_gathered(self):
        with tempfile.TemporaryDirectory() as name:
            build = pathlib.Path(name)
            (build / "gpu-starts.json").write_text(json.dumps(STARTS))
            (build / "gpu-processes.json").write_text(json.dumps({"gbps": {}}))
            one = results.gather(build, ["NVIDIA H100 80GB HBM3"], "580.1", "abc")
            two = results.gather(build, ["NVIDIA H100 80GB HBM3"] * 2, "580.1", "abc")
        self.assertEqual((one["machine"], two["machine"]), ("nvidia-h100-80gb-hbm3-x1", "nvidia-h100-80gb-hbm3-x2"))
        self.assertEqual(one["parts"], {"starts": STARTS})
        self.assertEqual(one["missing"], ["engine", "loader", "recorder", "compare", "gains", *NEWER])
        self.assertEqual(two["parts"].keys(), {"starts", "processes"})
        self.assertEqual(two["missing"], [*one["missing"], "groups"])
        self.assertEqual(json.loads(results.text_of(two)), two)

    def test_parts_that_a_run_lacks_stay(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            file, kept = folder / "new.json", results.KEPT
            results.KEPT = folder / "kept"
            self.addCleanup(setattr, results, "KEPT", kept)
            run = {"machine": "m", "gpus": ["G"], "driver": "1", "cores": 1, "older": {}}
            for date, parts, missing, older in (
                ("1", {"engine": 1, "starts": 1}, ["loader"], {}),
                ("2", {"starts": 2}, ["loader"], {"engine": "1, commit c1"}),
                ("3", {"loader": 3}, [], {"engine": "1, commit c1", "starts": "2, commit c2"}),
            ):
                lacks = [each for each in ("engine", "loader", "starts") if each not in parts]
                dated = {"date": date, "commit": f"c{date}", "parts": parts, "missing": lacks}
                file.write_text(json.dumps(run | dated))
                results.keep(file)
                (now,) = results.kept()
                self.assertEqual((now["date"], now["missing"], now["older"]), (date, missing, older))
            self.assertEqual(now["parts"], {"engine": 1, "starts": 2, "loader": 3})
            (line,) = results.about([now])
            self.assertIn("G**: 3, commit c3, driver 1, 1 cores", line)
            self.assertIn("Of 1, commit c1: engine. Of 2, commit c2: starts.", line)


if __name__ == "__main__":
    unittest.main()
