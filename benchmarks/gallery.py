"""Runs public programs as they are and with penstock, and writes a table and a picture: steps/s, how busy the GPU is.

    gallery.py CHECKOUTS [--only mnist nanoGPT] [--seconds 3] [--rounds 2] [--out build/gallery] [--options=...]
    gallery.py CHECKOUTS --pack FOLDER

CHECKOUTS holds a clone of each repository, such as CHECKOUTS/pytorch/examples, and nothing is downloaded: what a
program reads is made up there. A step is one of an optimizer; the first WARM are not measured. A program with a loop
is run with its one line changed, the others by `penstock run --feed`. --pack copies what is read of the clones, 10 MB,
for a machine without a network. Beside PyTorch, torchvision, timm, PyG, Lightning, transformers and peft, the programs
import datasets (Trainer), jsonargparse (Lightning), gymnasium, tyro and tensorboard (DQN).
"""

import argparse
import importlib
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

import numpy as np

WARM = 20
COMMAND = "import sys, penstock._command as command; sys.exit(command.main())"
RUN = [sys.executable, "-c", COMMAND, "run", "--feed", "--"]
LOOP = "enumerate({train_loader})"
GPT = "--dataset=made_up --eval_interval=100000 --eval_iters=1 --gradient_accumulation_steps=1 --compile=False"
TIMM = "--data-dir {folder}/pictures --model resnet18 --num-classes 4 --workers 8 --output {out}"
PEFT = "--base_model {folder}/model --data_path {folder}/texts --output_dir {out} --dtype bfloat16 "
PEFT += "--eval_step 100000 --save_step 100000 --num_epochs 100 --batch_size 8"
# name: repository, script, what else it reads there, options, its loop with the loader in braces, data
PROGRAMS = {
    "mnist": ("pytorch/examples", "mnist/main.py", "", "", LOOP, "mnist"),
    "vae": ("pytorch/examples", "vae/main.py", "", "--epochs 100", LOOP, "mnist"),
    "imagenet": ("pytorch/examples", "imagenet/main.py", "", "--dummy -j 8", LOOP, None),
    "timm": ("huggingface/pytorch-image-models", "train.py", "timm", TIMM, None, "pictures"),
    "nanoGPT": ("karpathy/nanoGPT", "train.py", "*.py", GPT + " --out_dir={out}", None, "tokens"),
    "Trainer": ("huggingface/peft", "examples/olora_finetuning/olora_finetuning.py", "", PEFT, None, "texts"),
    "Lightning": ("Lightning-AI/pytorch-lightning", "examples/pytorch/basics/autoencoder.py", "", "", None, "mnist"),
    "PyG": ("pyg-team/pytorch_geometric", "examples/mutag_gin.py", "", "", "in {train_loader}", "graphs"),
    "DQN": ("vwxyzjn/cleanrl", "cleanrl/dqn.py", "cleanrl_utils", "--learning-starts 1000", None, None),
    "diffusion": ("cloneofsimo/minDiffusion", "superminddpm.py", "contents", "", "tqdm({dataloader})", "mnist"),
}


def write_data(kind, folder):
    """Random data in the files that a program of the folder reads."""
    draw = np.random.default_rng(0).integers
    raw = folder / {"graphs": "data/TU/MUTAG/raw", "tokens": "data/made_up", "texts": "texts"}.get(
        kind, "data/MNIST/raw"
    )
    raw.mkdir(parents=True, exist_ok=True)
    if kind == "mnist":
        for name, shape in (("images-idx3", (60000, 28, 28)), ("labels-idx1", (60000,))):
            head = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">i4").tobytes()
            for split in ("train", "t10k"):
                (raw / f"{split}-{name}-ubyte").write_bytes(head + draw(0, 10, shape, np.uint8).tobytes())
        for other in ("examples/Datasets", "examples/pytorch/basics/data"):  # where Lightning's program looks
            if (folder / "examples/pytorch").exists():
                shutil.copytree(folder / "data", folder / other, dirs_exist_ok=True)
    elif kind == "tokens":
        for split in ("train", "val"):
            draw(0, 50257, 10_000_000, np.uint16).tofile(raw / f"{split}.bin")
    elif kind == "graphs":
        graph = np.repeat(np.arange(20000), 38)[:, None]
        columns = {"A": graph * 18 + draw(1, 19, (len(graph), 2)), "graph_labels": draw(0, 2, 20000)}
        columns |= {"graph_indicator": np.repeat(np.arange(20000), 18) + 1, "node_labels": draw(0, 7, 20000 * 18)}
        for name, values in columns.items():
            np.savetxt(raw / f"MUTAG_{name}.txt", values, "%d", ", ")
    elif kind == "texts":
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

        words = Tokenizer(models.WordLevel({str(i): i for i in range(1000)}, unk_token="0"))
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        PreTrainedTokenizerFast(tokenizer_object=words, eos_token="1").save_pretrained(folder / "model")
        sizes = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8}
        LlamaForCausalLM(LlamaConfig(vocab_size=1000, **sizes)).save_pretrained(folder / "model")
        texts = [" ".join(map(str, draw(2, 1000, int(n)))) for n in draw(20, 240, 4000)]
        lines = [json.dumps({"instruction": text[:60], "output": text}) for text in texts]
        (raw / "train.jsonl").write_text("\n".join(lines))
    elif kind == "pictures":
        from PIL import Image

        for i in range(2048):
            path = folder / "pictures" / ("validation" if i % 16 < 4 else "train") / f"class{i % 4}" / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw(0, 256, (12, 16, 3), np.uint8)).resize((500, 375)).save(path)


