import itertools
import math
import pickle

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.collections import LineCollection
from torch import nn

from dynabound import AdaBound
from dynabound.lens import LearningRateLens
from dynabound.lens.forecast import forecast
from helpers.lens_training import make_model


@pytest.fixture(autouse=True)
def no_open_figures():
    yield
    assert plt.get_fignums() == []


def watch(model, inputs, make_optimizer, steps=4, **options):
    optimizer = make_optimizer(model.parameters())
    with LearningRateLens(optimizer, model, every=1, **options) as lens:
        for _ in range(steps):
            optimizer.zero_grad()
            model(inputs).square().sum().backward()
            optimizer.step()
    return lens


def adam(params):
    return torch.optim.Adam(params, lr=1e-2)


def adabound(params):
    return AdaBound(params, lr=1e-2, gamma=0.1)


@pytest.fixture
def convolutional():
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 2, 3, padding=1) for _ in range(12)]
    model = nn.Sequential(nn.Conv2d(2, 2, 5, padding=2), *layers, nn.Flatten(), nn.Linear(2 * 16, 5))
    return watch(model, torch.randn(3, 2, 4, 4), adam)


def panels(figure):
    return [axes for axes in figure.axes if axes.get_title()]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_the_heatmap_is_figure_1(convolutional):
    figure = convolutional.heatmap()
    figure.canvas.draw()
    shown = panels(figure)
    kernels, bias = shown[:-1], shown[-1]
    assert len(kernels) == 9
    assert [axes.get_title() for axes in (kernels[0], kernels[-1])] == ["1.weight", "12.weight"]
    assert bias.get_title() == "14.bias"
    for axes in shown:
        patch = convolutional.patches[axes.get_title()]
        image = torch.as_tensor(axes.images[0].get_array().filled(math.nan))
        torch.testing.assert_close(image.flatten(), patch.double().log10().flatten())
        assert texts(axes) == [f"{value:.1f}".replace("-0.0", "0.0") for value in patch.double().log10().flatten()]
    assert kernels[0].images[0].get_array().shape == (3, 3)
    assert bias.images[0].get_array().shape == (1, 5)
    (bar,) = [axes for axes in figure.axes if not axes.get_title()]
    assert bar.get_ylabel() == "log₁₀ of the learning rate"
    colours = kernels[0].images[0].cmap
    assert sum(colours(0.0)[:3]) > sum(colours(1.0)[:3])  # lighter is smaller
    # and means the same in every panel: from one extreme to the other, or further if the rates go further
    logs = torch.cat([convolutional.patches[axes.get_title()].double().log10().flatten() for axes in shown])
    ends = (min(-2.0, logs.min().item()), max(3.0, logs.max().item()))
    assert {(axes.images[0].norm.vmin, axes.images[0].norm.vmax) for axes in shown} == {ends}


def test_the_kernel_is_one_of_the_layer():
    torch.manual_seed(0)
    model = nn.Conv2d(4, 5, 3)
    lens = watch(model, torch.randn(2, 4, 6, 6), adam, steps=1)
    gradient = model.weight.grad.abs()
    candidates = (1e-2 / gradient / 0.1).reshape(-1, 3, 3)  # the rate of Adam's first step, with β₁ = 0.9
    assert sum(torch.allclose(candidate, lens.patches["weight"], rtol=1e-3) for candidate in candidates) == 1


def test_chosen_layers_and_models_without_kernels():
    lens = watch(make_model(), torch.randn(4, 6), adam)
    assert [axes.get_title() for axes in panels(lens.heatmap())] == ["0.weight", "3.weight", "3.bias"]
    assert [axes.get_title() for axes in panels(lens.heatmap(["3.bias", "0.weight"]))] == ["0.weight", "3.bias"]
    assert [axes.get_title() for axes in panels(lens.heatmap("3.bias"))] == ["3.bias"]


def test_a_rate_that_is_not_finite_is_seen():
    model = nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=1.0, eps=0.0)
    model.weight.grad = torch.tensor([[0.1, math.nan, 0.0]])
    with LearningRateLens(optimizer, model) as lens:
        optimizer.step()
    (axes,) = panels(lens.heatmap())
    assert texts(axes) == ["1.0", "nan", "inf"]
    assert axes.images[0].get_array().mask.tolist() == [[False, True, True]]
    (panel,) = lens.evolution().axes
    assert panel.get_title() == "weight\nNaN rates: up to 1\ninfinite rates: up to 1"
    (panel,) = lens.funnel().axes
    assert [label.get_text() for label in panel.get_yticklabels()] == ["weight (1 NaN, 1 infinite)"]


def test_a_parameter_without_a_gradient_is_named_as_such():
    model = make_model()
    model[0].weight.requires_grad_(False)
    lens = watch(model, torch.randn(4, 6), adam)
    (axes,) = lens.funnel().axes
    assert axes.get_yticklabels()[0].get_text() == "0.weight (no gradient)"
    assert len(axes.lines[0].get_xdata()) == 3
    assert lens.evolution(["0.weight"]).axes[0].get_title() == "0.weight\nno gradient yet"
    with pytest.raises(ValueError, match=r"0.weight has had no gradient"):
        lens.heatmap(["0.weight"])


