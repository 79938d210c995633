"""The studies as data, the paper's and one of our own: which methods on which workloads, at three scales."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dynabound._checks import did_you_mean
from dynabound.lab.errors import LabError
from dynabound.lab.spec import DEFAULT, SCALES, RunSpec
from dynabound.lab.studies.search import GRIDS, HALF_DECADE_GRIDS, STEP_SIZE_GRIDS, Grid
from dynabound.lab.studies.workloads import (
    BETAS_TUNED,
    FIRST_SEED,
    FIXED,
    GAMMA_SCALE,
    SEEDS,
    SHORTENED,
    TUNED,
    WORKLOADS,
)
from dynabound.lab.tasks.optimizers import BOUNDED
from dynabound.tuning import final_lr_from_sgd

__all__ = ["DEFAULTS", "PEERS", "REFERENCE", "REFERENCES", "SAME_RATES", "STUDIES", "Row", "Study", "choose", "seeded"]

REFERENCE = "Adam, α = 0.001"
"""Adam with the initial learning rate of AdaBound: a search may find a larger one for Adam, and then only this curve
shows that AdaBound starts like Adam."""
DEFAULTS = {"AdaBound": "AdaBound, defaults", "AMSBound": "AMSBound, defaults"}
"""The curves of methods at the paper's defaults, where the ranked ones have suggested learning rates."""
REFERENCES = frozenset({REFERENCE, *DEFAULTS.values()})
"""The labels of curves that are shown for comparison and have no rank."""
SAME_RATES = {"adam": "Adam, AdaBound's α", "csgd": "CSGD, AdaBound's α*"}
"""The curves of the methods that AdaBound starts and ends as, at the learning rates that are suggested for AdaBound."""
PEERS = {
    "Prodigy": ("prodigyopt:Prodigy", 1.0),
    "Schedule-free AdamW": ("schedulefree:AdamWScheduleFree", 0.0025),
    "D-Adaptation Adam": ("dadaptation:DAdaptAdam", 1.0),
}
"""Tuning-free methods of other packages (extra ``peers``), with their authors' default learning rates."""

SUGGESTED = ("demo", "laptop")
"""The scales at which AdaBound and AMSBound have suggested learning rates, as the other methods have searched ones."""

SKIPPED: dict[str, dict[str, tuple[str, ...]]] = {
    "demo": dict.fromkeys(("lstm-1", "lstm-2"), (DEFAULTS["AMSBound"],)),
    "laptop": dict.fromkeys(("resnet34", "densenet121", "lstm-1", "lstm-2", "lstm-3"), (DEFAULTS["AMSBound"],)),
}
"""By scale and workload, the curves that are left out to save time."""


