"""The answers at the top of the page, on numbers whose answer is known."""

from dataclasses import replace

import pytest

from dynabound.lab.report import opening
from dynabound.lab.report.results import Curve
from dynabound.lab.spec import RunSpec
from dynabound.lab.studies.plan import StoredRun
from dynabound.lab.studies.recipes import DEFAULTS, REFERENCE, Row
from dynabound.lab.studies.search import Search

SPREAD = (-0.1, 0.0, 0.1)


def curve(label, end, seconds=(1.0, 1.0, 1.0), cpus=("A", "A", "A"), workload="perceptron", scale="demo"):
    """A method with three seeds: final accuracies around ``end``, and the fastest epoch and CPU model of each."""
    spec = RunSpec("digits", epochs=1, scale=scale)
    seeds = tuple(
        StoredRun(replace(spec, seed=i), "finished",
             [{"train_accuracy": 0.9, "test_accuracy": (end + SPREAD[i]) / 100, "seconds": time, "step": 100}],
             environment=[{"cpu": cpu}])
        for i, (time, cpu) in enumerate(zip(seconds, cpus, strict=True))
    )  # fmt: skip
    methods = {"SGDM": "sgdm", "AdaBound": "adabound", DEFAULTS["AdaBound"]: "adabound"}
    lr = 0.001 if label == REFERENCE else None
    return Curve(Row("panel", label, workload, methods.get(label, "adam"), lr), spec, seeds)


def panel(adabound, adam, sgdm=95.0, **kwargs):
    return {
        "AdaBound": curve("AdaBound", 95.0, *adabound, **kwargs),
        "Adam": curve("Adam", 95.0, *adam, **kwargs),
        "SGDM": curve("SGDM", sgdm, **kwargs),
    }


def cost(*panels):
    return opening._cost({f"network {i}": each for i, each in enumerate(panels)})


SLOW, FAST = ((2.0, 2.1, 2.05),), ((1.0, 1.1, 1.05),)


@pytest.mark.parametrize(
    ("panels", "answer"),
    [
        ([(SLOW, FAST)], "More than Adam: its fastest epoch took 2.00 times as long as Adam's on 1 network."),
        ([(FAST, SLOW)] * 2, "Less than Adam: its fastest epoch took 0.50 times as long as Adam's on 2 networks."),
        ([(FAST, SLOW), (SLOW, FAST)], "do not tell"),  # the networks do not agree
        ([(((1.0, 1.5, 2.1),), SLOW)], "do not tell"),  # the ranges overlap
        ([(((0.6, 0.6, 0.7),), ((0.75, 1.2, 1.4),))], "do not tell"),  # runs of Adam differ more than the methods
    ],
)
def test_times_are_told_apart_only_if_they_differ_more_than_the_runs_of_a_method(panels, answer):
    assert answer in cost(*(panel(*each) for each in panels)).answer


def test_runs_of_different_machines_are_not_divided_by_each_other():
    mixed = ((9.0, 1.0, 1.1), ("B", "A", "A"))
    found = cost(panel(mixed, ((1.0, 1.1, 9.0), ("A", "A", "B"))))
    assert "took 1.00 times as long" in found.details
    assert max(dot.high for dot in found.figure.dots) == pytest.approx(1.1)
    assert opening._cost({"p": panel((FAST[0], "AAA"), (FAST[0], "BBB"))}) is None
    assert opening._cost({"p": panel((FAST[0], ("", "", "")), (FAST[0], ("", "", "")))}) is None, "not known"


def test_a_perceptron_has_the_margin_of_figure_2():
    for workload, answer, margin in (("perceptron", "No: ", "1 point"), ("resnet34", "Yes: ", "2 points")):
        found = opening._end({"net": panel((), (), sgdm=96.5, workload=workload)})
        assert found.answer.startswith(f"{answer}AdaBound ends as well as SGD on")
        assert f"at most {margin} of accuracy worse. The difference is −1.5 (net)." in found.details


def test_the_end_is_compared_with_adam_without_a_search():
    curves = {**panel((), ()), REFERENCE: curve(REFERENCE, 97.0)}
    details = opening._end({"net": curves}).details
    assert "Adam at 0.001, without a search, it ends better on 0 and worse on 1: −2.0 (net)." in details
    assert "0.001" not in opening._end({"net": panel((), ())}).details


def test_the_defaults_count_where_a_test_decides():
    """The mean is within the margin, but the test does not decide."""
    near = {"net": {**panel((), ()), DEFAULTS["AdaBound"]: curve(DEFAULTS["AdaBound"], 94.02)}}
    assert opening._defaults(near)[0].endswith("on 0 of 1 network, and worse on 0; on 1 the seeds do not decide.")


def test_untuned_adabound_is_compared_with_searched_methods():
    """As at paper scale: there is no suggestion."""
    curves = panel((), ())
    for label in ("Adam", "SGDM"):
        curves[label] = replace(curves[label], search=Search(((curves[label].spec, 0.0),), (), curves[label].spec))
    found = opening._tuning(None, {"net": curves})
    assert found.answer.startswith("No: at the paper's defaults AdaBound ends as well as the best searched method")
    assert found.details == "The searches took 100 training steps. “As well” is at most 1 point of accuracy worse."


@pytest.mark.parametrize(
    ("counts", "word"),
    [
        ((2, 0, 2), "Yes"),
        ((1, 0, 2), "Yes, where decided"),
        ((1, 0, 3), "Mostly not decided"),
        ((0, 1, 3), "Mostly not decided"),
        ((1, 1, 3), "Not always"),
        ((0, 2, 3), "No"),
        ((0, 0, 1), "Not decided"),
    ],
)
def test_the_word_says_how_much_is_decided(counts, word):
    assert opening.Tally(*counts).word == word
