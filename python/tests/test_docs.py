"""The Python that the documents show, as it stands there."""

import pathlib
import re

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def blocks(document):
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", ["README.md", "docs/python.md"])
def test_documents(document, capsys):
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
    }
    programs = blocks(document)
    assert programs
    for program in programs:
        exec(compile(program, document, "exec"), names)
    assert sum(x for x, _ in steps) >= 600, "an epoch was trained on"
    if document == "docs/python.md":
        printed = capsys.readouterr().out
        assert "Pair (4, 1, 28, 28)" in printed
        assert "600 samples: each of the epoch's once" in printed
