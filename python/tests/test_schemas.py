"""What `penstock doctor --json` and `penstock run --json` write, against the schemas that users have: docs/schemas.

The recordings are made over the fake CUPTI of the C++ tests, which lies beside the fake driver (fake_driver.py).
"""

import copy
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import fake_driver
import penstock
from support import times

jsonschema = pytest.importorskip("jsonschema", reason="the schemas need jsonschema: python/tests/requirements.txt")

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "import sys; from penstock._command import main; sys.exit(main())"]
FAKE_CUPTI = pathlib.Path(fake_driver.LIBRARY).resolve().parent.parent / "fake_cupti"
PROGRAM = str(FAKE_CUPTI / "recorder_program")
recorded = pytest.mark.skipif(not os.path.exists(PROGRAM), reason="PENSTOCK_FAKE_DRIVER has no fake CUPTI beside it")


def schema(name):
    return json.loads((ROOT / "docs/schemas" / name).read_text())


def validator(name):
    return jsonschema.Draft202012Validator(schema(name))


def inner(value, path=()):
    """Each object and list in a document, and the keys on the way there."""
    if isinstance(value, dict | list):
        yield path, value
    for key, of in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from inner(of, (*path, key))


def wrong(document):
    """Copies of a document with one mistake each, and what it is. The first item of a list stands for all of them."""

    def with_changed(path, change):
        changed = copy.deepcopy(document)
        part = changed
        for key in path:
            part = part[key]
        change(part)
        return changed

    for path, part in inner(document):
        if not isinstance(part, dict) or any(isinstance(key, int) and key > 0 for key in path):
            continue
        for key in part:
            yield f"{path} without {key}", with_changed(path, lambda of, key=key: of.pop(key))
            yield f"{path} with another {key}", with_changed(path, lambda of, key=key: of.update({key: [{"a": 1}]}))
        yield f"{path} with more", with_changed(path, lambda of: of.update(more=1))


def values(document, key):
    """All strings that have this name in a document."""
    return {part[key] for _, part in inner(document) if isinstance(part, dict) and isinstance(part.get(key), str)}


def check(validator, document, *enumerated):
    """The document is valid. It is not so with any mistake, nor with another word under the names that have a list."""
    validator.validate(document)
    for mistake, changed in wrong(document):
        assert not validator.is_valid(changed), mistake
    for key in enumerated:
        found = values(document, key)
        assert found, key
        for value in found:
            text = json.dumps(document).replace(f'"{key}": "{value}"', f'"{key}": "{value}?"')
            assert not validator.is_valid(json.loads(text)), (key, value)


@pytest.mark.parametrize("name", ["doctor.json", "loader-verdict.json", "run.json"])
def test_the_schemas_are_schemas(name):
    jsonschema.Draft202012Validator.check_schema(schema(name))


def test_the_schemas_know_all_findings():
    page = (ROOT / "docs/doctor-reference.md").read_text()
    of_trace, of_verdict = re.findall(r"^\| id \|.*?\n\n", page, re.MULTILINE | re.DOTALL)

    def ids(table):
        return {id for row in table.strip().splitlines()[2:] for id in re.findall(r"`([a-z-]+)`", row.split("|")[1])}

    assert ids(of_trace) == set(schema("doctor.json")["$defs"]["finding_id"]["enum"])
    findings = schema("loader-verdict.json")["properties"]["findings"]["items"]
    assert ids(of_verdict) == set(findings["properties"]["id"]["enum"])


def run(folder, *arguments, command="doctor", status=0, **environment):
    """What the command writes to --json."""
    out = folder / "report.json"
    words = [*COMMAND, command, "--json", str(out), *arguments]
    variables = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(folder), **environment}
    if path := os.environ.get("PYTHONPATH"):
        variables["PYTHONPATH"] = path
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return json.loads(out.read_text())


def make_trace(file, options, change=None):
    """A simulated trace. `change` gets each event, and returns it or None."""
    program = [sys.executable, "-B", ROOT / "benchmarks/make_trace.py", file, *options]
    subprocess.run(program, check=True, capture_output=True)
    if change is not None:
        trace = json.loads(file.read_text())
        trace["traceEvents"] = [event for event in map(change, trace["traceEvents"]) if event is not None]
        file.write_text(json.dumps(trace))


def of_two_gpus(event):
    """Odd steps are those of a second GPU."""
    args = event.get("args", {})
    if "device" in args and args["correlation"] % 2:
        args["device"] = event["pid"] = 1
    return event


def without(*categories):
    return lambda event: None if event.get("cat") in categories else event


