"""``dynabound theory``."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from dynabound._extras import pip_command
from dynabound.cli import app
from dynabound.theory import studies


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.processes
def test_a_missing_extra_is_named():
    answer = python("""
import sys
sys.modules["numba"] = None
try:
    import dynabound.theory.fast
except ModuleNotFoundError as error:
    print(error)
sys.argv[1:] = ["theory"]
from dynabound.__main__ import main
main()
""")
    message = f"numba is not installed: {pip_command('theory')}"
    assert (answer.stdout, answer.stderr) == (f"{message}\n", f"dynabound: {message}\n")


def run(*arguments):
    return CliRunner().invoke(app, ["theory", *map(str, arguments)])


def test_without_a_name_the_command_lists_the_studies():
    result = run()
    assert result.exit_code == 0
    for name in studies.DEMONSTRATIONS:
        assert name in result.stdout
    assert json.loads(run("--json").stdout).keys() == studies.DEMONSTRATIONS.keys()


@pytest.mark.slow
def test_the_command_prints_verdicts_and_writes(tmp_path):
    result = run("theorem-3", "--seeds", 3, "--T", 200, "--out", tmp_path)
    assert result.exit_code == 0
    assert "supported" in result.stdout
    assert "undecided: T is too small to decide" in result.stdout
    assert "paper l. 250" in " ".join(result.stdout.split())
    assert {path.name for path in tmp_path.iterdir()} == {f"theorem-3.{kind}" for kind in ("json", "png", "svg", "pdf")}


@pytest.mark.slow
def test_the_command_prints_json_alone(tmp_path):
    result = run("theorem-3", "--seeds", 2, "--C", 30, "--T", 500, "--json", "--out", tmp_path)
    (study,) = json.loads(result.stdout)
    assert study["settings"]["period"] == 30
    stored = json.loads((tmp_path / "theorem-3.json").read_text("utf-8"))
    assert study == {key: value for key, value in stored.items() if key not in ("data", "digest", "sha256")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("theorem-9",), "study='theorem-9': must be one of theorem-1"),
        (("theorem-2", "--C", 21), "C=21: must be an even integer"),
        (("theorem-2", "--beta1", 0.8), "beta1=0.8: must be in [0, sqrt(beta2))"),
        (("theorem-1", "--T", 0), "steps=0: must be at least 1"),
        (("theorem-1", "--scheme", "cosine"), "scheme='cosine': must be"),
        (("theorem-3", "--seeds", 0), "seeds=0: must be at least 1"),
        (("counterexample", "--C", 0), "C=0: must be an integer >= 2"),
        (
            ("counterexample", "--seeds", 10**9),
            "with steps=10000, at most 1,000: 10,000,000,000,000 steps in all",
        ),
        (("regret", "--beta2", -1), "beta2=-1.0: must be in [0, 1)"),
        (("regret", "--T", 10**6), "seeds=4: must be at least 1 and, with steps=1000000, at most"),
        (("theorem-1", "--beta2", 0.999999999999), "the theorem allows no C up to 10,000,000"),
        (("theorem-2", "--beta2", 0.999999999999), "the theorem allows no C up to 10,000,000"),
        (("theorem-1", "--T", 10**12), "steps=1000000000000: must be at least 1 and at most 10,000,000"),
        (("theorem-1", "--C", 10**12), "C=1000000000000: must be an integer >= 3 and <= 10,000,000"),
        (("theorem-1", "--beta2", 5, "--C", 1000), "beta2=5.0: must be in [0, 1)"),
        (("theorem-3", "--beta2", -1), "beta2=-1.0: must be in [0, 1)"),
        (("theorem-3", "--C", 0), "C=0: must be an integer >= 2"),
        (("regret", "--C", 20), "C=20: regret does not use it"),
        (("regret", "--T", 10, "--final-lr", 1e308), "gamma=0.001, final_lr=1e+308: the bounds overflow"),
        (("theorem-2", "--T", 10, "--final-lr", 1e308), "gamma=0.5, final_lr=1e+308: the bounds overflow"),
        (("theorem-2", "--T", 10, "--gamma", 1e-320), "gamma=1e-320, final_lr=0.1: the bounds overflow"),
        (("theorem-3", "theorem-2", "--C", 21, "--T", 100), "C=21: must be an even integer"),
    ],
)
def test_bad_input_writes_nothing(arguments, message, tmp_path):
    result = run(*arguments, "--out", tmp_path / "new")
    assert result.exit_code != 0
    assert message in result.output
    assert not (tmp_path / "new").exists()
