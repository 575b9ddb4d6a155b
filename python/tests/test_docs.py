"""Runs the Python blocks of the documents, and the examples of the docstrings."""

import doctest
import gzip
import inspect
import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import penstock
import safetensors_files
from support import run_command

ROOT = pathlib.Path(__file__).resolve().parents[2]


def blocks(document):
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


def names_for_examples(folder, steps):
    """What the blocks and the examples use without saying where it comes from."""
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (600, 1, 28, 28), dtype=np.uint8)
    labels = generator.integers(0, 10, 600)
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
    return {
        "images": images,
        "labels": labels,
        "loader": torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True),
        "train_step": lambda x, y: steps.append((len(x), len(y))),
        "checkpoint": folder / "checkpoint.safetensors",
        "model_file": safetensors_files.write(folder / "model", {"head.weight": ("F32", (1, 2), bytes(8))}),
    }


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "docs/llms.txt",
        "docs/python.md",
        "docs/slow.md",
        "docs/memory.md",
        "docs/statistics.md",
        "docs/park.md",
    ],
)
def test_documents(document, capsys, tmp_path):
    steps = []
    names = names_for_examples(tmp_path, steps)
    programs = blocks(document)
    assert programs
    for program in programs:
        exec(compile(program, document, "exec"), names)
    assert sum(x for x, _ in steps) >= 600 or document in ("docs/memory.md", "docs/park.md"), "an epoch was trained on"
    if document == "docs/python.md":
        printed = capsys.readouterr().out
        assert "Pair (4, 1, 28, 28)" in printed
        assert "{'head.weight': (1, 2)}" in printed
        assert "600 samples: each of the epoch's once" in printed


@pytest.mark.parametrize("name", [name for name in penstock.__all__ if name != "__version__"])
def test_docstrings_name_all_arguments_and_their_examples_run(name, tmp_path, monkeypatch, recwarn):
    thing = getattr(penstock, name)
    text = inspect.getdoc(thing)
    if inspect.isfunction(thing) or "\nArgs:\n" in text:
        given = text.partition("\nArgs:\n")[2].partition("\n\n")[0]
        listed = ", ".join(re.findall(r"^    ([a-z_]+(?:, [a-z_]+)*): ", given, re.MULTILINE)).split(", ")
        taken = {*inspect.signature(thing).parameters} - {"not_taken"}
        assert sorted(filter(None, listed)) == sorted(taken)
        assert re.search(r"^Raises:$|[Rr]aises (nothing|what)", text, re.MULTILINE)
    names = names_for_examples(tmp_path, []) | {"penstock": penstock, "gpu": "host"}
    names["torch"] = torch = sys.modules["torch"]
    names["model"], names["x"] = torch.nn.Linear(4, 2), torch.rand(3, 4)
    names["encoder"], names["decoder"] = torch.nn.Linear(4, 2), torch.nn.Linear(2, 4)
    names["optimizer"] = torch.optim.SGD(names["model"].parameters(), 0.1)
    names["token_file"] = tmp_path / "tokens.bin"
    np.arange(5000, dtype=np.uint16).tofile(names["token_file"])
    (tmp_path / "imagenet" / "train" / "cats").mkdir(parents=True)
    (tmp_path / "imagenet" / "train" / "cats" / "0.jpg").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    [test] = doctest.DocTestFinder(recurse=False).find(thing, name, globs=names)
    assert test.examples
    doctest.DebugRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(test)


def test_the_ten_minutes_are_one_program(tmp_path):
    pytest.importorskip("torch")
    program = tmp_path / "ten_minutes.py"
    program.write_text("\n".join(blocks("docs/ten-minutes.md")))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for said in ("the dataset is tensors", " sets the pace", "256 samples before, 7936 after", "limited by "):
        assert said in done.stdout, done.stdout