def without_marks(event):
    return None if event["name"].startswith("ProfilerStep") else event


SLOW = ["--steps", "6", "--pageable", "--item", "--loader-us", "300", "--kernels", "10"]


@pytest.mark.parametrize(
    ("options", "change", "holds"),
    [
        pytest.param(SLOW, None, lambda of: len(of["findings"]) == 3, id="findings"),
        pytest.param(["--loader-us", "0", "--bytes", "4000"], None, lambda of: not of["findings"], id="nothing found"),
        pytest.param(["--blocking", "--no-stacks"], None, lambda of: of["findings"], id="no stacks"),
        pytest.param(SLOW, of_two_gpus, lambda of: len(of["devices"]) == 2, id="two GPUs"),
        pytest.param(
            [*SLOW, "--steps", "1"], without_marks, lambda of: of["devices"][0]["steps"] is None, id="no step"
        ),
        pytest.param(["--steps", "300"], None, lambda of: of["devices"][0]["steps"] == 300, id="many steps"),
        pytest.param(
            SLOW, without("gpu_memcpy"), lambda of: not of["devices"][0]["copies_to_device"]["count"], id="no copies"
        ),
        pytest.param(
            SLOW, without("cpu_op", "python_function", "cuda_runtime"), lambda of: of["not_examined"], id="no host"
        ),
    ],
)
def test_diagnoses_of_traces(tmp_path, options, change, holds):
    make_trace(tmp_path / "trace.json", options, change)
    told = run(tmp_path, "trace.json")
    assert holds(told), told
    check(validator("doctor.json"), told, "schema", *(["id", "severity"] if told["findings"] else []))


def communicating(rank):
    """The last kernel of each step is a collective."""

    def change(event):
        if "gemm" in event["name"] and event["args"]["correlation"] % 5 == rank:
            event["name"] = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        return event

    return change


def test_diagnoses_of_several_traces(tmp_path):
    for rank in range(2):
        make_trace(tmp_path / f"{rank}.json", SLOW, communicating(rank))
    told = run(tmp_path, "0.json", "1.json")
    assert [trace["trace"] for trace in told["traces"]] == ["0.json", "1.json"]
    assert told["comparison"]
    check(validator("doctor.json"), told, "schema")


def test_names_that_are_not_text(tmp_path):
    make_trace(tmp_path / "trace.json", SLOW)
    text = (tmp_path / "trace.json").read_bytes()
    (tmp_path / "trace.json").write_bytes(text.replace(b"train.py(14)", b"tr\xff\\u0000in.py(14)"))
    told = run(tmp_path, "trace.json")
    assert "tr\ufffd\0in.py" in told["findings"][0]["places"][0]["file"]
    check(validator("doctor.json"), told)


def record(folder, *words, options=(), **environment):
    """What is told of the C++ tests' program, which does what the words say."""
    libraries = {"PENSTOCK_LIBCUPTI": str(FAKE_CUPTI / "libfake_cupti.so")}
    return run(folder, *options, "--", *words, **libraries, **environment)


def process_of(told):
    assert len(told["processes"]) == 1, told["remarks"]
    return told["processes"][0]


@recorded
@pytest.mark.parametrize(
    ("words", "environment", "holds"),
    [
        pytest.param(["steps=20"], {}, lambda of: of["findings"], id="findings"),
        pytest.param(["again=20"], {}, lambda of: of["findings"][0]["places"], id="the same data"),
        pytest.param(["allocating=20"], {}, lambda of: of["findings"], id="allocations"),
        pytest.param(["ranges=40"], {}, lambda of: of["devices"][0]["steps"] == 40, id="ranges"),
        pytest.param(["steps=2"], {}, lambda of: of["devices"][0]["steps"] is None, id="no steps"),
        pytest.param(
            ["steps=60", "recorded", "fed=4"],
            {"PENSTOCK_RECORDS": "100"},
            lambda of: any("keeps the last 100 of" in each["text"] for each in of["not_examined"]),
            id="a long run",
        ),
        *(
            pytest.param(
                ["steps=20"],
                {"FAKE_CUPTI_REFUSES": part},
                lambda of: any("CUPTI refused" in each["text"] for each in of["not_examined"]),
                id=f"refused {part}",
            )
            for part in ("1", "10", "callbacks")
        ),
    ],
)
def test_diagnoses_of_a_program(tmp_path, words, environment, holds):
    told = record(tmp_path, PROGRAM, "init", *words, **environment)
    process = process_of(told)
    assert holds(process), process
    assert told["verify"] is None and told["exit_status"] == 0
    check(validator("doctor.json"), told, "schema")