def test_nothing_to_draw_is_no_crash():
    model = make_model()
    for param in model.parameters():
        param.requires_grad_(False)
    optimizer = adam(model.parameters())
    with LearningRateLens(optimizer, model) as lens:
        optimizer.step()
    with pytest.raises(RuntimeError, match="no parameter has had a gradient"):
        lens.heatmap()
    assert len(lens.funnel().axes[0].get_yticklabels()) == 4
    assert lens.evolution().axes[0].get_title() == "0.weight\nno gradient yet"


def test_evolution_draws_min_median_and_max_before_the_funnel():
    lens = watch(make_model(), torch.randn(4, 6), adabound, steps=6)
    figure = lens.evolution(["0.weight", "3.weight", "3.bias"])
    figure.canvas.draw()
    assert [axes.get_title() for axes in figure.axes] == ["0.weight", "3.weight", "3.bias"]
    for axes in figure.axes:
        assert (axes.get_yscale(), axes.get_ylabel()) == ("log", "learning rate (log scale)")
        assert axes.get_xlabel() == "step"
        drawn = {line.get_label(): line for line in axes.lines}
        assert sorted(drawn) == ["max", "median", "min"]
        for column, line in drawn.items():
            assert list(line.get_xdata()) == [1, 2, 3, 4, 5, 6]
            assert list(line.get_ydata()) == lens.series(axes.get_title(), column).tolist()
        (band,) = axes.collections
        vertices = band.get_paths()[0].vertices
        assert vertices[:, 1].max() == pytest.approx(0.1 * (1 + 1 / 0.1))
        assert vertices[:, 1].min() == pytest.approx(0.1 * (1 - 1 / 1.1))
        assert band.get_zorder() < min(line.get_zorder() for line in axes.lines)
        assert axes.get_ylim()[0] < vertices[:, 1].min()  # the lower bound is not cut off
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["max", "median", "min", "between the bounds"]


def test_evolution_in_epochs_without_bounds():
    lens = watch(make_model(), torch.randn(4, 6), adam, steps=4)
    figure = lens.evolution(steps_per_epoch=2)
    assert [axes.get_title() for axes in figure.axes] == ["0.weight", "3.weight"]
    assert figure.axes[0].get_xlabel() == "epoch"
    assert list(figure.axes[0].lines[0].get_xdata()) == [0.5, 1.0, 1.5, 2.0]
    assert not figure.axes[0].collections
    with pytest.raises(ValueError, match="steps_per_epoch=0: must be a finite number > 0"):
        lens.evolution(steps_per_epoch=0)


def test_the_funnel_shows_where_every_parameter_is():
    lens = watch(make_model(), torch.randn(4, 6), adabound, steps=6, extremes=(0.05, 0.1))
    figure = lens.funnel()
    figure.canvas.draw()
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_xlabel()) == ("log", "learning rate (log scale)")
    assert [label.get_text() for label in axes.get_yticklabels()] == list(lens.shapes)
    rows = list(lens.latest().values())
    spans = next(c for c in axes.collections if isinstance(c, LineCollection)).get_segments()
    assert [(span[0][0], span[1][0]) for span in spans] == [(row["min"], row["max"]) for row in rows]
    assert list(axes.lines[0].get_xdata()) == [row["median"] for row in rows]
    assert [text.get_text() for text in figure.legends[0].get_texts()].count("between the bounds") == 1


def test_rates_that_are_all_the_same_have_numbers_at_the_axis():
    lens = watch(make_model(), torch.randn(4, 6), lambda params: torch.optim.SGD(params, lr=0.0947))
    for figure, axis in ((lens.funnel(), "xaxis"), (lens.evolution(), "yaxis")):
        figure.canvas.draw()
        ticks = getattr(figure.axes[0], axis)
        labels = [*ticks.get_majorticklabels(), *ticks.get_minorticklabels()]
        low, high = ticks.get_view_interval()
        assert high / low >= 3
        shown = [label for label in labels if label.get_text() and low < sum(label.get_position()) < high]
        assert len(shown) >= 2


@pytest.mark.slow
def test_figures_show_themselves_in_notebooks_and_can_be_pickled():
    lens = watch(make_model(), torch.randn(4, 6), adabound)
    for figure in (lens.heatmap(), lens.evolution(), lens.funnel(), forecast().figure()):
        assert type(figure).__module__ == "matplotlib.figure"  # W&B asks for this
        shown = figure._repr_png_()
        assert shown.startswith(b"\x89PNG")
        assert len(pickle.loads(pickle.dumps(figure)).axes) == len(figure.axes)


def test_many_parameters_do_not_overlap():
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(100)])
    figure = watch(model, torch.randn(4, 2), adam, steps=1).funnel()
    figure.canvas.draw()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert 20 <= len(boxes) <= 40
    assert all(after.y1 <= before.y0 + 1 for before, after in itertools.pairwise(boxes))