def test_the_page_on_pictures(tmp_path, monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    for needed in ("PIL", "torchvision", "datasets", "timm"):
        pytest.importorskip(needed)
    import picture_files

    for name in ("cats", "dogs"):
        for i in range(2):
            picture_files.write(tmp_path / "imagenet" / "train" / name / f"{i}.jpg")
        picture_files.write(tmp_path / name / "1.jpg")
    for i in range(2):
        members = [(f"{i}.jpg", picture_files.encode(i)), (f"{i}.cls", b"1")]
        picture_files.write_tar(tmp_path / f"train-00{i}.tar", members)
    monkeypatch.chdir(tmp_path)
    steps = []
    names = {"device": "cpu", "train_step": lambda x, y: steps.append((x.shape, x.dtype, y.tolist()))}
    for program in blocks("docs/pictures.md"):
        exec(compile(program, "docs/pictures.md", "exec"), names)
    assert {shape for shape, _, _ in steps} == {torch.Size((4, 3, 224, 224))}
    assert [dtype for _, dtype, _ in steps] == [torch.float32] * 3 + [torch.uint8]
    assert all(sorted(labels) == [0, 0, 1, 1] for _, _, labels in steps)
    printed = capsys.readouterr().out
    assert "['cats', 'dogs']" in printed and "the dataset is pictures" in printed and "2 2 2 0.jpg in" in printed


def test_the_page_on_the_doctor_makes_a_trace(tmp_path, monkeypatch):
    names = names_for_examples(tmp_path, []) | {"train": lambda batch: None}
    monkeypatch.chdir(tmp_path)
    program, _ = blocks("docs/doctor.md")
    exec(compile(program, "docs/doctor.md", "exec"), names)
    assert "traceEvents" in json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))


def test_the_page_on_the_doctor_checks_a_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, program = blocks("docs/doctor.md")

    def check(*options, not_examined="same-data-again"):
        maker = [sys.executable, "-B", ROOT / "benchmarks/make_trace.py", "trace.json.gz", *options]
        subprocess.run(maker, check=True, capture_output=True)
        told = run_command("doctor", "read", "trace.json.gz", "--json", "report.json")
        assert told.returncode == 0, told.stderr
        report = tmp_path / "report.json"
        report.write_text(report.read_text().replace('"same-data-again"', f'"{not_examined}"'))
        exec(compile(program, "docs/doctor.md", "exec"), {})

    check()
    for broken in (["--pageable", "--bytes", "200000"], ["--kernels", "10"], ["--kernels", "100"]):
        with pytest.raises(AssertionError):
            check(*broken)
    with pytest.raises(AssertionError):
        check(not_examined="pageable-copies")


def test_the_page_on_scale_prints_its_table(capsys):
    [program] = blocks("docs/scale.md")
    exec(compile(program, "docs/scale.md", "exec"), {})
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 4
    assert printed in (ROOT / "docs/scale.md").read_text()


def test_messages_of_the_troubleshooting_page_are_in_the_sources():
    sources = [*ROOT.glob("python/penstock/**/*.py"), *ROOT.glob("python/src/**/*.cpp"), *ROOT.glob("src/**/*.cpp")]
    # Messages without the breaks between their literals.
    text = "".join(re.sub(r'"\s*\n\s*f?"', "", path.read_text()) for path in sources)
    rows = re.findall(r"^\| (`+)(.+?)\1", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    assert len(rows) > 20
    for _, message in rows:
        assert message in text, message


def test_the_page_on_statistics_explains_every_figure():
    page = (ROOT / "docs/statistics.md").read_text()
    loader = penstock.Loader(np.zeros((8, 2), np.uint8), 4, device="host")
    fed = penstock.feed([np.zeros(2)], "host")
    list(loader), list(fed)
    figures = {*loader.stats().as_dict(), *fed.stats().as_dict()}
    assert len(figures) > 40
    assert [name for name in sorted(figures) if f"`{name}`" not in page] == []


def test_the_first_screen_says_how_to_try_it_how_long_that_takes_and_where_it_runs():
    screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:25])
    for command in ("make demo", "make test", "pip install ."):
        assert re.search(rf"^{command} .*\d+ (s|min)\b", screen, re.MULTILINE), command
    for system in ("Linux", "x86-64", "Python 3.10", "NVIDIA", "Debian 12", "Ubuntu 24.04"):
        assert system in screen, system


def test_links_between_documents_lead_somewhere():
    for page in [*ROOT.glob("*.md"), ROOT / "docs/llms.txt", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
