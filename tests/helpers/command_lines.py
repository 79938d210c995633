"""Random command lines: valid, wrong and absurd options of every command, none of which may run for long."""

from __future__ import annotations

import random

WORDS = ["", " ", "x", "nope", "-", "a=b", "=", "\x1b[2J\x1b]0;title\x07", "αβ", "../..", "*", "'", "0" * 400, "digits"]
NUMBERS = ["0", "1", "2", "3", "-1", "0.5", "1e-3", "1e308", "1e-320", "-0", "nan", "inf", "-inf", "x", "", "1_0", "٣",
           "0x10", "1e400", str(2**31), str(2**62), str(2**63), str(10**30)]  # fmt: skip
FOLDERS = ["out", "file/out", "x" * 300, "/" + "y/" * 3000, "/dev/null/x", "/proc/nope", "", "\x1b[31m", "ä/ö"]
DEVICES = ["cpu", "cuda", "cuda:99", "meta", "mps", "hpu", "privateuseone", "nope", "", "cpu:3", "xla"]
TASKS = ["digits", "digits", "digits", "pydoc", "mnist", "ptb", "cifar10", "digit", *WORDS]
MODELS = ["perceptron", "resnet34", "lstm", "densenet", *WORDS]
OPTIMIZERS = ["adam", "sgd", "sgdm-dampened", "adabound", "amsbound", "adamw", "adma", "torch.optim:RAdam",
              "torch.optim:LBFGS", "torch.optim:SparseAdam", "torch.optim:Optimizer", "torch.optim:nope", "nomod:C",
              "..:x", ":", "x:", ":x", "os:system", "helpers.broken:C", "helpers.leaves:C",
              "pytorch_optimizer:AdaHessian", *WORDS]  # fmt: skip
OPT = ["final_lr=0.5", "final_lr=x", "gamma=-1", "gama=1", "betas=0.9,0.99", "betas=0.9", "betas=2,2", "lr=1",
       "params=1", "differentiable=true", "capturable=true", "fused=true", "foreach=true", "maximize=true",
       "amsgrad=true", "dampening=0.5", "momentum=nan", "eps=1e400", "x=" + "(" * 5000, "=1", "final_lr", "a=b=c",
       "nesterov=true", "bounds=linear", "bounds=cubic", "weight_decay=1"]  # fmt: skip
SIZES = [
    "1",
    "4",
    "8",
    *[number for number in NUMBERS if number not in (str(2**31), "3")],
]  # models stay small
LAYERS = ["1", "2", str(10**6), str(2**62), "0", "-1", "0.5", "nan", "x", ""]

SPEC = {
    "--model": MODELS, "--width": ["0.01", "16", "17", "0", "nan", "x"], "--hidden": SIZES, "--layers": LAYERS,
    "--dropout": NUMBERS, "--bptt": NUMBERS, "--clip": NUMBERS, "--batch-size": NUMBERS, "--decay-after": NUMBERS,
    "--weight-decay": NUMBERS, "--examples": ["1", "0", "-1", "x", "64", str(2**62)],
    "--precision": ["float32", "bf16", "fp8", ""], "--scale": ["demo", "huge", ""], "--rates": None,
}  # fmt: skip
RUN = {"--optimizer": OPTIMIZERS, "--lr": NUMBERS, "--opt": OPT, "--seed": NUMBERS}
PLACE = {"--data-dir": FOLDERS, "--device": DEVICES, "--json": None}
ENGINE = {"--engine": ["local", "ray", "slurm", ""], "--jobs": ["0", "-1", str(10**9), "x"], "--address": ["auto", "x"],
          "--cpus-per-run": ["0", "x", "4"], "--gpus-per-run": ["-1", "nan", "0.5"], "--ranks-per-run": ["0", "2"],
          **PLACE}  # fmt: skip
SCALES = ["demo", "laptop", "paper", "huge", ""]
STUDIES = ["mnist", "ptb", "theory", "mnits", "", "cifar10"]
THEORY = ["theorem-1", "theorem-2", "theorem-3", "regret", "counterexample", "theorem-9", ""]
REFUSED = [["--out=/dev/null/x"], ["--device=nope"], ["--nope"], ["--scale=huge"]]
"""One of these is added to what would otherwise start processes."""