@recorded
def test_diagnoses_of_several_processes_and_of_a_folder(tmp_path):
    both = f"{PROGRAM} init steps=20 & {PROGRAM} init pinned=20; wait"
    told = record(tmp_path, "/bin/sh", "-c", both, options=["--record", "records"])
    assert len(told["processes"]) == 2
    check(validator("doctor.json"), told)
    again = run(tmp_path, "records")
    assert again["exit_status"] is None and len(again["processes"]) == 2
    check(validator("doctor.json"), again)


@recorded
@pytest.mark.parametrize(
    ("changed", "holds"),
    [
        pytest.param("pinned=20", lambda of: of["comparisons"][0][0]["predicted_seconds"], id="a gain"),
        pytest.param("steps=20", lambda of: of["comparisons"][0][0]["in_range"] is None, id="the same"),
        pytest.param("steps=2", lambda of: of["comparisons"][0][0]["of"] == "recording", id="no steps"),
        pytest.param(
            "allocating=20", lambda of: any(each["new"] for each in of["comparisons"][0][0]["findings"]), id="worse"
        ),
        pytest.param("say=no", lambda of: of["remark"] and not of["comparisons"], id="no GPU"),
    ],
)
def test_diagnoses_with_a_changed_program(tmp_path, changed, holds):
    told = record(tmp_path, PROGRAM, "init", "steps=20", options=["--verify", f"{PROGRAM} init {changed}"])
    assert holds(told["verify"]), told["verify"]
    check(validator("doctor.json"), told, *(["of"] if told["verify"]["comparisons"] else []))


@recorded
def test_diagnoses_of_programs_that_did_nothing(tmp_path):
    check(validator("doctor.json"), record(tmp_path, PROGRAM, "init"))
    told = record(tmp_path, PROGRAM, "say=hello", options=["--verify", "true"])
    assert told["verify"]["changed"] is None and told["remarks"]
    check(validator("doctor.json"), told)


@pytest.mark.parametrize(
    ("changed", "limit"),
    [
        pytest.param({"notes": ["No GPU."]}, "fetch", id="workers"),
        pytest.param(
            {"pin": 0.001, "copy": 0.002, "pins": True, "busy": 0.01, "step": 0.05}, "consumer", id="all stages"
        ),
        pytest.param(
            {"workers": 0, "whole": 0.024, "transport": None, "without": {}, "batches": None}, "fetch", id="no workers"
        ),
        pytest.param(
            {
                "by_workers": {0: 0.024, 1: 0.024, 2: 0.0125},
                "left_out": [4],
                "busy": 0.003,
                "receive": 0.0,
                "processors": 2,
            },
            "fetch",
            id="predicted",
        ),
    ],
)
def test_verdicts(changed, limit):
    told = json.loads(json.dumps(penstock.LoaderVerdict(times(**changed)).as_dict()))
    assert told["limited_by"] == limit
    assert bool(told["workers"]["predicted"]) == ("left_out" in changed)
    check(validator("loader-verdict.json"), told, "schema", "limited_by", "id", "severity")


def test_the_verdict_of_the_command_by_its_own_python(tmp_path):
    pytest.importorskip("torch")
    text = "from torch.utils.data import DataLoader\nloader = DataLoader(list(range(64)), 4, num_workers=1)\n"
    (tmp_path / "train.py").write_text(text)
    told = run(tmp_path, "--loader", "train.py:loader", "--seconds", "0.05", PATH="/nowhere")  # it is its own Python
    check(validator("loader-verdict.json"), told, "limited_by")


@recorded
def test_what_was_done_with_the_copies_of_a_program(tmp_path):
    def told(*options):
        return run(tmp_path, *options, command="run", PENSTOCK_FAKE_DRIVER=fake_driver.LIBRARY)

    copies = told("--", str(FAKE_CUPTI.parent / "run/program/run_program"), "entries")
    assert copies["sizes"] and copies["loaders"] is None
    check(validator("run.json"), copies, "schema", "direction")
    loader = {"place": "train.py:3", "device": "cuda:0", "batches": 4, "fed": 1, "why": ""}
    script = f"echo '[{json.dumps(loader)}]' >${{PYTHONPATH%%:*}}/feed.1.json"
    fed = told("--feed", "--", "/bin/sh", "-c", script)
    assert fed["loaders"] == [loader] and fed["nothing_to_gain"] is False
    check(validator("run.json"), fed, "schema")