@dataclass(frozen=True)
class Row:
    """One curve: a method on a workload."""

    panel: str
    label: str
    workload: str
    optimizer: str
    lr: float | None = None
    opt: Mapping[str, Any] = field(default_factory=dict)
    """Other arguments. ``gamma`` is the paper's, before it is multiplied by GAMMA_SCALE."""
    suggest: bool = False
    """Whether the learning rates are suggested (:func:`dynabound.suggest`) at the scales of SUGGESTED."""
    from_sgd: bool = False
    """Whether the final learning rate takes the steps of the searched SGDM (:func:`dynabound.final_lr_from_sgd`)."""
    at_every_scale: bool = False
    """Whether SUGGESTED and SKIPPED are ignored: the study needs the curve at every scale."""

    def spec(self, scale: str) -> RunSpec:
        """The run of the first seed, before any search for a learning rate or suggestion."""
        # The default is left out, so that studies which do not set it share the run.
        opt = {key: value for key, value in self.opt.items() if (key, value) != ("final_lr", 0.1)}
        if self.optimizer in BOUNDED:
            opt["gamma"] = float(f"{opt.get('gamma', 1e-3) * self.gamma_scale(scale):.6g}")
        known = self.lr is not None or self.suggest
        fixed = {} if known else FIXED[scale].get(self.workload, {}).get(self.optimizer, {})
        lr = fixed.get("lr", DEFAULT) if self.lr is None else self.lr
        opt |= {key: value for key, value in fixed.items() if key != "lr"}
        fields = dict(WORKLOADS[scale][self.workload], seed=FIRST_SEED[scale], scale=scale)
        return RunSpec(**fields, optimizer=self.optimizer, lr=lr, opt=opt)

    def bounded(self, scale: str) -> RunSpec:
        """The run of AdaBound or AMSBound that the learning rates of this one are suggested for."""
        return replace(self, optimizer=self.optimizer if self.optimizer in BOUNDED else "adabound").spec(scale)

    def gamma_scale(self, scale: str) -> float:
        """The factor of γ."""
        scales = GAMMA_SCALE[scale]
        return scales[self.workload] if self.workload in scales else scales[self.workload.partition("-")[0]]

    def included(self, scale: str) -> bool:
        """Whether the curve is part of the study at this scale."""
        if self.workload not in WORKLOADS[scale] or not self.installed:
            return False
        if self.at_every_scale:
            return True
        if self.label in SKIPPED.get(scale, {}).get(self.workload, ()):
            return False
        return scale in SUGGESTED or self.label not in DEFAULTS.values()  # otherwise the ranked curve has the defaults

    def suggested(self, scale: str) -> bool:
        """Whether the learning rates are suggested."""
        return self.suggest and (self.at_every_scale or scale in SUGGESTED)

    def tuned(self, scale: str) -> bool:
        """Whether the learning rate is searched for."""
        return self.lr is None and self.workload in TUNED[scale] and not self.suggested(scale)

    def searched(self, scale: str) -> RunSpec:
        """The first run of the search: shorter than the curve's on some workloads."""
        sgdm = replace(self, optimizer="sgdm", opt={}) if self.from_sgd else self
        return replace(sgdm.spec(scale), **SHORTENED.get(self.workload, {}))

    def chosen(self, best: RunSpec, scale: str) -> RunSpec:
        """The run of the curve, with what the search found."""
        spec = self.spec(scale)
        if self.from_sgd:
            final_lr = final_lr_from_sgd(best.lr, momentum=0.9)
            return replace(spec, opt={**spec.options, "final_lr": final_lr})
        return replace(best, epochs=spec.epochs, decay_after=spec.decay_after)

    def grids(self, scale: str) -> Mapping[str, Grid]:
        """What the search tries, by optimizer."""
        if self.workload in SHORTENED:
            return HALF_DECADE_GRIDS
        return GRIDS if self.workload in BETAS_TUNED[scale] else STEP_SIZE_GRIDS

    @property
    def installed(self) -> bool:
        """Whether the optimizer is one of the lab's, or its package is installed."""
        return ":" not in self.optimizer or importlib.util.find_spec(self.optimizer.partition(":")[0]) is not None


@dataclass(frozen=True)
class Study:
    """A figure of the paper, or a study of our own."""

    name: str
    title: str
    claim: str
    """What the paper claims, or what we claim, in a sentence."""
    rows: tuple[Row, ...] = ()
    seeds: Mapping[str, int] = field(default_factory=lambda: dict(laptop=3, paper=3))
    """Seeds by scale; for a scale that is missing here, those of SEEDS."""
    splits: tuple[str, ...] = ("train", "test")
    """The splits whose curves are drawn."""
    ours: bool = False
    """Whether the study and its claims are ours and not the paper's; it is run only if it is named."""
    note: str = ""
    """What a reader of its verdicts should know."""

    def included(self, scale: str) -> bool:
        """Whether the study has a curve at this scale."""
        return any(row.included(scale) for row in self.rows)

    def panels(self) -> list[str]:
        """The names of the panels, in order."""
        return list(dict.fromkeys(row.panel for row in self.rows))

    def seed_count(self, row: Row, scale: str) -> int:
        """How many seeds a row's curve has."""
        return self.seeds[scale] if scale in self.seeds else SEEDS[scale][row.workload]


_METHODS = {
    "SGDM": "sgdm", "SGD": "sgd", "AdaGrad": "adagrad", "Adam": "adam", "AMSGrad": "amsgrad",
    "AdaBound": "adabound", "AMSBound": "amsbound",
}  # fmt: skip
_SIX = ("SGDM", "AdaGrad", "Adam", "AMSGrad", "AdaBound", "AMSBound")
_FOUR = ("SGD", "Adam", "AdaBound", "AMSBound")
# Where AdaBound's and AMSBound's learning rates can come from, by label.
_VARIANTS: dict[str, dict[str, Any]] = {
    "{}, defaults": {}, "{}": dict(suggest=True), "{}, SGDM's rate": dict(from_sgd=True)
}  # fmt: skip
_STEP_SIZES = (1.0, 0.1, 0.03, 0.01, 0.003, 0.001)