def _options(choose: random.Random, table: dict[str, list[str] | None], most: int = 4) -> list[str]:
    chosen = choose.sample(sorted(table), k=choose.randint(0, min(most, len(table))))
    return [name if table[name] is None else f"{name}={choose.choice(table[name] or [''])}" for name in chosen]


def _train(choose: random.Random) -> list[str]:
    own = {"--checkpoint-steps": NUMBERS, "--checkpoint-minutes": NUMBERS, "--quiet": None, "--resume": WORDS}
    words = [
        choose.choice(TASKS),
        *_options(choose, {**SPEC, **RUN, **PLACE, **own}),
        f"--out={choose.choice(FOLDERS)}",
    ]
    words.append(f"--epochs={choose.choice(['1', '1', '1', '0', '-1', 'x', 'nan', str(2**63)])}")
    return ["train", *words, *(() if any(word.startswith("--examples") for word in words) else ["--examples=64"])]


def _tune(choose: random.Random) -> list[str]:
    options = {**SPEC, **ENGINE, "--optimizer": OPTIMIZERS, "--seeds": ["0", "x", str(10**9)]}
    return ["tune", choose.choice(TASKS), *_options(choose, options), *choose.choice(REFUSED)]


def _reproduce(choose: random.Random) -> list[str]:
    options = {**ENGINE, "--scale": SCALES, "--workers": NUMBERS, "--tflops": NUMBERS, "--out": FOLDERS}
    end = choose.choice([*REFUSED, ["--plan", "--scale=demo"], ["--dry-run", "--scale=demo"]])
    return ["reproduce", choose.choice(STUDIES), *_options(choose, options), *end]


def _suggest(choose: random.Random) -> list[str]:
    options = {**SPEC, **PLACE, "--optimizer": OPTIMIZERS, "--steps": ["0", "1", "x"], "--repeats": ["0", "x"]}
    return ["suggest", choose.choice(TASKS), *_options(choose, options), f"--out={choose.choice(FOLDERS)}", "--steps=2"]


def _theory(choose: random.Random) -> list[str]:
    options = {"--alpha": NUMBERS, "--beta1": NUMBERS, "--beta2": NUMBERS, "--C": ["0", "3", "-2", "20", "x"],
               "--seeds": ["0", "1", "2", "-1", "x"], "--scheme": ["sqrt", "constant", "cosine", ""],
               "--final-lr": NUMBERS, "--gamma": NUMBERS, "--out": FOLDERS, "--json": None}  # fmt: skip
    return ["theory", choose.choice(THEORY), *_options(choose, options), f"--T={choose.choice(['1', '50', '0', 'x'])}"]


def _bounds(choose: random.Random) -> list[str]:
    options = {"--lr": NUMBERS, "--final-lr": NUMBERS, "--gamma": NUMBERS, "--certificate": None, "--json": None,
               "--family": ["harmonic", "linear", "exponential", "cubic", ""], "--out": FOLDERS}  # fmt: skip
    return ["bounds", *_options(choose, options)]


def _small(choose: random.Random) -> list[str]:
    run = choose.choice([*WORDS, "abc"])
    out = f"--out={choose.choice(FOLDERS)}"
    return choose.choice([
        ["runs", out, f"--task={choose.choice(TASKS)}", f"--state={run}"], ["runs", "show", run, out],
        ["runs", "remove", run, out], ["runs", run], ["data", "list", f"--data-dir={choose.choice(FOLDERS)}"],
        ["data", "fetch", choose.choice(["digits", "nope", "", "pydoc"])], ["report", choose.choice(STUDIES), out],
        ["bench", choose.choice(WORDS), out], ["bench", "small", "--threads=0", out],
        ["bench", "small", f"--repetitions={choose.choice(['0', '-1', 'x'])}"], ["doctor"], ["--version"], [run],
        [run, "--help"],
    ])  # fmt: skip


def command_line(seed: int) -> list[str]:
    """The command line of that number."""
    choose = random.Random(seed)
    kinds = [_train, _train, _train, _tune, _reproduce, _suggest, _theory, _bounds, _small]
    return choose.choice(kinds)(choose)
