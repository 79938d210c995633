"""The methods of a panel, what is measured of their runs, and claims about differences between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dynabound.lab.report.read import Curve
from dynabound.lab.report.statistics import Claim, Comparison, contrast, mean, std
from dynabound.lab.spec import RunSpec
from dynabound.lab.studies.plan import StoredRun
from dynabound.lab.tasks.catalog import TASKS
from dynabound.theory.verdict import REFUTED, SUPPORTED, UNDECIDED, Verdict

SAME, SAME_TEXT, _SAME_MNIST = 2.0, 5.0, 1.0
"""Up to this difference, results are "almost the same": points of accuracy, percent of perplexity, and points on the
perceptron of Figure 2, where the paper speaks of smaller differences."""


@dataclass(frozen=True)
class RunMeasure:
    """A number of a run: an accuracy in percent or a perplexity."""

    name: str
    of: Callable[[StoredRun], float]
    on_test: bool = True
    paired: bool = False
    """Whether methods are compared seed by seed: early in training, equal initial weights and batches still show."""

    def score(self, seed: StoredRun) -> float:
        """The number on a scale where higher is better: points of accuracy, or percent of perplexity."""
        return -100 * math.log(self.of(seed)) if seed.spec.text else self.of(seed)


def early_epochs(spec: RunSpec) -> int:
    """How many epochs are early: a quarter, or one."""
    return max(1, spec.epochs // 4)


def _early(seed: StoredRun, split: str) -> float:
    return mean(seed.series(split)[: early_epochs(seed.spec)])


def _roughness(seed: StoredRun) -> float:
    """Exp of the mean absolute second difference of the log perplexity, so that its score is in percent."""
    logs = [math.log(value) for value in seed.series("test")]
    bends = [abs(a - 2 * b + c) for a, b, c in zip(logs, logs[1:], logs[2:], strict=False)]
    return math.exp(mean(bends))


LAST = RunMeasure("last epoch", lambda seed: seed.series("test")[-1])
BEST = RunMeasure("best epoch", lambda seed: (min if seed.spec.text else max)(seed.series("test")))
LAST_TRAIN = RunMeasure("training, last epoch", lambda seed: seed.series("train")[-1], on_test=False)
FIRST = RunMeasure("training, first epoch", lambda seed: seed.series("train")[0], on_test=False, paired=True)
EARLY_TRAIN = RunMeasure("training, early", lambda seed: _early(seed, "train"), on_test=False, paired=True)
EARLY_TEST = RunMeasure("test, early", lambda seed: _early(seed, "test"))
ROUGHNESS = RunMeasure("roughness", _roughness, on_test=False)


def count_test_images(task: str) -> int | None:
    """How many images a task is tested on; None for text."""
    entry = TASKS[task]
    if entry.text:
        return None
    return entry.test_images or (entry.source.shape[1] if entry.source else None)


def _binomial(task: str, percent: float) -> float:
    """The variance of an accuracy in percent that comes from the finite test set."""
    examples = count_test_images(task)
    return percent * (100 - percent) / examples if examples else 0.0


def error_of_one(task: str, values: Sequence[float]) -> float:
    """The standard deviation of one run's test metric: over seeds, and over test sets (binomial) for an accuracy.

    NaN for fewer than two values.
    """
    return math.sqrt(std(values) ** 2 + _binomial(task, mean(values))) if len(values) > 1 else math.nan


@dataclass(frozen=True)
class Group:
    """Methods whose spread over seeds is pooled: those of a panel."""

    curves: Mapping[str, Curve]

    def _text(self, label: str, measure: RunMeasure) -> str:
        curve = self.curves[label]
        values = [measure.of(seed) for seed in curve.finished]
        name = f"{label}:" if "=" in label else label
        if not values:
            return f"{name} –"
        error = error_of_one(curve.spec.task, values) if measure.on_test else std(values)
        return f"{name} {mean(values):.2f}" + (f" ± {error:.2f}" if math.isfinite(error) else "")

    def measured(self, labels: Sequence[str], measures: Sequence[RunMeasure]) -> str:
        """The numbers behind a claim."""
        parts = [", ".join(self._text(label, measure) for label in labels) for measure in measures]
        return "; ".join([parts[0], *(f"{m.name}: {part}" for m, part in zip(measures[1:], parts[1:], strict=True))])

    def without_test(self, text: str, source: str, weights: Mapping[str, float], measured: str) -> Verdict | None:
        """The verdict if no test is possible: a run is missing, or a method diverged."""
        mine = {label: self.curves[label] for label in weights}
        if not all(curve.ended for curve in mine.values()):
            return Verdict(text, f"{measured}; a run is missing", UNDECIDED, source)
        diverged = [label for label, curve in mine.items() if curve.diverged]
        if not diverged:
            return None
        signs = {weights[label] > 0 for label in diverged}  # True: should be better; False: should be worse
        verdict = UNDECIDED if len(signs) == 2 else REFUTED if signs == {True} else SUPPORTED
        return Verdict(text, f"{measured}; {' and '.join(diverged)} diverged", verdict, source)

    def comparison(
        self,
        weights: Mapping[str, float],
        measure: RunMeasure,
        low: float = 0.0,
        high: float = math.inf,
        constant: float = 0.0,
    ) -> Comparison:
        """Compare Σ weight · score + ``constant`` with the region between ``low`` and ``high``."""
        scores = {label: {seed.spec.seed: measure.score(seed) for seed in curve.finished}
                  for label, curve in self.curves.items()}  # fmt: skip
        values = {label: list(own.values()) for label, own in scores.items()}
        if measure.paired and len(weights) > 1:
            seeds = sorted(set.intersection(*(set(scores[label]) for label in weights)))
            # Rounded, because seeds that agree must agree exactly.
            differences = [round(sum(w * scores[label][seed] for label, w in weights.items()), 9) for seed in seeds]
            estimate = contrast([(1.0, differences)], [], constant)
        else:
            weighted = [(weight, values[label]) for label, weight in weights.items()]
            estimate = contrast(weighted, list(values.values()), constant)
        error = None
        if measure.on_test and not any(self.curves[label].spec.text for label in weights):
            parts = (weight**2 * _binomial(self.curves[label].spec.task, mean(values[label]))
                     for label, weight in weights.items())  # fmt: skip
            error = math.sqrt(sum(parts))
        return Comparison(estimate, low, high, error)

    def claim(
        self,
        text: str,
        source: str,
        weights: Mapping[str, float],
        measures: Sequence[RunMeasure] = (LAST,),
        low: float = 0.0,
        high: float = math.inf,
    ) -> Claim | Verdict:
        """A claim about one contrast, which all measures must agree on."""
        measured = self.measured(list(weights), measures)
        decided = self.without_test(text, source, weights, measured)
        if decided:
            # "almost the same" has no better side: a method that diverged is not similar to one that did not
            similar = math.isfinite(low) and math.isfinite(high) and decided.verdict == SUPPORTED
            return Verdict(text, decided.measured, REFUTED, source) if similar else decided
        comparisons = tuple(self.comparison(weights, measure, low, high) for measure in measures)
        return Claim(text, source, measured, comparisons, self.unit, joint=True)

    def better(
        self, text: str, source: str, a: str, b: str, measures: Sequence[RunMeasure] = (LAST, BEST), low: float = 0.0
    ) -> Claim | Verdict:
        """Method ``a`` is better than ``b`` by more than ``low``, at the last epoch and at the best one."""
        return self.claim(text, source, {a: 1.0, b: -1.0}, measures, low)

    def all_of(
        self, text: str, source: str, parts: Sequence[Mapping[str, float]], measure: RunMeasure, low: float = 0.0,
        constant: float = 0.0,
    ) -> Claim | Verdict:  # fmt: skip
        """A claim that is true if each of several contrasts is above ``low``."""
        labels = list(dict.fromkeys(label for part in parts for label in part))
        measured = self.measured(labels, [measure])
        decided = [self.without_test(text, source, part, measured) for part in parts]
        for verdict in (REFUTED, UNDECIDED):
            for check in decided:
                if check and check.verdict == verdict:
                    return check
        left = [part for part, check in zip(parts, decided, strict=True) if not check]
        if not left:
            return Verdict(text, measured, SUPPORTED, source)
        comparisons = tuple(self.comparison(part, measure, low, constant=constant) for part in left)
        return Claim(text, source, measured, comparisons, self.unit)

    def amount(self, number: float) -> str:
        """A number with its unit."""
        return f"{number:g} %" if self.unit == "%" else f"{number:g} point{'s'[: number != 1]}"

    @property
    def early(self) -> str:
        """The epochs of the measures of early training, in words."""
        last = early_epochs(spec := next(iter(self.curves.values())).spec)
        return f"epoch{'s 1 to' if last > 1 else ''} {last} of {spec.epochs}"

    @property
    def margin(self) -> float:
        """Up to this difference, results of the panel are "almost the same"; the perceptron's are those of MNIST."""
        first = next(iter(self.curves.values()))
        return SAME_TEXT if first.spec.text else _SAME_MNIST if first.row.workload == "perceptron" else SAME

    @property
    def unit(self) -> str:
        """The unit of differences."""
        return "%" if next(iter(self.curves.values())).spec.text else "points"
