"""Tensors that a step cannot update: it raises, and has updated nothing."""

import copy

import pytest
import torch
from torch import nn

from dynabound import AdaBound, AMSBound
from dynabound.optim._validate import check_tensors
from dynabound.optim.adabound import adabound
from helpers.cases import backends
from helpers.functional import arguments


@pytest.mark.parametrize("backend", [*backends(), pytest.param({}, id="default")])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("kind", ["coo", "csr"])
def test_a_sparse_gradient_raises_before_any_update(kind, named, backend):
    model = nn.ModuleDict({"first": nn.Linear(4, 4), "table": nn.Embedding(6, 4)})
    table = model["table"].weight
    optimizer = AMSBound(model.named_parameters() if named else model.parameters(), **backend)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    before = copy.deepcopy(model.state_dict())
    # torch rejects CSR in .grad, but the functional form can get it.
    if kind == "csr":
        lists = [[table], [torch.ones(6, 4).to_sparse_csr()], *([torch.zeros(6, 4)] for _ in range(3))]
        with pytest.raises(RuntimeError, match=r"AMSBound.*sparse gradient"):
            adabound(*lists, [torch.zeros((), dtype=torch.int64)], **arguments(optimizer))
    else:
        table.grad = table.grad.to_sparse()
        with pytest.raises(RuntimeError, match=f"AMSBound: parameter {'.table.weight.' if named else 2} .*sparse"):
            optimizer.step()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("backend", [*backends(), pytest.param({}, id="default")])
def test_a_gradient_of_another_shape_or_device_raises(backend):
    params = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(4))]
    optimizer = AdaBound(params, **backend)
    for p in params:
        p.grad = torch.ones_like(p)
    params[1].data = torch.ones(5)
    with pytest.raises(RuntimeError, match=r"AdaBound: parameter 1 \(shape \(5,\).* gradient of shape \(4,\)"):
        optimizer.step()
    assert torch.equal(params[0], torch.ones(3))
    lists = [[params[0]], [torch.ones(3, device="meta")], *([torch.zeros(3)] for _ in range(2)), []]
    with pytest.raises(RuntimeError, match=r"gradient of shape .* on meta"):
        adabound(*lists, [torch.zeros((), dtype=torch.int64)], **arguments(optimizer))


@pytest.mark.parametrize("backend", [*backends(), pytest.param({}, id="default")])
def test_a_parameter_whose_shape_changed_raises_before_any_update(backend):
    params = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(4))]
    optimizer = AdaBound(params, **backend)
    for shape in ((4,), (5,)):
        params[1].data = torch.ones(shape)
        for p in params:
            p.grad = torch.ones_like(p)
        if shape == (4,):
            optimizer.step()
    before = params[0].detach().clone()
    with pytest.raises(RuntimeError, match=r"parameter 1 .* moments of shape \(4,\)"):
        optimizer.step()
    assert torch.equal(params[0], before)
    assert [int(optimizer.state[p]["step"]) for p in params] == [1, 1]


def emptied(tensor):
    tensor.untyped_storage().resize_(0)


def cannot_be_updated():
    """(parameter, its gradient, what to do after the first gradient is set, message)."""
    table = torch.ones(40)
    return {
        "float8": (torch.ones(4).to(torch.float8_e4m3fn), lambda p: None, "has dtype torch.float8_e4m3fn, must be"),
        "mkldnn": (torch.ones(4).to_mkldnn(), lambda p: None, "has layout torch._mkldnn, must be torch.strided"),
        "expanded": (torch.ones(()).expand(4), lambda p: None, "expanded tensor"),
        "integer": (torch.ones(4, dtype=torch.int64), lambda p: None, "has dtype torch.int64, must be floating-point"),
        "emptied parameter": (torch.ones(4), emptied, "the storage of it was resized to 0"),
        "emptied gradient": (torch.ones(4), lambda p: emptied(p.grad), "the storage of its gradient was resized to 0"),
        "view into an emptied storage": (table[9:30], emptied, "the storage of it was resized to 0"),
        "emptied complex": (torch.ones(4, dtype=torch.complex64), emptied, "the storage of it was resized to 0"),
    }


