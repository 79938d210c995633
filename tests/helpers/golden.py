"""Files of today's formats that later versions must be able to read.

``python tests/helpers/golden.py`` (with ``src`` and ``tests`` on PYTHONPATH) writes those of the lab again; do that
only if a format changes on purpose.
"""

import json
import shutil
import tempfile
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"
PLAIN = dict(task="digits", hidden=2, examples=64, epochs=3, batch_size=16, rates=True)
SHARDED = dict(task="digits", hidden=4, examples=64, epochs=3, batch_size=16, optimizer="amsbound")
FINISHED = dict(task="digits", hidden=2, examples=64, epochs=1, batch_size=16)


def load(name):
    return json.loads((GOLDEN / name).read_text())


def has_keys(value, golden):
    """Whether ``value`` has all keys of ``golden``, in nested objects and in every element of lists."""
    if isinstance(golden, list):
        return all(has_keys(item, golden[0]) for item in value)
    return golden is None or (golden.keys() <= value.keys() and all(has_keys(value[k], v) for k, v in golden.items()))


def _write() -> None:
    """A run folder with a checkpoint, a sharded one, a ledger and a suggestion; and how the stopped runs end."""
    from dynabound.lab.training.suggested import suggest_rates

    from dynabound.lab.ledger import Entry, Ledger
    from dynabound.lab.spec import RunSpec
    from dynabound.lab.store import Store
    from dynabound.lab.studies import suggestions
    from dynabound.lab.train import train
    from helpers import worker
    from helpers.runs import without_seconds

    for name in ("plain", "sharded", "ledger", "suggestions"):
        shutil.rmtree(GOLDEN / name, ignore_errors=True)
    store, finished = Store(GOLDEN / "plain"), RunSpec(**FINISHED)
    train(finished, store)
    Ledger(GOLDEN / "ledger").add([Entry.of(finished, store)])
    asked = iter(range(6))
    train(RunSpec(**PLAIN), store, stop=lambda: next(asked, None) is None)
    worker.train_in_ranks(SHARDED, GOLDEN / "sharded", fsdp=True, stop_after=1)
    suggestions.write(finished, suggest_rates(finished, steps=200), store)
    with tempfile.TemporaryDirectory() as folder:
        ends = {
            "plain": without_seconds(train(RunSpec(**PLAIN), Store(folder)).metrics),
            "sharded": without_seconds(train(RunSpec(**SHARDED), Store(folder)).metrics),
        }
    for lock in GOLDEN.rglob("lock"):  # it names this machine
        lock.unlink()
    (GOLDEN / "resumed.json").write_text(json.dumps(ends, indent=1) + "\n")


if __name__ == "__main__":
    _write()
