"""The ledger: ended runs as plain text that a repository can keep and anyone can check.

A folder of JSON-lines files. ``SCALE-TASK-MODEL.jsonl`` has the runs of a network, ``suggestions.jsonl`` the suggested
step sizes that some of them depend on. A line is one run: its spec, state, metrics (a list per column), the sessions it
was trained in, and a checksum of the line. Lines are sorted by the name of the run, so that additions are small diffs.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynabound._files import read_regular, write_whole
from dynabound.lab.checkpoints.contents import check_metrics, check_result
from dynabound.lab.checksums import is_number, parse_json, signed, verified
from dynabound.lab.errors import DamagedError, LabError
from dynabound.lab.spec import RunSpec
from dynabound.lab.store import ENDED, Store
from dynabound.tuning import Suggestion

__all__ = ["Entry", "Ledger", "Suggested"]

log = logging.getLogger(__name__)
_SUGGESTIONS = "suggestions.jsonl"


@dataclass(frozen=True)
class Entry:
    """A run that has ended."""

    spec: RunSpec
    state: str
    step: int
    metrics: list[dict[str, Any]]
    environment: list[dict[str, Any]]

    @property
    def file(self) -> str:
        """The name of the file that has its line."""
        spec = self.spec
        return f"{spec.scale}-{spec.task}-{spec.model}{f'-{spec.layers}' if spec.layers else ''}.jsonl"

    @classmethod
    def of(cls, spec: RunSpec, store: Store) -> Entry:
        """The entry of a run in ``store`` that has ended."""
        run = store.run(spec)
        status = run.status()
        return cls(spec, status["state"], status.get("step", -1), run.metrics(), run.environment())

    def restore(self, store: Store) -> None:
        """Write the run into ``store``, without a checkpoint."""
        run = store.run(self.spec)
        with run.lock():
            run.begin(self.spec, *self.environment, resume=False)
            run.end(self.state, self.metrics, step=self.step)

    def to_dict(self) -> dict[str, Any]:
        """The fields of a line."""
        columns = {key: [line.get(key) for line in self.metrics] for key in (self.metrics[0] if self.metrics else ())}
        return {
            "run": self.spec.name,
            "spec": self.spec.to_dict(),
            "state": self.state,
            "step": self.step,
            "metrics": columns,
            "environment": self.environment,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Entry:
        """The entry of a line; DamagedError if the line is not valid."""
        spec = _spec(fields)
        state, step, columns, sessions = (fields.get(key) for key in ("state", "step", "metrics", "environment"))
        if state not in ENDED or type(step) is not int or step < 0:
            raise DamagedError("its state is not that of a run that has ended")
        if not isinstance(columns, dict) or not all(isinstance(column, list) for column in columns.values()):
            raise DamagedError("its metrics are not columns")
        if len({len(column) for column in columns.values()}) > 1:
            raise DamagedError("its metrics are columns of different lengths")
        metrics = check_metrics(
            [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        )
        check_result(spec, state, metrics)
        if not isinstance(sessions, list) or not sessions or not all(isinstance(each, dict) for each in sessions):
            raise DamagedError("it does not say what it was trained on")
        return cls(spec, state, step, metrics, sessions)


@dataclass(frozen=True)
class Suggested:
    """Step sizes that were suggested for a run."""

    spec: RunSpec
    suggestion: Suggestion

    @property
    def file(self) -> str:
        """The name of the file that has its line."""
        return _SUGGESTIONS

    def to_dict(self) -> dict[str, Any]:
        """The fields of a line."""
        return {"run": self.spec.name, "spec": self.spec.to_dict(), "suggestion": self.suggestion.to_dict()}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Suggested:
        """The entry of a line; DamagedError if the line is not valid."""
        try:
            found = Suggestion.from_dict(fields["suggestion"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"it is not a suggestion ({error})") from error
        if not all(map(is_number, (found.lr, found.final_lr, found.gamma, found.cost))):
            raise DamagedError("its step sizes are not numbers")
        return cls(_spec(fields), found)


class Ledger:
    """A folder of ended runs and suggestions."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        if self.root.exists() and not self.root.is_dir():
            raise LabError(f"{self.root}: is not a folder; a ledger is a folder of .jsonl files")

    def entries(self) -> dict[str, Entry]:
        """All runs, by name; LabError where a line is damaged."""
        paths = [path for path in sorted(self.root.glob("*.jsonl")) if path.name != _SUGGESTIONS]
        return {entry.spec.name: entry for path in paths for entry in _read(path, Entry)}

    def suggestions(self) -> dict[str, Suggested]:
        """All suggestions, by the name of the run with the default step sizes."""
        path = self.root / _SUGGESTIONS
        return {each.spec.name: each for each in _read(path, Suggested)} if path.exists() else {}

    def require(self) -> None:
        """Raise LabError if there is no run."""
        if not self.entries():
            raise LabError(f"{self.root}: has no runs; fill it with: dynabound reproduce --add-to {self.root}")

    def add(self, entries: Iterable[Entry | Suggested]) -> int:
        """Add entries that are not in the ledger yet, and return their number; existing lines never change.

        An entry that could not be read again is left out with a warning: it would make the whole ledger unreadable.
        """
        known = {(entry.file, entry.spec.name) for each in (self.entries(), self.suggestions())
                 for entry in each.values()}  # fmt: skip
        files: dict[str, dict[str, str]] = {}
        for entry in entries:
            if (entry.file, entry.spec.name) in known:
                continue
            try:
                type(entry).from_dict(entry.to_dict())
            except DamagedError as error:
                log.warning("run %s: is damaged (%s) and not added to %s", entry.spec.name, error, self.root)
                continue
            files.setdefault(entry.file, {})[entry.spec.name] = _line(entry)
        for name, lines in files.items():
            self._append(name, lines.values())
        return sum(map(len, files.values()))

    def _append(self, name: str, lines: Iterable[str]) -> None:
        path = self.root / name
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            old = read_regular(path).decode().splitlines() if path.exists() else []
            write_whole(path, "".join(f"{line}\n" for line in sorted([*old, *lines])).encode())
        except OSError as error:
            raise LabError(f"{path}: cannot be written ({error.strerror}); give another folder") from None


def _line(entry: Entry | Suggested) -> str:
    # "run" comes first: sorted lines are sorted by the names of the runs.
    return json.dumps(signed(entry.to_dict()), separators=(",", ":"), allow_nan=False)


def _read(path: Path, kind: Any) -> list[Any]:
    try:
        return _parse(path, kind, read_regular(path))
    except OSError as error:
        raise LabError(f"{path}: cannot be read ({error.strerror or error}); restore it from its repository") from None


@functools.lru_cache(maxsize=64)  # a page of results reads every file five times
def _parse(path: Path, kind: Any, text: bytes) -> list[Any]:
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            found.append(kind.from_dict(verified(parse_json(line, dict))))
        except DamagedError as error:
            raise LabError(
                f"{path}, line {number}: is damaged ({error}); restore the file from its repository "
                f"(git checkout -- {path}), or delete the line"
            ) from None
    return found


def _spec(fields: dict[str, Any]) -> RunSpec:
    """The spec of a line; DamagedError if it is not valid, or if the line has another name than its run."""
    if not isinstance(fields.get("spec"), dict):
        raise DamagedError("it has no spec")
    try:
        spec = RunSpec.from_dict(fields["spec"])
    except (LabError, TypeError, ValueError) as error:
        raise DamagedError(f"its spec is wrong: {error}") from error
    if fields.get("run") not in spec.names:
        raise DamagedError(f"it is named {fields.get('run')!r}, and its spec is that of run {spec.name}")
    return spec