def _compare(panel: str, workload: str, labels: Iterable[str]) -> tuple[Row, ...]:
    return tuple(Row(panel, label, workload, _METHODS[label], suggest=label in DEFAULTS) for label in labels)


def _defaults(panel: str, workload: str) -> tuple[Row, ...]:
    return tuple(Row(panel, label, workload, _METHODS[name]) for name, label in DEFAULTS.items())


def _six(panel: str, workload: str) -> tuple[Row, ...]:
    # The betas are the defaults, written as in the search, so that it is the same run.
    reference = Row(panel, REFERENCE, workload, "adam", 1e-3, dict(betas=(0.9, 0.999)))
    return (*_compare(panel, workload, _SIX), reference, *_defaults(panel, workload))


def _four(panel: str, workload: str) -> tuple[Row, ...]:
    return (*_compare(panel, workload, _FOUR), *_defaults(panel, workload))


def _untuned(panel: str, workload: str, searched: Iterable[str]) -> tuple[Row, ...]:
    rows = (
        *_compare(panel, workload, (*searched, "AdaBound")),
        Row(panel, DEFAULTS["AdaBound"], workload, "adabound"),
        *(Row(panel, label, workload, method, suggest=True) for method, label in SAME_RATES.items()),
        *(Row(panel, label, workload, path, lr) for label, (path, lr) in PEERS.items()),
    )
    return tuple(replace(row, at_every_scale=True) for row in rows)


STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Study(
            "learning-rates",
            "Figure 1: the learning rates at the end of training",
            "Near convergence Adam's learning rates contain tiny ones, below 0.01, as well as huge ones, above 1000.",
            _compare("ResNet-34", "resnet34", ("Adam", "AdaBound"))
            + _compare("ResNet-10", "resnet10", ("Adam", "AdaBound")),
            seeds=dict(demo=1, laptop=1, paper=1),
        ),
        Study(
            "mnist",
            "Figure 2: a perceptron on MNIST",
            "All methods come near 100 % in training; in test accuracy SGD ends slightly above Adam, and AdaBound and "
            "AMSBound above their prototypes Adam and AMSGrad and slightly above SGD.",
            _six("perceptron", "perceptron"),
        ),
        Study(
            "cifar10",
            "Figure 3: DenseNet-121 and ResNet-34 on CIFAR-10",
            "AdaBound and AMSBound learn faster than SGDM early, as adaptive methods do, and end above Adam and "
            "AMSGrad, and above SGDM, in test accuracy.",
            _six("DenseNet-121", "densenet121") + _six("ResNet-34", "resnet34") + _six("ResNet-10", "resnet10"),
        ),
        Study(
            "ptb",
            "Figure 4: LSTMs of one, two and three layers on Penn Treebank",
            "Adam learns faster than SGD at first but ends at a worse perplexity than SGD, AdaBound and AMSBound, and "
            "the gain over Adam is larger with three layers than with one.",
            tuple(row for n in (1, 2, 3) for row in _four(f"L{n}: {n}-layer LSTM", f"lstm-{n}")),
            splits=("test",),
        ),
        Study(
            "bound-speed",
            "Appendix: the speed of the bounds",
            "For a given α*, the results with different β are almost the same.",
            tuple(
                Row(f"α* = {final:g}", f"β = 1 − 1/{n}", "appendix", "adabound", 1e-3,
                    dict(final_lr=final, gamma=1 / n))
                for final in (0.1, 1.0) for n in (10, 50, 100, 500, 1000)
            ),
            seeds=dict(laptop=1, paper=3),
            splits=("test",),
        ),
        Study(
            "final-step-size",
            "Appendix: the final step size",
            "SGDM is very sensitive to its step size α, AdaBound is not sensitive to its final step size α*, and "
            "AdaBound is better than SGDM at each of them.",
            tuple(
                [Row("SGDM", f"α = {a:g}", "appendix", "sgdm", a) for a in _STEP_SIZES]
                + [Row("AdaBound", f"α* = {a:g}", "appendix", "adabound", 1e-3, dict(final_lr=a, gamma=1e-2))
                   for a in _STEP_SIZES]
                + [Row("CSGD", f"α = {a:g}", "appendix", "csgd", a) for a in _STEP_SIZES]
            ),
            seeds=dict(laptop=1, paper=3),
            splits=("test",),
            note="SGDM sums gradients, AdaBound averages them: with momentum 0.9 SGDM's steps are ten times as long "
            "at the same number. “Better at each” compares runs whose steps differ by this factor, which is where its "
            "refuted rows come from. Compare SGDM at α with AdaBound at α* = 10 α, and CSGD, which averages too, with "
            "AdaBound at the same number.",
        ),
        Study(
            "cifar10-16",
            "CIFAR-10 to the end of training, at 16 × 16 pixels",
            "With all images and a decay at three quarters of the run, AdaBound ends between Adam and SGDM or better.",
            (*(Row("ResNet-34 to the end", label, "resnet34-16", optimizer) for label, optimizer in
               {"SGDM": "sgdm", "CSGD": "csgd", "Adam": "adam", "AdamW": "adamw"}.items()),
             *(Row("ResNet-34 to the end", label.format(name), "resnet34-16", _METHODS[name], **options)
               for name in DEFAULTS for label, options in _VARIANTS.items())),
            seeds=dict(laptop=5),
            ours=True,
            note="Two seeds were trained first; three more followed because some of their differences exceeded half a "
            "point. This rule was set before the runs. CSGD's rate from the shortened search takes steps 0.3 times as "
            "long as SGDM's, which may be why it ends lower.",
        ),
        Study(
            "rate-evolution",
            "Last appendix: how AdaBound's learning rates evolve",
            "The rates rise rapidly at first, then their largest and median values fall and converge to the final "
            "step size.",
            (Row("ResNet-34", "AdaBound", "resnet34-rates", "adabound"),),
            seeds=dict(demo=1, laptop=1, paper=1),
        ),
        Study(
            "theory",
            "Theorems 1 to 5, and what follows from them",
            "Adam can fail to converge whatever its step size; AdaBound and AMSBound converge, with a regret of O(√T).",
        ),
        Study(
            "suggest",
            "AdaBound without tuning: suggested learning rates on every workload",
            "With suggested learning rates AdaBound ends no worse than methods whose learning rates were searched for, "
            "at a fraction of the cost; this is due to AdaBound, and not only to its learning rates.",
            _untuned("perceptron", "perceptron", _SIX[:4])
            + _untuned("DenseNet-121", "densenet121", _SIX[:4])
            + _untuned("ResNet-34", "resnet34", _SIX[:4])
            + _untuned("ResNet-10", "resnet10", _SIX[:4])
            + tuple(row for n in (1, 2, 3) for row in _untuned(f"L{n}: {n}-layer LSTM", f"lstm-{n}", _FOUR[:2])),
            seeds=dict(demo=5, laptop=3, paper=3),
            splits=("test",),
            ours=True,
        ),
    )
}  # fmt: skip
"""Every experiment of the paper, and one of our own."""


def choose(names: Iterable[str], scale: str) -> list[Study]:
    """The studies of the given names, or all of the paper's; LabError for an unknown name or scale.

    >>> [study.name for study in choose(["mnist", "ptb", "mnist"], "demo")]
    ['mnist', 'ptb']
    >>> len(choose([], "demo"))
    8
    """
    if scale not in SCALES:
        raise LabError(f"scale={scale!r}: must be one of {', '.join(SCALES)}")
    for name in names:
        if name not in STUDIES:
            hint = did_you_mean(name, STUDIES)
            raise LabError(f"study={name!r}: must be one of {', '.join(STUDIES)}{hint}")
        rows, scales = STUDIES[name].rows, [each for each in SCALES if STUDIES[name].included(each)]
        if rows and scale not in scales:
            raise LabError(f"study={name!r}: has no {scale} scale; add --scale {scales[0]}")
    papers = [study for study in STUDIES.values() if not study.ours]
    return [STUDIES[name] for name in dict.fromkeys(names)] or papers


def seeded(spec: RunSpec, seeds: int) -> list[RunSpec]:
    """The same run with ``seeds`` seeds, of which that of ``spec`` is the first."""
    return [replace(spec, seed=spec.seed + number) for number in range(seeds)]