@pytest.mark.parametrize("backend", [*backends(), pytest.param({}, id="default")])
@pytest.mark.parametrize("case", cannot_be_updated())
def test_memory_that_cannot_be_updated_raises_before_any_update(case, backend):
    data, change, message = cannot_be_updated()[case]
    first, second = nn.Parameter(torch.ones(3)), nn.Parameter(data, requires_grad=False)
    if case in ("integer", "float8") and backend.get("fused"):
        with pytest.raises(ValueError, match=str(data.dtype)):
            AdaBound([first, second], **backend)
        return
    optimizer = AdaBound([first, second], **backend)
    first.grad, second.grad = torch.ones_like(first), second.detach().clone()
    if case == "expanded":
        second.grad = torch.ones(4)
    change(second)
    with pytest.raises(RuntimeError, match=f"parameter 1 .*{message}.*; nothing was updated"):
        optimizer.step()
    assert torch.equal(first, torch.ones(3))
    assert not optimizer.state


@pytest.mark.parametrize("backend", [*backends(), pytest.param({}, id="default")])
def test_an_emptied_moment_raises_before_any_update(backend):
    params = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = AMSBound(params, **backend)
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer.step()
    before = params[0].detach().clone()
    emptied(optimizer.state[params[1]]["max_exp_avg_sq"])
    with pytest.raises(RuntimeError, match=r"parameter 1 .*the storage of a moment of it was resized to 0"):
        optimizer.step()
    assert torch.equal(params[0], before)


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize(
    ("name", "moment"),
    {
        "exp_avg": torch.ones(1).expand(4),
        "exp_avg_sq": torch.ones(4, dtype=torch.int64),
        "max_exp_avg_sq": torch.ones(4, dtype=torch.complex64),
        "step": None,
    }.items(),
)
def test_state_that_cannot_be_updated_raises_before_any_update(name, moment, backend):
    params = [nn.Parameter(torch.ones(4)) for _ in range(2)]
    optimizer = AMSBound(params, **backend)
    for param in params:
        param.grad = torch.ones(4)
    optimizer.step()
    if moment is None:
        emptied(optimizer.state[params[1]][name])
    else:
        optimizer.state[params[1]][name] = moment
    before = params[0].detach().clone()
    with pytest.raises(RuntimeError):
        optimizer.step()
    assert torch.equal(params[0], before)
    assert optimizer.state[params[0]]["step"] == 1


@pytest.mark.parametrize("backend", [*backends(), pytest.param({}, id="default")])
@pytest.mark.parametrize("name", ["exp_avg", "exp_avg_sq"])
@pytest.mark.parametrize(
    ("moment", "message"),
    [
        (torch.zeros(64, 71, dtype=torch.uint8), r"moments of shape \(64, 71\)"),
        (torch.zeros(32, 144, dtype=torch.uint8), r"moments of shape \(32, 144\)"),
        (torch.zeros(64, 72, dtype=torch.int8), "moments of dtype torch.int8"),
        (torch.zeros(72, dtype=torch.uint8).expand(64, 72), "not contiguous"),
        (torch.zeros(72, 64, dtype=torch.uint8).t(), "not contiguous"),
        (torch.zeros(64 * 72 + 1, dtype=torch.uint8)[1:].view(64, 72), "not aligned"),
        (None, "storage of a moment of it was resized to 0"),
    ],
)
def test_bad_moments_in_8_bits_raise_before_any_update(moment, message, name, backend):
    params = [nn.Parameter(torch.ones(64, 64)) for _ in range(2)]
    optimizer = AdaBound(params, state_dtype="8bit", **backend)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    if moment is None:
        emptied(optimizer.state[params[1]][name])
    else:
        optimizer.state[params[1]][name] = moment
    before = copy.deepcopy((params[0].detach(), list(optimizer.state[params[0]].values())))
    with pytest.raises(RuntimeError, match=f"parameter 1 .*{message}"):
        optimizer.step()
    assert torch.equal(params[0], before[0])
    assert all(torch.equal(*pair) for pair in zip(optimizer.state[params[0]].values(), before[1], strict=True))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_a_gradient_of_a_dtype_that_does_not_fit_raises_before_any_update(dtype):
    params = [nn.Parameter(torch.ones(4)) for _ in range(2)]
    group = AdaBound(params).param_groups[0]
    with pytest.raises(RuntimeError, match=rf"parameter 1 .* has a gradient of dtype {dtype}"):
        check_tensors(group, params[1], torch.ones(4, dtype=dtype))
