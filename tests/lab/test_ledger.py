"""The ledger: runs are read as they were written, bit for bit; damage is reported; its runs are not trained again."""

import dataclasses
import json
import shutil

import pytest

from dynabound.lab import ledger as ledgers
from dynabound.lab.errors import LabError
from dynabound.lab.ledger import Entry, Ledger
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import Store, with_checksum
from dynabound.lab.studies import plan, recipes, suggestions
from dynabound.tuning import Suggestion
from helpers import tiny_studies as cases


@pytest.fixture
def ledger(tiny, done, tmp_path):
    """The ledger of the tiny study."""
    ledger = Ledger(tmp_path / "results")
    assert ledgers.add_runs([tiny], "demo", Store(done / "runs"), ledger) == 7 * 3
    return ledger


def files(run):
    return {path.name: path.read_bytes() for path in run.folder.iterdir() if path.suffix in (".json", ".jsonl")}


def test_stored_runs_are_read_unchanged(tiny, done, ledger, tmp_path):
    stored, taken = Store(done / "runs"), Store(tmp_path / "runs")
    assert ledgers.import_runs([tiny], "demo", taken, ledger) == 7 * 3
    assert [files(run) for run in sorted(taken.runs(), key=lambda run: run.name)] == [
        files(run) for run in sorted(stored.runs(), key=lambda run: run.name)
    ]
    engine = cases.InProcess()
    cases.complete([tiny], taken, engine)
    assert engine.ran == [], "nothing is trained"
    assert ledgers.import_runs([tiny], "demo", taken, ledger) == 0


def test_it_is_sorted_text_that_grows_by_lines(tiny, done, ledger):
    (path,) = ledger.root.iterdir()
    assert path.name == "demo-digits-perceptron.jsonl"
    before = path.read_text().splitlines()
    names = [json.loads(line)["run"] for line in before]
    assert names == sorted(names)
    assert len(names) == 7 * 3
    assert ledgers.add_runs([tiny], "demo", Store(done / "runs"), ledger) == 0
    old = next(iter(ledger.entries().values()))
    new = dataclasses.replace(old, spec=dataclasses.replace(old.spec, seed=99))
    assert ledger.add([new, new]) == 1
    after = path.read_text().splitlines()
    assert [line for line in after if line in before] == before
    assert len(after) == len(before) + 1


def test_a_run_that_was_begun_here_takes_over_the_ledger_s_sessions(ledger, tmp_path):
    entry, store = next(iter(ledger.entries().values())), Store(tmp_path / "runs")
    with store.run(entry.spec).lock():
        store.run(entry.spec).begin(entry.spec, {"cpu": "mine"})
    for _ in range(2):
        entry.restore(store)
        assert [session["cpu"] for session in store.run(entry.spec).environment()] == [
            session["cpu"] for session in entry.environment
        ]


def test_a_run_that_is_there_is_not_replaced(ledger):
    old = next(iter(ledger.entries().values()))
    changed = dataclasses.replace(old, metrics=[{**line, "seconds": 1e9, "cpu_seconds": 1e9} for line in old.metrics])
    assert ledger.add([changed]) == 0
    assert ledger.entries()[old.spec.name] == old


def test_unfinished_runs_stay_out(tiny, tmp_path):
    store, ledger = Store(tmp_path / "runs"), Ledger(tmp_path / "results")
    spec = plan.plan([tiny], "demo", plan.StoredRuns(store))[0].spec
    with store.run(spec).lock():
        store.run(spec).write_status("failed", error="")
    assert ledgers.add_runs([tiny], "demo", store, ledger) == 0
    with pytest.raises(LabError, match=r"results: has no runs; fill it with: dynabound reproduce --add-to"):
        ledger.require()


def test_a_run_without_its_environment_stays_out_and_leaves_the_ledger_readable(tiny, done, tmp_path, caplog):
    shutil.copytree(done / "runs", tmp_path / "runs")
    store, ledger = Store(tmp_path / "runs"), Ledger(tmp_path / "results")
    damaged = store.runs()[0]
    (damaged.folder / "environment.json").write_text("x")
    assert ledgers.add_runs([tiny], "demo", store, ledger) == 7 * 3 - 1
    assert damaged.name not in ledger.entries()
    assert f"run {damaged.name}: is damaged (it does not say what it was trained on)" in caplog.text