def inside(script, seconds, result, loop, *options):
    """In a process of its own: runs the script, and ends it once its steps are measured."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    done, begin, busy, has_gpu = 0, 0.0, None, torch.cuda.is_available()
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-i", "0", "-lms", "50"]

    def count(*_):
        nonlocal done, begin, busy
        done += 1
        if done == WARM:
            if has_gpu:
                torch.cuda.synchronize()
            busy = subprocess.Popen(query, stdout=subprocess.PIPE, text=True) if has_gpu else None
            begin = time.perf_counter()
        elif done > WARM and time.perf_counter() > begin + float(seconds):
            if has_gpu:
                torch.cuda.synchronize()
            rate, share = (done - WARM) / (time.perf_counter() - begin), float("nan")
            if busy is not None:
                busy.terminate()
                share = statistics.mean(map(int, busy.communicate()[0].split()))
            pathlib.Path(result).write_text(json.dumps([rate, share]))
            os._exit(0)

    register_optimizer_step_post_hook(count)
    text = pathlib.Path(script).read_text()
    names = {"__name__": "__main__", "__file__": script}
    if loop:
        names["penstock"] = importlib.import_module("penstock")
        plain = loop.replace("{", "").replace("}", "")
        assert plain in text, f"{script} has no {plain}"
        text = text.replace(plain, re.sub(r"{(\w+)}", r"penstock.feed(\1, device)", loop))
    sys.argv, sys.path[0] = [script, *options], os.path.dirname(script)
    exec(compile(text, script, "exec"), names)
    sys.exit(f"the program ended after {done} steps")


def measure(name, arguments, with_penstock):
    """Steps/s and GPU busy in percent (NaN: no GPU) of one run; or why there are none."""
    repository, script, _, options, loop, _ = PROGRAMS[name]
    folder, result = arguments.checkouts / repository, arguments.out / "result.json"
    result.unlink(missing_ok=True)
    own = [sys.executable, __file__, "--inside", folder / script, arguments.seconds, result]
    own += [loop if with_penstock and loop else "", *options.format(out=arguments.out, folder=folder).split()]
    command = [*(RUN if with_penstock and not loop else []), *map(str, own), *arguments.options.split()]
    paths = {**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, cwd=(folder / script).parent, env=paths, capture_output=True, text=True)
    return json.loads(result.read_text()) if result.exists() else (done.stderr.strip() or "?").splitlines()[-1][:120]


def examine(name, arguments):
    """The medians as the program is, and with penstock, measured in turns; or why there are none."""
    repository, *_, data = PROGRAMS[name]
    if not (arguments.checkouts / repository).exists():
        return f"there is no {repository}"
    if data:
        write_data(data, arguments.checkouts / repository)
    runs = [measure(name, arguments, turn % 2 == 1) for turn in range(2 * arguments.rounds)]
    if failed := [run for run in runs if isinstance(run, str)]:
        return failed[0]
    return [[statistics.median(figures) for figures in zip(*half, strict=True)] for half in (runs[::2], runs[1::2])]


def pack(checkouts, target):
    for repository, script, more, *_ in PROGRAMS.values():
        for path in [checkouts / repository / script, *(checkouts / repository).glob(more or "LICENSE*")]:
            there = target / path.relative_to(checkouts)
            there.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, there, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.pyc"))
            else:
                shutil.copy(path, there)


def draw_bars(rows, file):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 0.5 * len(rows) + 1), layout="constrained")
    gains = [after[0] / before[0] for before, after in rows.values()]
    axes.bar_label(axes.barh(list(rows), gains, color="#00897b"), [f" {gain:.2f}x" for gain in gains])
    axes.invert_yaxis()
    axes.set_xlabel("steps/s with penstock, if they are 1 as the program is")
    figure.savefig(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=PROGRAMS)
    parser.add_argument("--pack", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=lambda text: pathlib.Path(text).resolve(), default="build/gallery")
    parser.add_argument("--options", default="", help="more options for the programs")
    arguments = parser.parse_args()
    if arguments.pack:
        return pack(arguments.checkouts, arguments.pack)
    arguments.out.mkdir(parents=True, exist_ok=True)
    table = "| program | by | steps/s | with penstock | | GPU busy | with penstock |\n" + "| --- " * 7 + "|\n"
    rows = {}
    for name in arguments.only:
        row = examine(name, arguments)
        if isinstance(row, list):
            rows[name] = row
            (rate, busy), (fed_rate, fed_busy) = row
            row = f"{rate:.2f} | {fed_rate:.2f} | {fed_rate / rate:.2f}x | {busy:.0f} % | {fed_busy:.0f} %"
        table += f"| {name} | {'one line' if PROGRAMS[name][4] else '`penstock run --feed`'} | {row} |\n"
        print(table.splitlines()[-1], flush=True)
        (arguments.out / "gallery.md").write_text(table)
    if rows:
        draw_bars(rows, arguments.out / "gallery.svg")


if __name__ == "__main__":
    inside(*sys.argv[2:]) if sys.argv[1:2] == ["--inside"] else main()
