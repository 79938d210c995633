"""Ranks that die, raise, are asked to stop and find the run locked."""

import pytest

from dynabound.lab.engines.base import CrashedError
from dynabound.lab.engines.spawn import train_on_ranks
from dynabound.lab.errors import LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import LockedError, Store
from helpers import tiny_studies as cases
from helpers import worker

pytestmark = pytest.mark.processes


def spawn(spec, root, stop=lambda: False, device="cpu"):
    seen = []
    options = {"ranks": 2, "threads": 1, "device": device, "data_dir": None}
    return train_on_ranks(spec, Store(root), progress=seen.append, stop=stop or (lambda: bool(seen)), **options), seen


def test_a_rank_that_dies_stops_the_others(tmp_path):
    spec = RunSpec(**cases.TINY, optimizer="helpers.deadly:RankDies")
    with pytest.raises(CrashedError, match="its rank 1 died"):
        spawn(spec, tmp_path)
    assert not Store(tmp_path).run(spec).locked()


def test_a_rank_that_raises_is_quoted(tmp_path):
    with pytest.raises(LabError, match=r"(?s)deadly\.py.*rank 1 will not"):
        spawn(RunSpec(**cases.TINY, optimizer="helpers.deadly:RankRaises"), tmp_path)


def test_ranks_that_cannot_join_say_why(tmp_path):
    with pytest.raises(LabError, match=r"^device='cuda:99': cannot be used here \(.*\); try cpu$"):
        spawn(RunSpec(**cases.TINY), tmp_path, device="cuda:99")


def test_ranks_stop_together(tmp_path):
    (spec,) = cases.specs(1, epochs=100_000)
    state, seen = spawn(spec, tmp_path, stop=None)
    assert state == "stopped"
    assert Store(tmp_path).run(spec).load_checkpoint()["step"] >= seen[0].step


def test_a_run_that_another_process_trains_is_said_to_be_locked(tmp_path):
    (spec,) = cases.specs(1)
    held, release = worker.CONTEXT.Event(), worker.CONTEXT.Event()
    holder = worker.start(worker.hold_lock, spec.to_dict(), str(tmp_path), held, release)
    held.wait()
    try:
        with pytest.raises(LockedError, match="is being trained by pid"):
            spawn(spec, tmp_path)
    finally:
        release.set()
        holder.join()
