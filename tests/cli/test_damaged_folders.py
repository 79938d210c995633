"""A flipped bit never becomes a published number: a damaged run has the numbers of before, or is called damaged."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from dynabound.cli import app
from dynabound.lab.ledger import Entry
from dynabound.lab.store import Store
from dynabound.lab.studies import plan, recipes
from dynabound.lab.train import train
from helpers import tiny_studies
from helpers.clean import assert_clean
from helpers.runs import without_seconds


def flip(place):
    def flipped(body):
        position = int(place * (len(body) - 1))
        return body[:position] + bytes([body[position] ^ 4]) + body[position + 1 :]

    return flipped


DAMAGES = {
    "flipped at the start": flip(0),
    "flipped in the middle": flip(0.5),
    "flipped near the end": flip(0.9),
    "truncated": lambda body: body[: len(body) // 2],
    "emptied": lambda body: b"",
    "deleted": None,
}
FILES = ["spec.json", "status.json", "environment.json", "metrics.jsonl", "checkpoint-*.pt", "checkpoint-*.pt.sha256"]


def invoke(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    message = f"{arguments}\n{result.output}\n{result.exception!r}"
    assert_clean(result, message)
    assert result.exit_code in (0, 1), message
    return result


def listed(out, name):
    return next(row for row in json.loads(invoke("runs", "--json", f"--out={out}/runs").stdout) if row["run"] == name)


def reported(out):
    """Every method's numbers in the report, and the number of runs in each state."""
    (study,) = json.loads(invoke("report", "mnist", "--json", f"--out={out}").stdout.splitlines()[-1])["studies"]
    rows = [row for table in study["tables"] for row in table["rows"]]
    return {row["method"]: [row[key] for key in ("final", "best", "train")] for row in rows}, study["runs"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished study: its folder, and the one run of it that was trained and has all its files."""
    out = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as monkeypatch:
        study = tiny_studies.make_tiny(monkeypatch)
        monkeypatch.setitem(recipes.SEEDS["demo"], "perceptron", 1)
        monkeypatch.setattr("dynabound.lab.report.pages.write_html", lambda report, out: out / "report.html")
        store = Store(out / "runs")
        specs = [planned.spec for planned in plan.plan([study], "demo", plan.StoredRuns(store))]
        trained = train(specs[0], store)
        for spec in specs[1:]:
            environment, step = trained.run.environment(), trained.details["step"]
            other = Entry(spec, "finished", trained.metrics, environment=environment, step=step)
            other.restore(store)
        yield out, trained.run


@pytest.fixture(scope="module")
def before(whole):
    """What the commands say of the whole folder."""
    out, run = whole
    return listed(out, run.name), reported(out), without_seconds(run.metrics())


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_run_has_the_numbers_of_before_or_is_called_damaged(file, damage, whole, before, tmp_path):
    (original, run), (row, (numbers, states), metrics) = whole, before
    out = tmp_path / "out"
    shutil.copytree(original, out)
    (path,) = (out / "runs" / run.name).glob(file)
    path.write_bytes(DAMAGES[damage](path.read_bytes())) if DAMAGES[damage] else path.unlink()

    row_now = listed(out, run.name)
    assert row_now == row or row_now["state"] in ("damaged", "new")

    numbers_now, states_now = reported(out)
    changed = [method for method in numbers if numbers_now[method] != numbers[method]]
    assert all(numbers_now[method] == [None] * 3 for method in changed)
    assert len(changed) <= 1
    assert (states_now == states) == (not changed)

    resumed = invoke("train", f"--resume={run.name}", "--quiet", f"--out={out}/runs")
    if resumed.exit_code == 0:
        assert without_seconds(Store(out / "runs").find(run.name).metrics()) == metrics
        assert listed(out, run.name) == row, "it is repaired"
    else:
        assert "cannot be read" in resumed.stderr or "is damaged" in resumed.stderr