def test_a_search_is_taken_step_by_step(tiny, tmp_path, monkeypatch):
    """Its later runs depend on the earlier ones: the whole search is taken, and nothing else."""
    monkeypatch.setitem(recipes.TUNED, "demo", ("perceptron",))
    rows = tuple(row for row in tiny.rows if row.label == "AdaGrad")
    study = recipes.Study("mnist", "", "", rows, seeds={"demo": 2})
    store, ledger = Store(tmp_path / "runs"), Ledger(tmp_path / "results")
    cases.complete([study], store, cases.InProcess())
    added = ledgers.add_runs([study], "demo", store, ledger)
    assert added == len(store.runs()) > 6
    other = Store(tmp_path / "again" / "runs")
    assert ledgers.import_runs([study], "demo", other, ledger) == added
    engine = cases.InProcess()
    cases.complete([study], other, engine)
    assert engine.ran == []


SUGGESTION = Suggestion.from_dict({
    **{field.name: None for field in dataclasses.fields(Suggestion)},
    "lr": 0.01, "final_lr": 0.3, "gamma": 0.02, "cost": 40, "steps": 200, "trials": [], "reasons": {}, "start": [2.3],
    "notes": [], "given": {},
})  # fmt: skip


def test_suggestions_are_kept_too(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(recipes, "SUGGESTED", ("demo",))
    store, ledger = Store(tmp_path / "runs"), Ledger(tmp_path / "results")
    missing = suggestions.missing([tiny], "demo", store)
    ledger.add([], dict.fromkeys(missing, SUGGESTION))
    assert len(missing) == 2
    ledgers.import_runs([tiny], "demo", store, ledger)
    assert [suggestions.read(spec, store) for spec in missing] == [SUGGESTION, SUGGESTION]
    again = Ledger(tmp_path / "again")
    assert ledgers.add_runs([tiny], "demo", store, again) == 2
    path = "suggestions.jsonl"
    assert (again.root / path).read_bytes() == (ledger.root / path).read_bytes()


DAMAGE = {
    "a changed digit": (lambda line: line.replace('"step":6', '"step":7', 1), "its checksum does not match"),
    "a lost end": (lambda line: line[:300], "is not JSON"),
    "no run": (lambda line: "[]", "holds a list"),
    "no checksum": (lambda line: json.dumps(rest(line)), "its checksum does not match"),
    "another name": (lambda line: sign(line, run="0" * 16), "is the spec of run"),
    "a wrong spec": (lambda line: sign(line, spec={"task": "mnist", "lr": -1}), "is the spec of run"),
    "a state": (lambda line: sign(line, state="running"), "it has 3 of 3 epochs and is running"),
    "epochs": (lambda line: sign(line, metrics=two_epochs(line)), "it has 2 of 3 epochs and is finished"),
    "no machine": (lambda line: sign(line, environment=[]), "does not say what it was trained on"),
}


def two_epochs(line):
    return {key: column[:2] for key, column in json.loads(line)["metrics"].items()}


def rest(line):
    return {key: value for key, value in json.loads(line).items() if key != "sha256"}


def sign(line, **changes):
    return json.dumps(with_checksum({**rest(line), **changes}))


@pytest.mark.parametrize(("damage", "reason"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_one_line_with_the_remedy(damage, reason, ledger):
    (path,) = ledger.root.iterdir()
    lines = path.read_text().splitlines()
    lines[4] = damage(lines[4])
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(LabError) as caught:
        ledger.entries()
    message = str(caught.value)
    assert message.startswith(f"{path}, line 5: is damaged (")
    assert reason in message
    assert message.endswith(f"restore the file from its repository (git checkout -- {path}), or delete the line")
    assert "\n" not in message


@pytest.mark.parametrize("changes", [{"suggestion": {}}, {"suggestion": None}])
def test_a_damaged_suggestion_is_named_too(changes, tmp_path):
    ledger = Ledger(tmp_path)
    ledger.add([], {RunSpec("digits"): SUGGESTION})
    path = tmp_path / "suggestions.jsonl"
    given = rest(path.read_text())
    path.write_text(json.dumps(with_checksum({**given, **changes})))
    with pytest.raises(LabError, match="line 1: is damaged"):
        ledger.suggestions()


def test_a_run_that_diverged_at_once_has_no_metrics(tmp_path):
    entry = Entry(RunSpec("digits"), "diverged", [], environment=[{"torch": "2"}], step=3)
    ledger = Ledger(tmp_path / "results")
    ledger.add([entry])
    assert ledger.entries() == {entry.spec.name: entry}
    entry.restore(Store(tmp_path / "runs"))
    assert Store(tmp_path / "runs").run(entry.spec).status() == {"state": "diverged", "epochs": 0, "step": 3}


def test_a_file_is_not_a_ledger(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match="is not a folder; a ledger is a folder of"):
        Ledger(tmp_path / "file")
