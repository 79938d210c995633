"""The display of many runs."""

import io

from rich.console import Console

from dynabound.cli.progress import Board, board
from dynabound.lab.engines.base import Event
from dynabound.lab.train import Progress
from helpers import tiny_studies as cases

SPECS = cases.specs(3)


def progress(spec, epoch, seconds=None):
    metrics = None if seconds is None else {"seconds": seconds, "test_accuracy": 0.75}
    return Event(spec.name, "running", Progress(spec.name, epoch, 3, 2 * epoch, 6, 0.5, 0.8, metrics))


def tell(shown, *events):
    for event in events:
        shown.listen(event)


def test_the_time_left_is_estimated_from_measured_epochs():
    shown = Board(Console(file=io.StringIO()), None, jobs=lambda: 2)
    shown.begin(SPECS)
    assert shown.left() == ""
    tell(shown, Event(SPECS[0].name, "started"), progress(SPECS[0], 1, seconds=40.0))
    assert shown.left() == "2:40 left", "2 + 3 + 3 epochs of 40 s, two at a time"
    tell(shown, Event(SPECS[0].name, "finished"))
    assert shown.left() == "2:00 left"


def test_the_time_left_follows_the_number_of_workers():
    jobs = iter((1, 1, 4))
    shown = Board(Console(file=io.StringIO()), None, jobs=lambda: next(jobs))
    shown.begin(SPECS)
    tell(shown, Event(SPECS[0].name, "started"), progress(SPECS[0], 1, seconds=40.0))
    assert shown.left() == "5:20 left"
    tell(shown, Event(SPECS[1].name, "started"))
    assert shown.left() == "1:20 left"


def test_without_a_terminal_every_ended_run_is_a_line():
    out = io.StringIO()
    shown = Board(Console(file=out, highlight=False, markup=False, width=200), None, jobs=lambda: 1)
    shown.begin(SPECS)
    tell(shown, progress(SPECS[0], 3, seconds=1.0), Event(SPECS[0].name, "finished"))
    tell(shown, Event(SPECS[1].name, "retried", error="its process died"))
    tell(shown, Event(SPECS[1].name, "failed", error="ValueError: [bold]no[/bold]"))
    first, again, failed = out.getvalue().splitlines()
    assert first.startswith("[1/3] ")
    assert first.endswith("seed 0: finished, test accuracy 0.75")
    assert again.endswith("seed 1: its process died; starting it again")
    assert failed.startswith("[2/3] ")
    assert failed.endswith("seed 1: failed: ValueError: [bold]no[/bold]")
    assert (shown.ended, shown.failed) == (2, 1)


def test_a_terminal_of_80_columns_is_enough(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with board(lambda: 2) as shown:
        shown.begin(SPECS)
        tell(shown, Event(SPECS[0].name, "started"), Event(SPECS[1].name, "started"))
        tell(shown, progress(SPECS[0], 1, seconds=40.0), progress(SPECS[1], 2))
        console = Console(width=80, file=io.StringIO(), color_system=None)
        console.print(shown._bar)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    assert "0 of 3, 2:40 left" in lines[0]
    assert "epoch 1/3  loss 0.5" in lines[1]
    assert "epoch 2/3" in lines[2]
    assert "…" not in "".join(lines)
