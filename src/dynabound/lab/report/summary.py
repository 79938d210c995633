"""Stored runs -> numbers and verdicts -> figures -> one HTML page. It reads the store and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynabound._files import write_whole
from dynabound.lab.errors import LabError
from dynabound.lab.report import figures
from dynabound.lab.report import html as page
from dynabound.lab.report import learning_rates as rates
from dynabound.lab.report.claims import CLAIMS, NOT_REPRODUCED, REPRODUCED, UNDECIDED, overall
from dynabound.lab.report.results import Curve, curves, mean, spread
from dynabound.lab.store import ENDED, Store
from dynabound.lab.studies import theory as theorems
from dynabound.lab.studies.recipes import FIXED, REFERENCE, Study

__all__ = ["build", "write"]


def build(studies: Sequence[Study], scale: str, out: Path) -> dict[str, Any]:
    """All that the page shows, as plain data; ``out`` is the folder of ``dynabound reproduce``."""
    store = Store(out / "runs")
    reports = [_theory(study, out) if not study.rows else _study(study, scale, store) for study in studies]
    return {"scale": scale, "out": str(out), "studies": reports}


def write(report: dict[str, Any], out: Path) -> Path:
    """Draw the figures, then write the page; its path."""
    folder: Path = out / report["scale"]
    try:
        for study in report["studies"]:
            pictures = folder / "figures" if study["name"] != "theory" else out / "theory"
            for figure in study["figures"]:
                if study["name"] != "theory":
                    figures.save(figure["name"], figure["data"], pictures)
                figure["svg"] = (pictures / f"{figure['name']}.svg").read_bytes()
        path = folder / "report.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, page.render(report).encode())
        plain = {
            **report,
            "studies": [{k: v for k, v in study.items() if k != "figures"} for study in report["studies"]],
        }
        write_whole(folder / "report.json", (json.dumps(plain, indent=1, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise LabError(f"{error.filename}: cannot be written ({error.strerror}); give another --out") from None
    return path


def _study(study: Study, scale: str, store: Store) -> dict[str, Any]:
    found = curves(study, scale, store)
    panels: dict[str, dict[str, Curve]] = {}
    for curve in found:
        panels.setdefault(curve.row.panel, {})[curve.row.label] = curve
    extra = _rates(study, found, store)
    checks = CLAIMS[study.name](panels, extra)
    return {
        "name": study.name,
        "title": study.title,
        "claim": study.claim,
        "verdict": overall(checks),
        "checks": [vars(check) for check in checks],
        "tables": [{"name": name, "metric": _metric(methods), "rows": _table(list(methods.values()))}
                   for name, methods in panels.items()],
        "runs": _count(found),
        "failures": _failures(found),
        "settings": _settings(study, scale, found),
        "figures": _figures(study, found, panels, extra),
    }  # fmt: skip


def _rates(study: Study, found: list[Curve], store: Store) -> dict[str, Any]:
    if study.name == "learning-rates":
        each = {curve.row.label: rates.sampled(curve, store) for curve in found}
        return {label: value for label, value in each.items() if value}
    return rates.evolution(found[0]) if study.name == "rate-evolution" else {}


def _metric(methods: dict[str, Curve]) -> str:
    return "perplexity" if next(iter(methods.values())).spec.text else "accuracy (%)"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _table(methods: list[Curve]) -> list[dict[str, Any]]:
    """A row per method: final and best metric, rank, and the way to the level of the best Adam run."""
    text = methods[0].spec.text
    ranks = _ranks([curve for curve in methods if curve.row.label != REFERENCE])
    adam = next((curve.final() for curve in methods if curve.row.label == "Adam"), [])
    level = (min if text else max)(adam, default=None)
    rows = []
    for curve in methods:
        reached = [seed.reached(level) for seed in curve.finished] if level is not None else []
        there = [pair for pair in reached if pair]
        whole = bool(there) and len(there) == len(curve.seeds)
        rows.append({
            "method": curve.row.label,
            "settings": _step_size(curve),
            "final": _finite(mean(curve.final())),
            "final_spread": _finite(spread(curve.final())),
            "best": _finite(mean(curve.best())),
            "best_spread": _finite(spread(curve.best())),
            "train": _finite(mean(curve.final("train"))),
            "rank": ranks.get(curve.row.label),
            "level": level,
            "epochs": _finite(mean([float(epoch) for epoch, _ in there])) if whole else None,
            "seconds": _finite(mean([seconds for _, seconds in there])) if whole else None,
            "reached": f"{len(there)} of {len(curve.seeds)}",
            "states": [seed.state for seed in curve.seeds],
        })  # fmt: skip
    return rows


def _ranks(methods: list[Curve]) -> dict[str, int]:
    """Places by the mean at the end, shared by equals; whoever diverged is last, and who has no result has none."""
    losses = {
        curve.row.label: math.inf if curve.diverged else round(mean(curve.final()) * (1 if curve.spec.text else -1), 6)
        for curve in methods
        if curve.finished or curve.diverged
    }
    return {label: 1 + sum(other < loss for other in losses.values()) for label, loss in losses.items()}


def _step_size(curve: Curve) -> str:
    options = {key: value for key, value in curve.spec.options.items() if key in ("betas", "final_lr", "gamma")}
    pairs: list[tuple[str, Any]] = [("lr", f"{curve.spec.lr:g}"), *options.items()]
    text = ", ".join(f"{key} {value}" for key, value in pairs)
    if not (curve.search and curve.search.tried):
        return text
    failed = f", {len(curve.lost)} failed" if curve.lost else ""
    return f"{text} (best of {len(curve.search.tried) - len(curve.lost)}{failed})"


def _count(found: list[Curve]) -> dict[str, int]:
    """How many runs are in which state, those of the searches included."""
    counts: dict[str, int] = {}
    for curve in found:
        for seed in (*curve.seeds, *curve.lost):
            counts[seed.state] = counts.get(seed.state, 0) + 1
        if curve.search:
            counts["searched"] = counts.get("searched", 0) + len(curve.search.tried) - len(curve.lost)
            counts["waiting"] = counts.get("waiting", 0) + len(curve.search.wanted)
    return {state: count for state, count in counts.items() if count}


def _failures(found: list[Curve]) -> list[dict[str, str]]:
    """Runs without a result: those of the curves, and those that a search had to do without."""
    return [
        {"run": seed.spec.name, "method": f"{curve.row.panel}: {curve.row.label}{where}, seed {seed.spec.seed}",
         "state": seed.state, "error": seed.error}
        for curve in found
        for where, seed in [*(("", seed) for seed in curve.seeds),
                            *((f", search at lr {seed.spec.lr:g}", seed) for seed in curve.lost)]
        if seed.state not in ENDED
    ]  # fmt: skip


def _settings(study: Study, scale: str, found: list[Curve]) -> list[str]:
    lines = []
    for workload in dict.fromkeys(curve.row.workload for curve in found):
        mine = [curve for curve in found if curve.row.workload == workload]
        fields = mine[0].spec.to_dict()
        keys = ("task", "model", "width", "hidden", "layers", "dropout", "bptt", "clip", "batch_size", "epochs",
                "decay_after", "weight_decay", "examples")  # fmt: skip
        shown = [f"{key.replace('_', ' ')} {fields[key]:g}" if isinstance(fields[key], float) else
                 f"{key.replace('_', ' ')} {fields[key]}" for key in keys if fields[key] is not None]  # fmt: skip
        lines.append(f"{workload}: {', '.join(shown)}; {study.seeds[scale]} seed{'s'[: study.seeds[scale] > 1]}")
        if any(curve.row.tuned(scale) for curve in mine):
            lines.append("step sizes: the paper's search, on seed 0; AdaBound and AMSBound keep their defaults")
        elif any(curve.row.lr is None for curve in mine):
            found_before = workload in FIXED[scale]
            how = (
                "found by the paper's search beforehand" if found_before else "defaults, not searched for at this scale"
            )
            lines.append(f"step sizes: {how}; AdaBound and AMSBound keep their defaults")
        pace = mine[0].row.pace(scale)
        if pace != 1:
            lines.append(
                f"bounds: γ is {pace:g} times the paper's, for an epoch of all data has so many times fewer steps "
                "here: the bounds close in as fast per epoch"
            )
    return list(dict.fromkeys(lines))


def _where(found: list[Curve]) -> str:
    """What a figure shows, if that is not what the paper's shows."""
    spec = found[0].spec
    return "" if spec.scale == "paper" else f" — here {spec.scale} scale, {_NAMES.get(spec.task, spec.task)}"


_NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "ptb": "Penn Treebank", "pydoc": "the Python reference"}


def _figures(
    study: Study, found: list[Curve], panels: dict[str, dict[str, Curve]], extra: dict[str, Any]
) -> list[dict[str, Any]]:
    title = f"{study.title}{_where(found)}"
    if study.name == "learning-rates":
        data: dict[str, Any] = {"kind": "heatmaps", "methods": extra}
        return [_figure(study.name, title, data)] if extra else []
    if study.name == "rate-evolution":
        return [_figure(study.name, title, {"kind": "evolution", **extra})] if extra else []
    shown = [
        {"name": name, "curves": [
            {"label": label, "diverged": curve.diverged,
             **{split: [seed.series(split) for seed in curve.finished] for split in study.splits}}
            for label, curve in methods.items()]}
        for name, methods in panels.items()
    ]  # fmt: skip
    shared = len({tuple(methods) for methods in panels.values()}) == 1
    data = {"kind": "curves", "panels": shown, "splits": list(study.splits), "shared_legend": shared,
            "metric": _metric(next(iter(panels.values())))}  # fmt: skip
    result = [_figure(study.name, title, data)]
    if study.name == "final-step-size":
        title = f"SGDM and AdaBound side by side{_where(found)}"
        result.append(_figure("final-step-size-compared", title, {"kind": "steps", "panels": shown}))
    return result


def _figure(name: str, title: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "title": title, "data": {"title": title, **data}}


def _theory(study: Study, out: Path) -> dict[str, Any]:
    folder = out / "theory"
    found = {name: theorems.read(folder, name) for name in theorems.NAMES}
    checks, settings, pictures = [], [], []
    for name, part in found.items():
        if part is None:
            continue
        for verdict in part["verdicts"]:
            where = f" ({verdict['settings']})" if verdict["settings"] else ""
            word = "holds" if verdict["holds"] else "fails"
            checks.append({"claim": f"{name}: {verdict['claim']}{where}", "measured": verdict["measured"],
                           "verdict": word})  # fmt: skip
        settings.append(f"{name}: " + ", ".join(f"{key} {value}" for key, value in part["settings"].items()))
        pictures.append({"name": name, "title": part["title"]})
    words = {check["verdict"] for check in checks}
    missing = [name for name, part in found.items() if part is None]
    verdict = NOT_REPRODUCED if "fails" in words else UNDECIDED if missing else REPRODUCED
    return {
        "name": study.name, "title": study.title, "claim": study.claim, "verdict": verdict, "checks": checks,
        "tables": [], "runs": {"played": len(found) - len(missing)}, "settings": settings, "figures": pictures,
        "failures": [{"run": name, "method": name, "state": "new", "error": ""} for name in missing],
    }  # fmt: skip
