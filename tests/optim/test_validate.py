"""Invalid hyper-parameters raise where they are given, with name, value and what is allowed."""

import math
import re
from collections import UserList

import pytest
import torch
from torch import nn

from dynabound import AdaBound, AdaBoundW, AMSBound
from dynabound.optim import _fused
from helpers.cases import INVALID


def param():
    return nn.Parameter(torch.ones(2))


@pytest.mark.parametrize(("name", "value", "error"), INVALID, ids=lambda x: repr(x) if not isinstance(x, type) else "")
def test_invalid_values_raise(name, value, error):
    shown = re.escape(f"{name}={value!r}: must be ")
    with pytest.raises(error, match=shown):
        AdaBound([param()], **{name: value})
    optimizer = AdaBound([param()])
    with pytest.raises(error, match=shown):
        optimizer.add_param_group({"params": [param()], name: value})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("pair", [("fused", "foreach"), ("fused", "differentiable"), ("fused", "capturable"),
                                  ("foreach", "differentiable")])  # fmt: skip
def test_backends_that_exclude_each_other(pair):
    options = dict.fromkeys(pair, True)
    with pytest.raises(ValueError, match=f"{pair[0]}=True, {pair[1]}=True"):
        AdaBound([param()], **options)
    optimizer = AdaBound([param()])
    with pytest.raises(ValueError, match=f"{pair[0]}=True, {pair[1]}=True"):
        optimizer.add_param_group({"params": [param()], **options})


@pytest.mark.skipif(not _fused.AVAILABLE, reason="the C kernel was not built")
def test_fused_on_parameters_that_the_kernel_does_not_support():
    optimizer = AdaBound([param()])
    bad = nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False)
    with pytest.raises(ValueError, match=r"fused=True: parameter 1 .* of torch.int64"):
        optimizer.add_param_group({"params": [param(), bad], "fused": True})
    assert len(optimizer.param_groups) == 1
    with pytest.raises(ValueError, match="fused=True: parameter 0"):
        AdaBound([nn.Parameter(torch.ones(2, dtype=torch.float8_e5m2))], fused=True)


@pytest.mark.skipif(not _fused.AVAILABLE, reason="the C kernel was not built")
def test_fused_on_the_meta_device_needs_memory_before_the_first_step():
    layer = nn.Linear(2, 2, device="meta")
    optimizer = AdaBound(layer.parameters(), fused=True)
    layer.weight.grad = torch.ones_like(layer.weight)
    with pytest.raises(RuntimeError, match=r"parameter 0 .* has no data, which fused=True needs: .* to_empty"):
        optimizer.step()
    assert not optimizer.state


def test_fused_without_the_kernel_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(_fused, "AVAILABLE", False)
    monkeypatch.setattr(_fused, "MISSING", "it was not built")
    with pytest.raises(RuntimeError, match="fused=True: there is no C kernel: it was not built; or leave fused=None"):
        AdaBound([param()], fused=True)
    p = param()
    optimizer = AdaBound([p])  # not requested: falls back silently
    p.grad = torch.ones(2)
    optimizer.step()
    assert p[0].item() == pytest.approx(0.999)


def test_the_named_variants_do_not_contradict_themselves():
    with pytest.raises(ValueError, match="amsbound=False: must be True for AMSBound"):
        AMSBound([param()], amsbound=False)
    with pytest.raises(ValueError, match="decoupled_weight_decay=False: must be True"):
        AdaBoundW([param()], decoupled_weight_decay=False)
    for cls in (AMSBound, AdaBoundW):
        assert repr(cls([param()], **cls([param()], lr=0.5).defaults)) == repr(cls([param()], lr=0.5))


def test_a_reused_group_gets_a_new_base_rate():
    group = {"params": [param()], "lr": 1e-3}
    AdaBound([group])
    group["lr"] = 0.1
    assert AdaBound([group]).param_groups[0]["base_lr"] == 0.1


@pytest.mark.parametrize("tensor", [False, True])
def test_a_group_with_its_own_lr_gets_final_lr_in_proportion(tensor):
    lr = torch.tensor(1e-3) if tensor else 1e-3
    own = torch.tensor(1e-5) if tensor else 1e-5
    groups = [
        {"params": [param()]},
        {"params": [param()], "lr": own},
        {"params": [param()], "lr": own, "final_lr": 0.1},
    ]
    optimizer = AdaBound(groups, lr=lr, final_lr=0.1)
    optimizer.add_param_group({"params": [param()], "lr": 2e-3})
    found = [group["final_lr"] for group in optimizer.param_groups]
    assert found == pytest.approx([0.1, 0.001, 0.1, 0.2])
    assert [bounds.final_lr for bounds in optimizer.bounds_now()] == pytest.approx(found)


@pytest.mark.parametrize(("default", "own"), [(0.0, 1e-3), (1e-3, 0.0)])
def test_final_lr_is_common_where_there_is_no_proportion(default, own):
    """A rate of 0 may be raised later."""
    assert AdaBound([{"params": [param()], "lr": own}], lr=default).param_groups[0]["final_lr"] == 0.1


def test_a_scaled_final_lr_that_overflows_raises():
    with pytest.raises(ValueError, match="final_lr=inf: must be a finite number"):
        AdaBound([{"params": [param()], "lr": 1e300}], lr=1e-300)


def test_differentiable_is_the_same_for_all_groups():
    optimizer = AdaBound([param()])
    with pytest.raises(ValueError, match="differentiable=True: must be the same for all groups"):
        optimizer.add_param_group({"params": [param()], "differentiable": True})


def test_a_typo_is_an_error():
    for cls in (AdaBound, AMSBound, AdaBoundW):
        with pytest.raises(TypeError, match="final_rl"):
            cls([param()], final_rl=0.1)
    with pytest.raises(TypeError, match="must be a dict"):
        AdaBound([param()]).add_param_group([param()])


def test_edges_of_what_is_allowed():
    edges = dict(lr=0, betas=(0, 0), final_lr=0, gamma=1e-12, eps=0, weight_decay=0, box=(-math.inf, math.inf))
    others = dict(lr=torch.tensor([1e-3]), gamma=10, beta1_decay=1, box=(0, 0), betas=(0.5, 0.5))
    for options in (edges, others):
        group = AdaBound([param()], **options).param_groups[0]
        assert {name: group[name] for name in options} == options


def test_numbers_are_kept_as_primitives():
    numpy = pytest.importorskip("numpy")
    bounds = ("constant", numpy.float32(0.5), numpy.float64(2))
    group = AdaBound([param()], bounds=bounds).param_groups[0]
    assert [type(v) for v in group["bounds"]] == [str, float, float]
    group = AdaBound(
        [param()], lr=numpy.float32(0.5), final_lr=numpy.float64(1), betas=[numpy.float32(0.5), 0]
    ).param_groups[0]
    assert [type(v) for v in (group["lr"], group["final_lr"], *group["betas"])] == [float] * 4


def test_a_sequence_of_another_type_is_kept_as_a_tuple():
    """OmegaConf's ListConfig is neither a tuple nor a list."""
    group = AdaBound([param()], betas=UserList([0.5, 0.9]), box=UserList([-1, 1])).param_groups[0]
    assert (group["betas"], group["box"]) == ((0.5, 0.9), (-1.0, 1.0))


def test_named_parameters_are_accepted():
    model = nn.Linear(2, 2)
    optimizer = AdaBound(model.named_parameters())
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    assert optimizer.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]
    with pytest.raises(ValueError, match="empty parameter list"):
        AdaBound([])
