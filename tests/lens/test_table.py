import io
import re

import pytest
import torch
from rich.console import Console
from torch import nn

from dynabound import AdaBound
from dynabound.bounds import certificate
from dynabound.lens import LearningRateLens
from dynabound.lens.forecast import forecast
from helpers.lens_training import make_model, train


def printed(lens, width):
    console = Console(file=io.StringIO(), width=width)
    lens.table(console)
    return console.file.getvalue()


def rows(text):
    return {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}


def test_every_parameter_has_its_numbers(lens):
    found = rows(printed(lens, 160))
    assert [name for name in found if name in lens.shapes or name == "all"] == [*lens.shapes, "all"]
    assert found["0.bias"] == ["8", "no", "grad", "yet"]
    assert found["3.weight"][-1] == found["all"][-1] == "1"
    row = lens.latest()["3.bias"]
    assert [float(cell) for cell in found["3.bias"][1:4]] == pytest.approx(
        [row[key] for key in ("min", "median", "max")], rel=0.05
    )
    assert found["3.bias"][4] == f"{row['clipped_low']:.1%}".replace("100.0%", "100%")


def test_columns_of_zeros_are_left_out(lens):
    headings = rows(printed(lens, 160))["parameter"]
    assert headings[:5] == ["shape", "min", "median", "max", "raised"]
    assert headings[-1] == "NaN"
    assert "inf" not in headings
    assert ">1000" not in headings
    assert "raised to the lower bound" in printed(lens, 160)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    plain = LearningRateLens(optimizer, model)
    train(model, optimizer, 1, plain)
    assert rows(printed(plain, 160))["parameter"] == ["shape", "min", "median", "max"]
    assert "lower bound" not in printed(plain, 160)


def watch(model, optimizer, **options):
    with LearningRateLens(optimizer, model, **options) as lens:
        for param in model.parameters():
            param.grad = torch.linspace(0, 1, param.numel()).reshape(param.shape).square()
        optimizer.step()
    return lens


@pytest.mark.parametrize("make", [torch.optim.Adam, AdaBound])
def test_names_are_whole_at_80_columns(make):
    names = [f"encoder.layers.{i}.attention.weight" for i in (0, 11)]
    inner = {name.replace(".", "/"): nn.Parameter(torch.ones(512, 8, 3)) for name in names}
    model = nn.ParameterDict(inner)
    # All columns are there: rates below and above, and for AdaBound clipped on both sides.
    lens = watch(model, make(model.parameters()), extremes=(0.02, 0.05))
    text = printed(lens, 80)
    assert max(map(len, text.splitlines())) <= 80
    for name in inner:
        assert f" {name} " in text
    assert len(rows(text)["all"]) >= 4


def test_longer_names_lose_whole_parts_and_numbers_last():
    layers = ["attention.self.query", "attention.output.LayerNorm", "intermediate.dense", "output.LayerNorm"]
    model = nn.Module()
    for name in [f"bert.encoder.layer.{i}.{layer}" for i in (1, 11) for layer in layers]:
        inner = model
        for part in name.split("."):
            if not hasattr(inner, part):
                inner.add_module(part, nn.Module())
            inner = getattr(inner, part)
        inner.weight = nn.Parameter(torch.ones(512, 8))
    lens = watch(model, AdaBound(model.parameters()), extremes=(0.02, 0.05))
    lines = printed(lens, 80).splitlines()
    assert max(map(len, lines)) <= 80
    headings, found = rows("\n".join(lines))["parameter"], [line.split() for line in lines if ".weight " in line]
    assert all(len(line) == 1 + len(headings) for line in found)  # no number is cut
    shown = [line[0] for line in found]
    assert len(set(shown)) == len(lens.shapes) == len(found)
    for name, short in zip(lens.shapes, shown, strict=True):
        assert set(filter(None, short.replace("…", ".").split("."))) <= set(name.split("."))
        assert f"{name.split('.')[3]}." in short
        assert short.endswith(".weight")


def test_a_name_without_dots_loses_its_middle():
    name = "first_" + "a_parameter_name_that_is_longer_than_a_line_of_a_terminal_" * 2 + "last"
    model = nn.ParameterDict({name: nn.Parameter(torch.ones(4))})
    text = printed(watch(model, AdaBound(model.parameters())), 80)
    (line,) = [line for line in text.splitlines() if "first_" in line]
    assert re.fullmatch(r"first_\w+…\w+last", line.split()[0])
    assert len(line) <= 80


def test_a_small_share_is_not_shown_as_zero():
    model = nn.ParameterDict({"w": nn.Parameter(torch.ones(10_000))})
    lens = watch(model, torch.optim.Adagrad(model.parameters(), lr=1.0, eps=0.0), extremes=(0.0, 1e7))
    assert 0 < lens.latest()["w"]["above"] < 5e-4
    assert rows(printed(lens, 80))["w"][-2] == "<0.1%"


def test_brackets_in_names_are_not_markup():
    model = nn.ParameterDict({"[bold]w": nn.Parameter(torch.ones(2))})
    assert "[bold]w" in printed(watch(model, torch.optim.SGD(model.parameters(), lr=0.1)), 80)


def test_notebooks_show_the_same_table(lens):
    html = lens._repr_html_()
    cells = re.findall(r"<t[dh] [^>]*>(.*?)</t[dh]>", html)
    text = printed(lens, 160)
    assert cells[:2] == ["parameter", "shape"]
    assert all(cell.replace("&lt;", "<").replace("&gt;", ">") in text for cell in cells)
    assert cells.count("100%") == text.count("100%")
    model = nn.ParameterDict({"<script>": nn.Parameter(torch.ones(2))})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert "no snapshot yet" in LearningRateLens(optimizer, model)._repr_html_()
    assert "<script>" not in watch(model, optimizer)._repr_html_()


def test_forecasts_and_certificates_are_shown_in_notebooks():
    html = forecast()._repr_html_()
    assert html.startswith("<pre>")
    assert "within 10% of SGD from step 10,000" in html
    assert "meets the assumptions of Theorem 4: yes" in html
    cells = re.findall(r"<td[^>]*>(.*?)</td>", certificate("harmonic", gamma=0.5, final_lr=1.0)._repr_html_())
    assert cells[cells.index("m") + 1] == "5.0"
    assert cells[cells.index("guaranteed") + 1] == "yes"
    assert cells[cells.index("but only for") + 1].startswith("convex losses on a bounded set")
    assert "but only for" not in certificate(("constant", 0.5, 2.0))._repr_html_()
