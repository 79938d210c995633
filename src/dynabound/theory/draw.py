"""The figures of a demonstration, drawn from its numbers only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dynabound._drawing import BLACK, BLUE, GREEN, GREY, METHOD_STYLES, VERMILION, label_axes, new_figure
from dynabound._extras import need
from dynabound.theory.demonstration import Demonstration
from dynabound.theory.theorems_1_to_3 import OUTCOMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VERSION = 4
"""Raise this when a figure changes, so that old files are drawn again."""
TEXT = "#555555"
STYLES: dict[str, dict[str, Any]] = METHOD_STYLES | {
    "SGDM": METHOD_STYLES["SGDM"] | dict(linestyle=":"),
    "RMSprop": dict(color=BLACK, linestyle=(0, (2, 3)), zorder=3),
}


def draw(demo: Demonstration) -> Figure:
    """The figure of a demonstration."""
    figure = _PICTURES[demo.name](demo)
    figure.suptitle(f"{demo.title}\n", fontsize=14, fontweight="bold", linespacing=1.6)
    figure.text(0.5, 1 - 0.36 / figure.get_figheight(), demo.summary, ha="center", va="top", color=TEXT)
    return figure


def _plot_regrets(axes: Axes, t: Any, regrets: dict[str, Any], floor: float) -> None:
    for name, values in regrets.items():
        axes.plot(t, np.maximum(values, floor), label=name, **STYLES[name])


def _say_floored(axes: Axes, regrets: dict[str, Any], floor: float) -> None:
    """Name the curves with values below ``floor``, which a logarithmic axis cannot show."""
    names = [name for name, values in regrets.items() if np.min(values) < floor]
    if names:
        text = f"not shown where it is negative or below {floor:g}: {'; '.join(names)}"
        axes.text(0.98, 0.98, text, transform=axes.transAxes, ha="right", va="top", color=TEXT, fontsize=8)


def _theorem_1(demo: Demonstration) -> Figure:
    data = demo.data
    figure = new_figure(12, 8.6)
    grid = figure.add_gridspec(2, 2, height_ratios=[1, 1])
    path = label_axes(figure.add_subplot(grid[0, 0]), "Where each method goes", "step t", "$x_t$", xscale="log")
    average = label_axes(
        figure.add_subplot(grid[0, 1]), "Average regret", "step t", "$R_t\\,/\\,t$", xscale="log", yscale="log"
    )  # fmt: skip
    for name, x in data["x"].items():
        path.plot(data["t"], x, label=name, **STYLES[name])
    _plot_regrets(average, data["t"], data["average_regret"], 1e-9)
    _say_floored(average, data["average_regret"], 1e-9)
    bottom, top = path.get_ylim()
    path.axhspan(min(bottom, -0.05), 0, color=GREEN, alpha=0.1, lw=0)
    path.set_ylim(min(bottom, -0.05), top)
    path.text(
        data["t"][-1], min(bottom, -0.05) * 0.9, "x < 0: optimal, loss −100 ", ha="right", va="bottom", color=GREEN
    )
    average.legend(*path.get_legend_handles_labels(), loc="lower left")
    average.axhline(100, color=GREY, lw=1)
    average.text(data["t"][0], 115, "100: what staying at x ≥ 0 costs", va="bottom", color=TEXT, fontsize=9)
    average.set_ylim(top=260)
    _outcome_map(figure.add_subplot(grid[1, :]), demo)
    return figure


def _outcome_map(axes: Axes, demo: Demonstration) -> None:
    names, alphas = list(demo.data["outcomes"]), demo.data["alphas"]
    values = np.array([demo.data["outcomes"][name] for name in names])
    colours = (GREEN, VERMILION, "#F0E442")
    exponents = np.log10(alphas)
    half = (exponents[1] - exponents[0]) / 2
    extent = (exponents[0] - half, exponents[-1] + half, len(names) - 0.5, -0.5)
    cmap = need("matplotlib.colors").ListedColormap(colours)
    axes.imshow(values, cmap=cmap, vmin=0, vmax=2, aspect="auto", extent=extent, alpha=0.85)
    axes.set(title="The outcome for every step size α", xlabel="initial step size α")
    ticks = np.arange(-10, 11, 2)
    axes.set_xticks(ticks, [f"$10^{{{tick}}}$" for tick in ticks])
    axes.set_yticks(range(len(names)), names)
    axes.set_yticks(np.arange(len(names) - 1) + 0.5, minor=True)
    axes.grid(which="minor", axis="y", color="white", lw=3)
    axes.tick_params(which="both", length=0)
    meanings = ("x < 0", "0 ≤ x ≤ 1", "x > 1, where every gradient is 0")
    handles = [
        need("matplotlib.patches").Patch(color=colour, alpha=0.85, label=f"{outcome} ({meaning})")
        for colour, outcome, meaning in zip(colours, OUTCOMES, meanings, strict=True)
    ]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False)


def _theorem_2(demo: Demonstration) -> Figure:
    data, settings = demo.data, demo.settings
    figure = new_figure(12.5, 5.6)
    left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
    label_axes(left, "Average regret", "step t", "$R_t\\,/\\,t$, in units of $2/C$", xscale="log", yscale="log")
    label_axes(right, "Where each method goes", "step t", "$x_t$", xscale="log")
    _plot_regrets(left, data["t"], data["units"], 1e-6)
    for name, x in data["x"].items():
        right.plot(data["t"], x, **STYLES[name])
    curves = np.maximum(list(data["adam_units"].values()), 1e-6)
    left.set_ylim(left.get_ylim())  # the band must not stretch the axis down to its floor
    left.fill_between(
        data["t"], curves.min(0), curves.max(0), color=VERMILION, alpha=0.15, lw=0,
        label=f"Adam, α = {' … '.join([min(data['adam_units'], key=float), max(data['adam_units'], key=float)])}",
    )  # fmt: skip
    band = {
        f"Adam, α = {alpha}": unit
        for alpha, unit in data["adam_units"].items()
        if alpha != f"{demo.settings['alpha']:g}"
    }
    _say_floored(left, {**data["units"], **band}, 1e-6)
    left.axhline(1, color=BLACK, lw=1)
    left.text(data["t"][-1], 1.06, f"2/C = {2 / settings['period']:g}", ha="right", va="bottom")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=9, frameon=False, fontsize=9)
    for level, text in ((1, "x = +1: the worst point"), (-1, "x* = −1: the best point")):
        right.axhline(level, color=GREY, lw=1)
        right.text(data["t"][0], level * 1.04, text, va="bottom" if level > 0 else "top", color=TEXT)
    right.set_ylim(-1.25, 1.25)
    return figure


def _theorem_3(demo: Demonstration) -> Figure:
    data = demo.data
    names = list(data["x"])
    figure = new_figure(13, 5)
    panels = figure.subplots(1, len(names), sharey=True)
    for axes, name in zip(panels, names, strict=True):
        last = np.array(data["last"][name])
        title = f"{name}\nends {last.min():+.2f} … {last.max():+.2f}".replace("-", "−")
        label_axes(axes, title, "step t", "$x_t$" if name == names[0] else "", xscale="log")
        for x in data["x"][name]:
            axes.plot(data["t"], x, color=STYLES[name]["color"], lw=0.8, alpha=0.45)
        axes.axhline(-1, color=GREY, lw=1)
        axes.text(1, -1.03, "x* = −1", va="top", color=TEXT)
        axes.set_ylim(-1.2, 1.1)
    return figure


def _regret(demo: Demonstration) -> Figure:
    data = demo.data
    figure = new_figure(12.5, 9)
    (curves, crossing), (funnel, share) = figure.subplots(2, 2)
    label_axes(curves, "A random least-squares problem", "horizon T", "regret", xscale="log", yscale="log")
    _bounds_against_regret(curves, data["curves"])
    label_axes(crossing, "The smallest counterexample", "horizon T", "regret", xscale="log", yscale="log")
    _bounds_against_regret(crossing, data["crossing"])
    t, r, right = (np.array(data["crossing"][key]) for key in ("t", "regret", "theorem"))
    crossing.fill_between(t, right, r, where=r > right, color=VERMILION, alpha=0.2, lw=0, interpolate=True)
    broken = f"shaded: Theorem 4 is broken\n(at {(r > right).sum()} of the {t.size} horizons T)"
    crossing.text(0.98, 0.03, broken, transform=crossing.transAxes, ha="right", va="bottom", color=VERMILION)
    _funnel(funnel, data["funnel"])
    label_axes(share, "How often the proof's last step fails", "γ, the speed of the bounds", "share of all (t, i), %")
    position = np.arange(len(data["share"]))
    for offset, name in ((-0.2, "AdaBound"), (0.2, "AMSBound")):
        values = [100 * shares[name] for shares in data["share"].values()]
        bars = share.bar(position + offset, values, 0.38, color=STYLES[name]["color"], label=name)
        share.bar_label(bars, [f"{value:.1f}%" for value in values], padding=2)
    share.set_xticks(position, list(data["share"]))
    share.legend(title=f"$1/\\eta_t$ decreases; impossible if γ ≥ {data['gamma_threshold']:.2f}")
    return figure


def _bounds_against_regret(axes: Axes, curves: dict[str, Any]) -> None:
    axes.plot(curves["t"], curves["corrected"], color=GREEN, ls="--", label="Theorem B, which holds")
    axes.plot(curves["t"], curves["theorem"], color=BLACK, label="Theorem 4's right-hand side")
    axes.plot(curves["t"], np.maximum(curves["regret"], 1e-3), color=BLUE, lw=2.6, label="measured regret $R_T$")
    _say_floored(axes, {"regret": curves["regret"]}, 1e-3)
    axes.legend(fontsize=9)


def _funnel(axes: Axes, data: dict[str, Any]) -> None:
    label_axes(axes, "The rate in its closing funnel", "step t", "$\\sqrt{t}\\,\\eta_t$", yscale="log")
    t, rate = np.array(data["t"]), np.array(data["rate"])
    axes.fill_between(
        t, data["lower"], data["upper"], color=GREY, alpha=0.2, lw=0, label="between $\\eta_l(t)$ and $\\eta_u(t)$"
    )
    axes.plot(t, rate, color=BLUE, lw=1.4, label="$\\sqrt{t}\\,\\eta_t$")
    axes.set_ylim(rate.min() / 3, 2 * rate.max())
    fell = np.array(data["fell"], dtype=int)
    label = f"$1/\\eta_t$ decreased ({len(fell)} of {len(t) - 1} steps)"
    axes.plot(fell, rate[fell - 1], "o", color=VERMILION, ms=3, label=label)
    axes.legend(fontsize=9)


def _counterexample(demo: Demonstration) -> Figure:
    data = demo.data
    figure = new_figure(13, 4.8)
    small, path, other = figure.subplots(1, 3)
    label_axes(small, "The smallest: $f_t(x) = x$ from $x_1 = 1$", "horizon T", "regret")
    found = data["smallest AdaBound"]
    t, r, right = (np.array(found[key])[:30] for key in ("t", "regret", "theorem"))
    small.plot(t, r, "o-", color=BLUE, ms=4, label="measured regret $R_T$")
    small.plot(t, right, "s-", color=BLACK, ms=3, label="Theorem 4's right-hand side")
    small.fill_between(t, right, r, where=r > right, color=VERMILION, alpha=0.15, lw=0, interpolate=True)
    small.annotate(
        f"T = 4: {r[3]:.3g} against {right[3]:.3g}", (4, r[3]), (0.04, 0.8), textcoords="axes fraction",
        arrowprops=dict(arrowstyle="->", color=VERMILION), color=VERMILION,
    )  # fmt: skip
    small.legend(loc="lower right", fontsize=9)
    _path(path, data["path"])
    label_axes(
        other, "Savarese's example, one line per seed", "step t", "$R_t$ / Theorem 4's right-hand side", xscale="log"
    )
    for name in ("AdaBound", "AMSBound"):
        fan = data[f"savarese {name}"]
        for i, ratio in enumerate(fan["ratios"]):
            label = name if i == 0 else None
            other.plot(fan["t"], ratio, color=STYLES[name]["color"], lw=0.9, alpha=0.6, label=label)
    other.axhline(1, color=BLACK, lw=1)
    other.text(0.02, 1.02, "above 1: broken", color=VERMILION, transform=other.get_yaxis_transform(), va="bottom")
    for line in other.legend(loc="upper left").get_lines():
        line.set(alpha=1, linewidth=2.5)
    return figure


def _path(axes: Axes, data: dict[str, Any]) -> None:
    last = data["t"][-1]
    label_axes(axes, f"Its path, for T = {last}", "step t", "$x_t$", ylim=(-1.2, 1.2))
    axes.plot(data["t"], data["x"], color=BLUE, lw=2.6)
    axes.text(last / 2, data["x"][-1] - 0.08, f"$x_t$ at T: {data['x'][-1]:.3f}", ha="center", va="top", color=BLUE)
    axes.axhline(-1, color=GREY, lw=1)
    axes.text(last / 2, -0.97, "the best point, −1", ha="center", va="bottom", color=TEXT)
    rates = axes.twinx()
    rates.plot(data["t"], data["rate"], color=VERMILION, lw=1.4)
    rates.set(yscale="log", ylim=(1e-8, 1e4))
    rates.set_ylabel("rate $\\sqrt{t}\\,\\eta_t$", color=VERMILION)
    rates.tick_params(axis="y", colors=VERMILION)
    rates.spines["top"].set_visible(False)
    text = "the rate: Theorem 4's right-hand\nside contains only its last value"
    rates.text(last * 0.97, 3e-5, text, ha="right", va="bottom", color=VERMILION, fontsize=9)


def _guarantees(demo: Demonstration) -> Figure:
    data = demo.data["promised"]
    figure = new_figure(12.5, 5.2)
    promised, games = figure.subplots(1, 2, width_ratios=[1.15, 1])
    label_axes(
        promised, "What is promised of AdaBound with the bounds above", "number of steps T", "average regret at most",
        xscale="log", yscale="log",
    )  # fmt: skip
    for name, values in data["average"].items():
        colour, line = GREEN if name.startswith("Theorem A") else BLUE, "-" if name.endswith("= 0") else ":"
        promised.plot(data["t"], values, color=colour, ls=line, label=name)
    for name, first in data["useful_from"].items():
        colour = GREEN if name == "Theorem A" else BLUE
        promised.plot([first], [2], "o", color=colour, ms=6)
        promised.annotate(f"T = {first:,.0f}" if first < 1e6 else f"T = {first:.1e}", (first, 2), (0, 8),
                          textcoords="offset points", ha="center", color=colour)  # fmt: skip
    promised.text(1, 1.85, "trivial: D·G = 2", va="top", color=TEXT)
    promised.set_ylim(top=4)
    promised.legend(loc="lower left")
    label_axes(
        games,
        f"How close {demo.settings['seeds']:,} random games come",
        "regret / right-hand side",
        "share of games, %",
    )
    colours = (BLUE, GREY, GREEN, "#CC79A7", VERMILION)
    for (name, values), colour in zip(sorted(demo.data["ratios"].items()), colours, strict=True):
        games.plot(values, np.linspace(0, 100, len(values)), color=colour, label=name)
    games.axvline(1, color=GREY, lw=1)
    games.text(0.985, 97, "beyond 1: broken", rotation=90, ha="right", va="top", color=TEXT, fontsize=9)
    games.legend(loc="center", bbox_to_anchor=(0.66, 0.42))
    return figure


def _slow_bounds(demo: Demonstration) -> Figure:
    data = demo.data
    figure = new_figure(12.5, 5.4)
    left, right = figure.subplots(1, 2, width_ratios=[1.15, 1])
    label_axes(left, "Regret with bounds $1 \\pm t^{-a}/2$", "number of steps T", "regret", xscale="log", yscale="log")
    shades = dict(zip(demo.settings["decay"], (VERMILION, "#E69F00", BLUE, BLACK), strict=True))
    for name, values in data["regret"].items():
        decay = float(name.rpartition(" ")[2])
        line = "-" if name.startswith("AdaBound") else ":"
        left.plot(data["t"], values, color=shades[decay], ls=line, label=name)
    t = np.array(data["t"], dtype=float)
    left.plot(t, 0.35 * np.sqrt(t), color=GREY, lw=1, ls="--", label="slope of √T")
    left.legend(fontsize=8, loc="upper left", ncols=2, columnspacing=1)
    left.set_ylim(top=4 * max(max(values) for values in data["regret"].values()))
    label_axes(right, "Why, for a = 0.25: three periods of the game", "step t", "learning rate · √t", ylim=(0, 1.6))
    part = data["periods"]
    right.fill_between(part["t"], part["lower"], part["upper"], color=GREY, alpha=0.2, lw=0, label="between the bounds")
    for name in ("AdaBound", "AMSBound"):
        right.plot(part["t"], part[name], "o-", ms=4, color=STYLES[name]["color"], label=name)
    for t, gradient in list(zip(part["t"], part["gradient"], strict=True))[::3]:  # the first and fourth of each period
        label = "gradient\n+1" if gradient > 0 else f"five of\n−{-gradient:.2f}"
        right.text(t, 0.3, label, ha="center", color=VERMILION if gradient > 0 else TEXT)
    right.set_xticks(part["t"][::3])
    right.margins(x=0.09)
    right.legend(loc="upper right", ncols=3, fontsize=9)
    return figure


_PICTURES: dict[str, Callable[[Demonstration], Figure]] = {
    "theorem-1": _theorem_1,
    "theorem-2": _theorem_2,
    "theorem-3": _theorem_3,
    "regret": _regret,
    "counterexample": _counterexample,
    "guarantees": _guarantees,
    "slow-bounds": _slow_bounds,
}
