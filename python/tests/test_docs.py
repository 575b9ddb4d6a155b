"""Runs the Python blocks of the documents."""

import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import penstock
import safetensors_files

ROOT = pathlib.Path(__file__).resolve().parents[2]


def blocks(document):
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


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
    torch = pytest.importorskip("torch")
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (600, 1, 28, 28), dtype=np.uint8)
    labels = generator.integers(0, 10, 600)
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
    steps = []
    names = {
        "images": images,
        "labels": labels,
        "loader": torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True),
        "train_step": lambda x, y: steps.append((len(x), len(y))),
        "checkpoint": tmp_path / "checkpoint.safetensors",
        "model_file": safetensors_files.write(tmp_path / "model", {"head.weight": ("F32", (1, 2), bytes(8))}),
    }
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
