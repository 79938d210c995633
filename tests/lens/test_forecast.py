import json
import math

import pytest
from typer.testing import CliRunner

from dynabound.bounds import evaluate
from dynabound.cli import app
from dynabound.lens.forecast import forecast


def first(condition):
    return next((t for t in range(1, 30_000) if condition(t)), None)


@pytest.mark.parametrize("family", ["harmonic", "exponential", "linear"])
@pytest.mark.parametrize("gamma", [0.3, 0.01])
def test_the_steps_are_the_first_of_a_plain_search(family, gamma):
    found = forecast(lr=1e-3, final_lr=0.05, gamma=gamma, family=family)

    def bounds(t):
        return [0.05 * bound for bound in evaluate(family, gamma, t)]

    for name, margin in (("10%", 0.1), ("1%", 0.01)):
        expected = first(lambda t: all(abs(bound / 0.05 - 1) <= margin * (1 + 1e-9) for bound in bounds(t)))  # noqa: B023
        assert found.within[name] == expected
    for row in found.clipped:
        expected = first(lambda t: not bounds(t)[0] <= row["rate"] <= bounds(t)[1])  # noqa: B023
        assert row["step"] == expected
        lower, upper = bounds(row["step"])
        assert (row["rate"] < lower) == (row["bound"] == "lower")
        assert (row["rate"] > upper) == (row["bound"] == "upper")
    for step, lower, upper in zip(*found.curve.values(), strict=True):
        assert (lower, upper) == pytest.approx(bounds(int(step)))


def test_the_final_rate_is_never_clipped():
    rows = {row["gradient"]: row for row in forecast(lr=1e-3, final_lr=0.1).clipped}
    assert rows[0.01]["rate"] == pytest.approx(0.1)
    assert (rows[0.01]["bound"], rows[0.01]["step"]) == (None, None)


def test_a_rate_that_is_next_to_the_final_one_is_clipped_late():
    row = forecast(lr=1.0, final_lr=1.001, gamma=1e-3).clipped[0]
    assert row["step"] == pytest.approx(1e6, rel=0.01)  # l(t) > 1/1.001


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(lr=0.0), "lr=0.0: must be a finite number > 0"),
        (dict(lr=math.inf), "lr=inf"),
        (dict(gamma=0.0), "gamma=0.0: must be a finite number > 0"),
        (dict(final_lr=-1.0), "final_lr=-1.0"),
        (dict(family="constant"), "family='constant': must be one of harmonic, exponential, linear"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        forecast(**options)


def test_the_picture():
    figure = forecast(gamma=1e-2).figure()
    figure.canvas.draw()
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step (log scale)", "learning rate (log scale)")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "within 10% of SGD: step 1,000" in labels
    assert "within 1% of SGD: step 10,000" in labels
    assert len(axes.lines) == 5


def run(*arguments):
    result = CliRunner().invoke(app, ["bounds", *arguments])
    return result.exit_code, result.output


def test_the_command_prints_the_answers():
    code, output = run("--final-lr", "0.1", "--gamma", "1e-3", "--lr", "1e-3")
    assert code == 0
    assert "within 10% of SGD from step 10,000" in output
    assert "by the upper bound from step 112" in output
    assert "Theorem 4" not in output
    drawn = [line for line in output.splitlines() if "█" in line]
    widths = [line.count("█") for line in drawn]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == 40
    assert widths[-1] == 1


def test_json_and_files(tmp_path):
    code, output = run("--json", "--family", "linear", "--gamma", "0.01", "--out", str(tmp_path / "new"))
    assert code == 0
    data = json.loads(output, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert data["within"] == {"10%": 91, "1%": 100}
    assert data["certificate"]["guaranteed"] is True
    assert json.loads((tmp_path / "new" / "bounds.json").read_text()) == data
    assert (tmp_path / "new" / "bounds.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((tmp_path / "new").iterdir())) == 2


def test_a_bad_option_is_a_usage_error():
    assert "constant" not in run("--help")[1]
    code, output = run("--family", "cubic")
    assert code == 2
    assert "must be one of harmonic, exponential, linear" in output
