"""The numbers of the results' pages, computed again from the lines of the ledger, without any code of the lab."""

import json
import math
import re
import statistics
from pathlib import Path

import pytest
from scipy import stats

ROOT = Path(__file__).parents[3]
METHODS = {"SGD": "sgd", "SGDM": "sgdm", "CSGD": "csgd", "AdaGrad": "adagrad", "Adam": "adam", "AMSGrad": "amsgrad",
           "AdamW": "adamw", "AdaBound": "adabound", "AMSBound": "amsbound", "Prodigy": "prodigyopt:Prodigy",
           "Schedule-free AdamW": "schedulefree:AdamWScheduleFree", "D-Adaptation Adam": "dadaptation:DAdaptAdam",
           "β": "adabound"}  # fmt: skip
TEST_IMAGES = {"mnist": 10_000, "digits": 360, "digits-half": 899, "cifar10-2000": 2000, "cifar10-16": 10_000}
DATA = {"mnist": "MNIST", "digits-half": "scikit-learn's digits", "cifar10-2000": "CIFAR-10", "cifar10-16": "CIFAR-10",
        "ptb": "Penn Treebank", "pydoc": "the Python reference"}  # fmt: skip


def cells(text):
    rows = [re.split(r" \| ", row[2:-2]) for row in text.splitlines() if row.startswith("| ")]
    return [[re.sub(r"\\(.)", r"\1", cell).replace("−", "-") for cell in row] for row in rows[2:]]


def fields(line):
    """The fields of a spec in a line such as "perceptron: task mnist, batch size 128, …; 3 seeds"."""
    pairs = (part.rpartition(" ") for part in line.partition(": ")[2].partition(";")[0].split(", "))
    return {"seeds": int(line.split()[-2]), **{name.replace(" ", "_"): value for name, _, value in pairs}}


@pytest.fixture(scope="module")
def appendix():
    text = (ROOT / "docs" / "results-appendix.md").read_text(encoding="utf-8")
    return text.replace("\n  ", " ")


@pytest.fixture(scope="module")
def tables(appendix):
    """By study, scale and panel: the task, and of each method its row and its runs in the ledger."""
    files = [path.read_text() for path in (ROOT / "results").glob("*-*.jsonl")]
    runs = [json.loads(line) for text in files for line in text.splitlines()]
    runs.sort(key=lambda run: run["spec"]["seed"])
    found = {}
    for title, scale, section in re.findall(r"^## ([^\n]+), (\w+) scale\n(.*?)(?=^## |\Z)", appendix, re.M | re.S):
        workloads = [fields(line) for line in re.findall(r"^- (\S+: task .*)", section.replace("\\", ""), re.M)]
        panels = re.findall(r"^(.+), (?:accuracy|perplexity).*?mean ± .*?\n\n((?:\|.*\n)+)", section, re.M)
        for place, (panel, table) in enumerate(panels):
            workload = workloads[min(place, len(workloads) - 1)]
            own = [run for run in runs if run["spec"]["scale"] == scale and fits(run["spec"], workload)]
            methods = {row[0]: (row, [run for run in own if is_of(run["spec"], panel, *row[:2])][: workload["seeds"]])
                       for row in cells(table)}  # fmt: skip
            found[title, scale, panel.replace("\\", "")] = workload["task"], methods
    return found


def fits(spec, workload):
    return all(value == spec[key] if isinstance(spec[key], str) else float(value) == spec[key]
               for key, value in workload.items()
               if key != "seeds" and (key, spec["optimizer"]) != ("weight_decay", "adamw"))  # fmt: skip


