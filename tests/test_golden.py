"""What must not change between versions: names of runs, stored files, JSON keys, options of the command line.

Those of the lab in ``golden/`` are written by ``helpers/golden.py``; the others are never regenerated.
"""

import json
import shutil

import pytest
import torch
import typer.main
from typer.testing import CliRunner

from dynabound import AdaBound, cli, lens
from dynabound.lab.ledger import Entry, Ledger
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store
from dynabound.lab.studies import suggestions
from dynabound.lab.train import train
from helpers.golden import FINISHED, GOLDEN, PLAIN, SHARDED, has_keys, load

STOPPED = {"plain": (PLAIN, 7), "sharded": (SHARDED, 4)}


@pytest.mark.parametrize("entry", load("run_names.json"), ids=lambda entry: entry["name"])
def test_runs_keep_their_names(entry):
    assert RunSpec.from_dict(entry["fields"]).name == entry["name"]


@pytest.mark.parametrize("kind", ["plain", pytest.param("sharded", marks=pytest.mark.processes)])
def test_stored_runs_resume(kind, tmp_path):
    shutil.copytree(GOLDEN / kind, tmp_path / kind)
    fields, step = STOPPED[kind]
    spec = RunSpec(**fields)
    run = Store(tmp_path / kind).run(spec)
    assert run.spec() == spec
    assert run.status() == {"state": "stopped", "step": step}
    result = train(spec, Store(tmp_path / kind))
    assert len(run.environment()) == 2, "the run was not resumed"
    expected = load("resumed.json")[kind]
    assert len(result.metrics) == len(expected)
    for line, golden in zip(result.metrics, expected, strict=True):
        assert golden.keys() <= line.keys()
        for key in golden.keys() - {"rates"}:
            # Another CPU or torch may round differently; two ranks reduce in another order than one.
            assert line[key] == pytest.approx(golden[key], rel=1e-4, abs=1e-6), key


def test_finished_runs_are_read(tmp_path):
    shutil.copytree(GOLDEN / "plain", tmp_path / "plain")
    run = Store(tmp_path / "plain").run(RunSpec(**FINISHED))
    assert run.status() == {"state": "finished", "epochs": 1, "step": 4}
    assert [line["epoch"] for line in run.metrics()] == [1]
    assert run.load_checkpoint()["step"] == 4


def test_ledgers_and_suggestions_are_read():
    spec = RunSpec(**FINISHED)
    (entry,) = Ledger(GOLDEN / "ledger").entries().values()
    assert entry == Entry.of(spec, Store(GOLDEN / "plain"))
    found = suggestions.read(spec, Store(GOLDEN / "plain"))
    assert 0 < found.lr < found.final_lr


def test_lens_files_load():
    history = lens.load(GOLDEN / "lens.npz")
    assert list(history.steps) == [1, 3, 5, 7, 8]
    assert history.optimizer_name == "AdaBound"


def test_optimizer_checkpoints_load():
    state = torch.load(GOLDEN / "optimizer.pt", weights_only=True)["optimizer"]
    params = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((8, 6), (8,), (3, 8), (3,))]
    optimizer = AdaBound(params)
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["gamma"] == 0.1
    assert optimizer.state[params[0]]["step"] == 8


def options(command, path=()):
    """From a command's name to the options that it takes."""
    found = {" ".join(path): {option for param in command.params for option in (*param.opts, *param.secondary_opts)}}
    if hasattr(command, "list_commands"):
        with command.make_context("dynabound", [], resilient_parsing=True) as context:
            for name in command.list_commands(context):
                found |= options(command.resolve_command(context, [name])[1], (*path, name))
    return found


def test_commands_keep_their_options():
    now = options(typer.main.get_command(cli.app))
    for command, golden in load("options.json").items():
        assert set(golden) <= now[command], command


def test_json_output_keeps_its_keys():
    arguments = ["runs", "show", RunSpec(**PLAIN).name, "--out", str(GOLDEN / "plain"), "--json"]
    show = json.loads(CliRunner().invoke(cli.app, arguments).stdout)
    assert has_keys(show, load("json_keys.json")["runs show --json"])
