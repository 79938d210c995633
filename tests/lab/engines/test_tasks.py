"""Tasks that are not runs, in processes of their own."""

from functools import partial
from pathlib import Path

import pytest

from dynabound.lab.engines.tasks import run_tasks
from dynabound.lab.errors import LabError
from helpers import deadly

pytestmark = pytest.mark.processes


def test_all_tasks_are_called(tmp_path):
    done = []
    run_tasks([partial(Path.touch, tmp_path / str(n)) for n in range(3)], jobs=2, progress=done.append)
    assert done == [1, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]
    run_tasks([], jobs=2)


def test_a_process_that_dies_is_replaced_once(tmp_path):
    with pytest.raises(LabError, match="a process that prepares the study died; run the same command again"):
        run_tasks([partial(deadly.write_or_die, tmp_path / "none" / "file")], jobs=1)
    run_tasks([partial(deadly.write_or_die, tmp_path / "file")], jobs=1)
    assert (tmp_path / "file").exists()


def test_a_task_that_fails_is_an_error_of_one_line(tmp_path):
    with pytest.raises(LabError, match=r"^FileExistsError: .*") as error:
        run_tasks([partial(Path.mkdir, tmp_path)], jobs=1)
    assert "\n" not in str(error.value)