def is_of(spec, panel, label, settings):
    """Whether the run has the method and the settings that a row shows."""
    name = next((each for each in (re.split(r"[, ]", label)[0], label) if each in METHODS), panel)
    shown = settings.partition(" (best")[0]
    options = {key: value for key, value in spec["opt"].items() if key in ("betas", "final_lr", "gamma")}
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in sorted(options.items())}
    if spec["optimizer"] == "adamw":
        options["weight_decay"] = spec["weight_decay"]
    text = ", ".join([f"lr {spec['lr']:g}", *(f"{key} {value}" for key, value in options.items())])
    return spec["optimizer"] == METHODS.get(label, METHODS.get(name)) and text == shown


def series(run, split):
    metrics = run["metrics"]
    return metrics.get(f"{split}_perplexity") or [100 * value for value in metrics[f"{split}_accuracy"]]


def test_every_mean_and_spread(tables):
    checked = 0
    for task, methods in tables.values():
        best_of = max if task in TEST_IMAGES else min
        for row, found in methods.values():
            ended = [run for run in found if run["state"] == "finished"]
            picks = ("test", lambda x: x[-1]), ("test", best_of), ("train", lambda x: x[-1])
            columns = [[pick(series(run, split)) for run in ended] for split, pick in picks]
            for shown, values in zip(row[2:5], columns, strict=True):
                numbers = [float(number) for number in re.findall(r"\d+\.\d+", shown)]
                assert numbers, row
                middle = statistics.fmean(values)
                assert numbers[0] == pytest.approx(middle, abs=0.0051), row
                if len(numbers) > 1:
                    binomial = middle * (100 - middle) / TEST_IMAGES[task] if task in TEST_IMAGES else 0.0
                    spread = math.sqrt(statistics.variance(values) + binomial)
                    assert numbers[1] == pytest.approx(spread, abs=0.0051), row
                checked += 1
    assert checked > 200


def t_test(panel, a, b):
    """The difference, its error and degrees of freedom: variances pooled over methods of a similar spread, or Welch."""
    own = [panel[a], panel[b]]
    squares = [statistics.variance(x) * (len(x) - 1) for x in own]
    free = [len(x) - 1 for x in own]
    variance = sum(squares) / sum(free)
    others = [x for label, x in panel.items() if label not in (a, b) and len(x) > 1]
    near = [x for x in others if variance / 4 <= statistics.variance(x) <= 25 * variance]
    parts = [statistics.variance(x) / len(x) for x in own]
    value = statistics.fmean(own[0]) - statistics.fmean(own[1])
    if others and not near:
        return value, math.sqrt(sum(parts)), sum(parts) ** 2 / sum(p**2 / f for p, f in zip(parts, free, strict=True))
    squares += [statistics.variance(x) * (len(x) - 1) for x in near]
    free += [len(x) - 1 for x in near]
    return value, math.sqrt(sum(squares) / sum(free) * sum(1 / len(x) for x in own)), sum(free)


def networks(tables):
    return {f"{DATA[task]}, {panel} ({scale})": (task, methods) for (title, scale, panel), (task, methods)
            in tables.items() if title.startswith(("Figure", "CIFAR-10"))}  # fmt: skip


def test_every_pair(tables, appendix):
    """Both epochs must agree; Holm's procedure at 5 % decides, and gives the interval its level."""
    panels = networks(tables)
    shown = cells(appendix.partition("## All pairs")[2].partition("\n## ")[0])
    tests = []
    for network, ours, other, *_ in shown:
        task, methods = panels[network]
        score = (lambda x: x) if task in TEST_IMAGES else (lambda x: -100 * math.log(x))
        both = []
        for pick in (lambda x: x[-1], max if task in TEST_IMAGES else min):
            panel = {label: [score(pick(series(run, "test"))) for run in found if run["state"] == "finished"]
                     for label, (_, found) in methods.items()}  # fmt: skip
            value, error, free = t_test(panel, ours, other)
            both.append((stats.t.sf(value / error, free), stats.t.cdf(value / error, free), value, error, free))
        side = 0 if max(each[0] for each in both) < max(each[1] for each in both) else 1
        tests.append((max(each[side] for each in both), side, max(both, key=lambda each: each[side])))
    stopped, level = False, 0.0
    for rank, place in enumerate(sorted(range(len(tests)), key=lambda i: tests[i][0])):
        p, side, (_, _, value, error, free) = tests[place]
        if not stopped:
            level = 0.05 / (len(tests) - rank)
            stopped = p > level
        margin = stats.t.isf(level, free) * error
        low, high = (float(end) for end in shown[place][4].split(" to "))
        assert (float(shown[place][3]), low, high) == pytest.approx((value, value - margin, value + margin), abs=0.0051)
        assert shown[place][5] == ("undecided" if stopped else ("supported", "refuted")[side])


