"""What ``dynabound reproduce --dry-run`` and ``--plan`` print."""

from __future__ import annotations

from typing import Any

from dynabound.cli.tables import echo, echo_json, print_table, size_text, time_text
from dynabound.lab.spec import describe
from dynabound.lab.store import ENDED
from dynabound.lab.studies import cost
from dynabound.lab.studies import plan as plans

__all__ = ["print_dry_run", "print_plan"]


def print_dry_run(planned: list[plans.Planned], theory: list[str] | None, scale: str, as_json: bool) -> None:
    """Print what would be run; ``theory`` lists the theory studies to run, None if they were not asked for."""
    left = [run for run in planned if run.state not in ENDED]
    costs = []
    if scale == "paper":
        costs = cost.estimate([run.spec for run in left], lambda name: echo(f"measuring steps of {name}", err=True))
    if as_json:
        listed = [{"study": p.study, "label": p.label, "run": p.spec.name, "state": p.state, "note": p.note,
                   "spec": p.spec.to_dict()} for p in planned]  # fmt: skip
        echo_json({"runs": listed, "theory": theory, "costs": [{**vars(c), "gpu_hours": c.gpu_hours} for c in costs]})
        return
    for p in planned:
        echo(f"{p.study:16} {p.state:9} {describe(p.spec)}{f'  ({p.note})' if p.note else ''}")
    if theory is not None:
        todo = f"{', '.join(theory)}: to run; all five take about 30 s" if theory else "all done"
        echo(f"{'theory':16} {'new' if theory else 'finished':9} {todo}")
    more = "; a search may add more at its edges" if any(p.note == "search" for p in left) else ""
    echo(f"{len({p.spec.name for p in left})} runs to do of {len({p.spec.name for p in planned})}{more}")
    if costs:
        _print_costs(costs)


def _print_costs(costs: list[cost.Cost]) -> None:
    for c in costs:
        echo(
            f"{c.workload:22} {c.runs:5} runs  {c.steps:12,} steps  {c.flops:8.2e} FLOP  "
            f"{c.gpu_hours:8.1f} GPU hours  {c.seconds / 3600:10,.0f} hours on this CPU"
        )
    flops, hours = sum(c.flops for c in costs), sum(c.gpu_hours for c in costs)
    echo(
        f"total: {flops:.2e} floating-point operations: {hours:,.0f} GPU hours at an assumed "
        f"{cost.GPU_FLOPS / 1e12:g} TFLOP/s and at least {1e3 * cost.STEP_SECONDS:g} ms per step, "
        f"{sum(c.seconds for c in costs) / 3600:,.0f} hours on this CPU"
    )


def print_plan(plan: dict[str, Any], tflops: float, as_json: bool) -> None:
    """Print the estimated time on several numbers of workers."""
    if as_json:
        echo_json({**plan, "tflops": tflops})
        return
    echo(
        f"{plan['runs']} runs to do at {plan['scale']} scale, at most {plan['at_once']} at a time: "
        f"{plan['flops']:.2e} FLOP, {time_text(plan['work_seconds'])} of work, {size_text(plan['bytes'])} of storage "
        f"at the end, and up to {size_text(2 * plan['largest_bytes'])} more per run in progress"
    )
    print_table(
        ("workload", "runs", "parameters", "FLOP", "work", "storage", "times"),
        (
            (w["workload"], w["runs"], f"{w['parameters']:,}", f"{w['flops']:.2e}", time_text(w["seconds"]),
             size_text(w["bytes"]), w["time"]) for w in plan["workloads"]
        ),
    )  # fmt: skip
    print_table(
        ("workers", "takes", "utilisation", "work / workers", "longest chain", "limited by"),
        (
            (s["workers"], time_text(s["makespan"]), f"{s['utilisation']:.0%}", time_text(s["share"]),
             time_text(plan["chain_seconds"]), s["limit"]) for s in plan["schedules"]
        ),
    )  # fmt: skip
    for text in (f"a GPU does {tflops:g} TFLOP/s, and a step takes at least a millisecond", *plan["assumed"]):
        echo(f"assumed: {text}")
