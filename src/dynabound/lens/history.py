"""The record of a lens: statistics of the learning rates over time, as plain data, table, file and figures."""

from __future__ import annotations

import copy
import json
import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from dynabound._checks import check_choice, check_positive, did_you_mean
from dynabound._drawing import html_text
from dynabound._extras import need
from dynabound._files import replacing
from dynabound.lens import draw, table
from dynabound.lens.measure import column_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record: TypeAlias = "dict[str, dict[str, float]]"
"""The statistics of each parameter, by name: one snapshot."""
LIMIT = 512
"""The most snapshots that a history keeps."""
_FORMAT = "dynabound.lens 1"
_SETTINGS = ("optimizer_name", "every", "stride", "extremes", "quantiles", "steps", "shapes")


@dataclass(eq=False)
class History:
    """Snapshots of the rates of every parameter, evenly spread over the steps; at most 512 of them.

    Each snapshot has a row for each parameter (NaN while it has had no gradient) and a column for each of
    :attr:`columns`. ``clipped_low``, ``clipped_high``, ``below`` and ``above`` are shares of the elements: those that
    a bound clips, and those outside the extremes; ``lost`` is the share that the last update, made once more and
    rounded to nearest, would leave unchanged (AdaBound and Adam). ``nan`` and ``inf`` are counts.
    """

    optimizer_name: str
    every: int
    extremes: tuple[float, float]
    quantiles: tuple[float, ...]
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The parameters seen so far, and the shapes of their rates."""
    steps: list[int] = field(default_factory=list)
    patches: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """A few neighbouring rates of each parameter in the last snapshot: a 3×3 kernel, or the first ten of a vector."""
    stride: int = 0
    """The number of steps between snapshots: ``every``, doubled each time that snapshots are dropped."""
    _snapshots: list[Tensor] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self.stride = self.stride or self.every

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the statistics."""
        return column_names(self.quantiles)

    def add(self, step: int, rows: Mapping[str, Sequence[float] | None]) -> None:
        """Append a snapshot, after dropping every second one at the limit; None: the parameter had no gradient yet."""
        if len(self.steps) >= LIMIT:
            self.stride *= 2
            kept = [i for i, old in enumerate(self.steps) if (old - self.steps[0]) % self.stride == 0]
            self.steps = [self.steps[i] for i in kept]
            self._snapshots = [self._snapshots[i] for i in kept]
        missing = [math.nan] * len(self.columns)
        self.steps.append(step)
        self._snapshots.append(torch.tensor([rows.get(name) or missing for name in self.shapes], dtype=torch.float64))

    def values(self) -> Tensor:
        """The whole record as a float64 tensor of snapshots × parameters × columns."""
        self._check_not_empty()
        values = torch.full((len(self.steps), len(self.shapes), len(self.columns)), math.nan, dtype=torch.float64)
        for row, snapshot in zip(values, self._snapshots, strict=True):
            row[: len(snapshot)] = snapshot  # a parameter that was added later has no earlier rates
        return values

    def series(self, layer: str, column: str) -> Tensor:
        """One statistic of one parameter, snapshot by snapshot; ``steps`` are the times."""
        (name,) = self.check_layers([layer])
        check_choice("column", column, self.columns)
        return self.values()[:, list(self.shapes).index(name), self.columns.index(column)]

    def latest(self) -> dict[str, dict[str, float] | None]:
        """The last snapshot: the statistics of each parameter by name, None for one that has had no gradient."""
        rows = self.values()[-1].tolist()
        named = {name: dict(zip(self.columns, row, strict=True)) for name, row in zip(self.shapes, rows, strict=True)}
        return {name: None if math.isnan(row["nan"]) else row for name, row in named.items()}

    def records(self) -> list[dict[str, Any]]:
        """The whole record as one flat dictionary for each snapshot and parameter, for pandas, W&B or MLflow.

        Each has ``step``, ``parameter`` and the :attr:`columns` that exist: a parameter that has had no gradient has
        none, and an optimizer without bounds has no columns for them.
        """
        return [
            {"step": step, "parameter": name}
            | {column: value for column, value in zip(self.columns, row, strict=True) if not math.isnan(value)}
            for step, snapshot in zip(self.steps, self.values(), strict=True)
            for name, row in zip(self.shapes, snapshot.tolist(), strict=True)
            if not math.isnan(row[-1])
        ]

    def check_layers(self, layers: Sequence[str]) -> list[str]:
        """``layers`` as a list of names, if all are known."""
        self._check_not_empty()
        names = [layers] if isinstance(layers, str) else list(layers)
        unknown = [name for name in names if name not in self.shapes]
        if unknown or not names:
            hint = did_you_mean(unknown[0], self.shapes) if unknown else ""
            raise ValueError(f"layers={layers!r}: must be names among {', '.join(self.shapes)}{hint}")
        return names

    def _check_not_empty(self) -> None:
        if not self.steps:
            raise RuntimeError("nothing was recorded: attach the lens before the optimizer's first step()")

    def summary(self) -> dict[str, Any]:
        """The last snapshot as plain data: for each parameter, and for all rates together.

        None means that there is no value: a parameter without gradients has no rates, Adam has no bounds.
        """
        parameters: dict[str, dict[str, Any]] = {}
        for name, row in self.latest().items():
            known = {key: None if row is None or math.isnan(row[key]) else row[key] for key in self.columns}
            shape = self.shapes[name]
            parameters[name] = {"shape": shape, "elements": math.prod(shape), "updated": row is not None, **known}
        rows = [row for row in parameters.values() if row["updated"]]
        elements = sum(row["elements"] for row in rows)
        overall: dict[str, Any] = {"elements": elements}
        for key in ("clipped_low", "clipped_high", "below", "above", "lost"):
            exists = elements > 0 and all(row[key] is not None for row in rows)
            overall[key] = sum(row[key] * row["elements"] for row in rows) / elements if exists else None
        rates = [row[key] for row in rows for key in ("min", "max") if row[key] is not None]
        overall |= {"min": min(rates, default=None), "max": max(rates, default=None)}
        overall |= {key: int(sum(row[key] for row in rows)) for key in ("nan", "inf")}
        return {
            "optimizer": self.optimizer_name,
            "step": self.steps[-1],
            "snapshots": len(self.steps),
            "extremes": self.extremes,
            "all": overall,
            "parameters": parameters,
        }

    def table(self, console: Any = None) -> None:
        """Print the last snapshot as a table, to ``console`` (a rich ``Console``) or the terminal.

        Columns that are zero for every parameter are left out, so that the table fits into 80 columns.
        """
        console = console or need("rich.console").Console()
        console.print(table.build(self.summary(), console.width))

    def _repr_html_(self) -> str:
        return table.html(self.summary()) if self.steps else html_text(f"{type(self).__name__}: no snapshot yet")

    def heatmap(self, layers: Sequence[str] | None = None) -> Figure:
        """The paper's Figure 1: log₁₀ of single rates in the last snapshot; lighter is smaller.

        Args:
            layers: names of parameters. None: nine with 3×3 kernels, from first to last, and the last bias.
        """
        self._check_not_empty()
        if layers is None and not self.patches:
            raise RuntimeError("no parameter has had a gradient, so there is no rate to draw")
        chosen = draw.choose_kernels({name: self.shapes[name] for name in self.patches}) if layers is None else layers
        names = self.check_layers(chosen)
        waiting = [name for name in names if name not in self.patches]
        if waiting:
            raise ValueError(f"layers={layers!r}: {', '.join(waiting)} has had no gradient, so it has no rate")
        patches = {name: self.patches[name] for name in names}
        rows = {name: patch.reshape(-1, patch.shape[-1]).tolist() for name, patch in patches.items()}
        return draw.heatmaps({"": rows}, self._title(), self.extremes)

    def evolution(self, layers: Sequence[str] | None = None, steps_per_epoch: int | None = None) -> Figure:
        """The paper's last figure: minimum, median and maximum of the rates over time, and the band of the bounds.

        Args:
            layers: names of parameters. None: the first and the last weight.
            steps_per_epoch: the number of steps in an epoch, to show the time in epochs.
        """
        if steps_per_epoch is not None:
            check_positive("steps_per_epoch", steps_per_epoch)
        names = self.check_layers(self._ends() if layers is None else layers)
        values, order = self.values(), list(self.shapes)
        panels = {name: dict(zip(self.columns, values[:, order.index(name)].T.tolist(), strict=True)) for name in names}
        times = [step / (steps_per_epoch or 1) for step in self.steps]
        unit = "step" if steps_per_epoch is None else "epoch"
        return draw.evolution(panels, times, unit, f"Learning rates of {self.optimizer_name} over time")

    def _ends(self) -> list[str]:
        """The first and the last parameter that is a matrix or a kernel, of those that have rates."""
        weights = [name for name in self.patches if len(self.shapes[name]) > 1]
        names = weights or list(self.patches) or list(self.shapes)
        return list(dict.fromkeys((*names[:1], *names[-1:])))

    def funnel(self) -> Figure:
        """The range of every parameter's rates in the last snapshot, with the bounds and the extremes."""
        middle = (self.columns[1], self.columns[len(self.quantiles)]) if len(self.quantiles) > 1 else None
        return draw.funnel(self.latest(), middle, self.extremes, self._title())

    def _title(self) -> str:
        return f"Learning rates of {self.optimizer_name} at step {self.steps[-1]:,}"

    def to_tensorboard(self, writer: Any, since: int = 0) -> None:
        """Write the snapshots taken after step ``since`` to a ``SummaryWriter`` of ``torch.utils.tensorboard``."""
        for record in self.records():
            step, name = record.pop("step"), record.pop("parameter")
            for column, value in record.items() if step > since else ():
                writer.add_scalar(f"learning_rate/{name}/{column}", value, step)

    def state_dict(self) -> dict[str, Any]:
        """The record as plain values and tensors, for a checkpoint that ``torch.load`` reads with ``weights_only``."""
        state = {name: getattr(self, name) for name in _SETTINGS}
        return {**state, "patches": dict(self.patches), "values": self.values() if self.steps else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the record by the record in a :meth:`state_dict`."""
        missing = [name for name in (*_SETTINGS, "patches", "values") if name not in state]
        if missing:
            raise ValueError(f"state without {', '.join(missing)}: must be the state_dict() of a lens")
        if state["optimizer_name"] != self.optimizer_name:
            raise ValueError(f"state of {state['optimizer_name']}: must be that of a lens on {self.optimizer_name}")
        for name in _SETTINGS:
            setattr(self, name, copy.copy(state[name]))
        self.patches = dict(state["patches"])
        self._snapshots = [] if state["values"] is None else list(_with_lost(state["values"], len(self.columns)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the record to an ``.npz`` file of numbers and JSON, which :func:`dynabound.lens.load` reads."""
        np = need("numpy")
        header = {"format": _FORMAT, **{name: getattr(self, name) for name in _SETTINGS}, "patches": list(self.patches)}
        arrays = {f"patch{i}": patch.numpy() for i, patch in enumerate(self.patches.values())}
        with replacing(Path(path)) as file:
            np.savez_compressed(file, header=np.array(json.dumps(header)), values=self.values().numpy(), **arrays)


def _with_lost(values: Tensor, columns: int) -> Tensor:
    """A copy of the statistics; older files do not have the column "lost", which is before the last two."""
    if values.shape[-1] != columns - 1:
        return values.clone()
    return torch.cat([values[..., :-2], torch.full_like(values[..., :1], math.nan), values[..., -2:]], dim=-1)


def load(path: str | os.PathLike[str]) -> History:
    """Read a file that :meth:`History.save` wrote. Nothing is unpickled."""
    np = need("numpy")
    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(str(file["header"]))
            values = torch.from_numpy(file["values"])
            patches = {name: torch.from_numpy(file[f"patch{i}"]) for i, name in enumerate(header.pop("patches"))}
            if header.pop("format") != _FORMAT:
                raise ValueError("another format")
        for name in ("extremes", "quantiles"):
            header[name] = tuple(header[name])
        header["shapes"] = {name: tuple(shape) for name, shape in header["shapes"].items()}
        settings = {name: header[name] for name in _SETTINGS}
        history = History(**settings, patches=patches)
        values = _with_lost(values, len(history.columns))
        history._snapshots = list(values)
        if values.shape != (len(history.steps), len(history.shapes), len(history.columns)):
            raise ValueError("values of another shape")
    except (AttributeError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{os.fspath(path)!r}: must be a file written by LearningRateLens.save") from error
    return history