def test_the_table_of_the_page(tables, appendix):
    """Its means, its intervals, and the lines that count its verdicts."""
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    part = page.partition("## AdaBound against")[2].partition("\n## ")[0].replace("\n  ", " ")
    pairs = {tuple(row[:3]): row[3:6] for row in cells(appendix.partition("## All pairs")[2].partition("\n## ")[0])}
    panels, counts = networks(tables), {}
    for network, *means, against_sgd, against_adam in cells(part):
        task, methods = panels[network]
        labels = ("AdaBound", "SGDM" if "SGDM" in methods else "SGD", "Adam")
        values = [[series(run, "test")[-1] for run in methods[label][1]] for label in labels]
        assert [float(each) for each in means] == pytest.approx([*map(statistics.fmean, values)], abs=0.0051), network
        for name, label, cell in (("SGD", labels[1], against_sgd), ("Adam", "Adam", against_adam)):
            difference, interval, verdict = pairs[network, "AdaBound", label]
            assert cell == f"{difference} [{interval.replace(' to ', ', ')}] {verdict}"
            counts.setdefault(("images" if task in TEST_IMAGES else "text", name), []).append(verdict)
    lines = re.findall(r"- (\d+) networks on (\w+), .* than (\w+): .*; (\d+) supported, (\d+) ref.*, (\d+) und", part)
    assert {(kind, name): list(map(int, numbers)) for _, kind, name, *numbers in lines} == {
        key: [found.count(word) for word in ("supported", "refuted", "undecided")] for key, found in counts.items()
    }


def test_every_claim_about_ends(tables, appendix):
    """Its numbers are in the tables of methods, its difference is theirs, and its interval agrees with its verdict."""
    checked = 0
    for section in re.split(r"^## ", appendix, flags=re.MULTILINE):
        shown = {}  # the scores behind "97.19 ± 0.70"
        for (title, scale, _), (task, methods) in tables.items():
            for row, runs in methods.values() if section.startswith(f"{title}, {scale} scale") else ():
                picks = (lambda x: x[-1]), max if task in TEST_IMAGES else min
                for cell, pick in zip(row[2:4], picks, strict=True):
                    ends = [pick(series(run, "test")) for run in runs if run["state"] == "finished"]
                    scores = ends if task in TEST_IMAGES else [-100 * math.log(each) for each in ends]
                    shown.setdefault(cell, []).append(statistics.fmean(scores))
        for claim, _, measured, difference, interval, verdict in cells(section.partition("| claim | source ")[2]):
            numbers = re.findall(r"\d+\.\d+ ± \d+\.\d+", measured)
            if interval == "–" or len(numbers) not in (2, 4) or "as fast as" in claim or "early" in claim:
                continue
            pairs = zip(numbers[::2], numbers[1::2], strict=True)
            found = [a - b for one, other in pairs for a in shown[one] for b in shown[other]]
            assert min(abs(each - float(difference)) for each in found) < 0.0051, claim
            size = float((re.search(r"(?:within|at most) (\d+)", claim) or [0, 0])[1])
            most = size if "within" in claim else math.inf
            low, high = (float(end) for end in interval.split(" to "))
            inside, outside = low > -size and high < most, high < -size or low > most
            assert verdict == ("supported" if inside else "refuted" if outside else "undecided"), claim
            checked += 1
    assert checked > 100
