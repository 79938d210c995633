"""The optimizer with torch's features: compile, capture, autograd, hooks, gradient scaling, averaging."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from dynabound import AdaBound
from helpers.cases import backends

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def pair(dtype=torch.float32, **options):
    """Two equal sets of parameters, each with an optimizer."""
    torch.manual_seed(0)
    first = [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in ((4, 3), (5,), ())]
    second = [nn.Parameter(p.detach().clone()) for p in first]
    return first, AdaBound(first, **options), second, AdaBound(second, **options)


def set_gradients(first, second):
    for p, q in zip(first, second, strict=True):
        p.grad = torch.randn_like(p)
        q.grad = p.grad.clone()


COMPILED = {
    "default": {},
    "amsbound": dict(amsbound=True, weight_decay=0.1, decoupled_weight_decay=True),
    "everything": dict(box=(-1, 1), sqrt_decay=True, beta1_decay="harmonic", debias=False, maximize=True),
    "linear": dict(bounds="linear", gamma=0.3, weight_decay=0.1),
    "exponential": dict(bounds="exponential", gamma=0.3, beta1_decay=0.9),
    "adam": dict(bounds=("constant", 0.0, float("inf"))),
    "callable": dict(bounds=lambda t: (0.5, 1 + 1 / t)),
    "loop": dict(foreach=False),
}


@pytest.mark.parametrize("options", COMPILED.values(), ids=COMPILED)
@pytest.mark.compile
@pytest.mark.skipif(TORCH < (2, 9), reason="torch.compile of torch 2.6 and 2.8 cannot trace the step into one graph")
@pytest.mark.filterwarnings("ignore")  # torch.compile warns about its own internals
def test_compiles_once_into_one_graph(options):
    """fullgraph=True fails on a graph break; one frame for all steps means no recompilation."""
    torch._dynamo.reset()
    params, optimizer, others, eager = pair(lr=torch.tensor(1e-2), **options)
    counter = CompileCounter()
    step = torch.compile(optimizer.step, backend=counter, fullgraph=True)
    for t in range(6):
        for o in (optimizer, eager):
            o.param_groups[0]["lr"].fill_(1e-2 / (t + 1))
        set_gradients(params, others)
        step()
        eager.step()
        for p, q in zip(params, others, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
    assert counter.frame_count == 1
    assert {int(state["step"]) for state in optimizer.state.values()} == {6}


@pytest.mark.parametrize("foreach", [None, True])
@pytest.mark.parametrize("options", COMPILED.values(), ids=COMPILED)
def test_capturable_equals_eager(options, foreach):
    """The captured arithmetic on tensors equals the arithmetic on numbers."""
    if foreach and "foreach" in options:
        options = {}
    params, optimizer, others, eager = pair(torch.float64, **options)
    optimizer = AdaBound(params, **options, capturable=True, **({"foreach": True} if foreach else {}))
    others.append(nn.Parameter(torch.ones(2, dtype=torch.float64)))  # steps that differ within one call
    params.append(nn.Parameter(torch.ones(2, dtype=torch.float64)))
    for o, p in ((optimizer, params[-1]), (eager, others[-1])):
        o.add_param_group({"params": [p]})
    for t in range(6):
        set_gradients(params, others)
        if t % 2:
            params[1].grad = others[1].grad = None
        optimizer.step()
        eager.step()
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-11, atol=1e-12)
    assert [int(optimizer.state[p]["step"]) for p in params] == [6, 3, 6, 6]


def test_differentiable_agrees_with_finite_differences():
    """Gradients of the parameters after three steps, with respect to lr and to the gradients."""
    start = torch.tensor([0.5, -0.3, 0.8], dtype=torch.float64)

    def unrolled(lr, g1, g2, g3):
        p = (start * 1.0).requires_grad_() * 1
        optimizer = AdaBound([p], lr=0.01, gamma=0.2, weight_decay=0.1, differentiable=True, amsbound=True)
        optimizer.param_groups[0]["lr"] = lr  # the bounds scale with lr / 0.01
        for g in (g1, g2, g3):
            p.grad = g
            optimizer.step()
        return p

    lr = torch.tensor(0.01, dtype=torch.float64, requires_grad=True)
    grads = [
        torch.tensor(g, dtype=torch.float64, requires_grad=True) for g in ([1.0, -2, 3], [2.0, 1, -1], [0.5, 1, 2])
    ]
    assert torch.autograd.gradcheck(unrolled, (lr, *grads), eps=1e-7, atol=1e-5)


def test_closure_runs_with_gradients_and_returns_the_loss():
    p = nn.Parameter(torch.ones(2))
    optimizer = AdaBound([p])

    def closure():
        optimizer.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        return loss

    with torch.no_grad():
        assert optimizer.step(closure).item() == 2.0
    assert p[0].item() == pytest.approx(0.999)
    assert optimizer.step() is None


@pytest.mark.parametrize("backend", backends())
def test_grad_scaler_skips_a_step_on_infinity(backend):
    p = nn.Parameter(torch.ones(2))
    optimizer = AdaBound([p], **backend)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for loss in (p.sum() * float("inf"), p.sum()):
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if not optimizer.state:
            assert torch.equal(p, torch.ones(2))
    assert p[0].item() == pytest.approx(0.999)
    assert int(optimizer.state[p]["step"]) == 1


@pytest.mark.parametrize("backend", backends())
def test_autograd_notices_the_update(backend):
    """A parameter changed between forward and backward is an error, not a wrong gradient."""
    p = nn.Parameter(torch.ones(3))
    optimizer = AdaBound([p], **backend)
    loss = (p**2).sum()
    p.grad = torch.ones(3)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("options", backends())
def test_bounds_that_replace_a_parameters_memory(options):
    """A bound function runs before the backend calls and may replace memory: the step updates the new memory."""
    first, second = (nn.Parameter(torch.ones(1 << 16)) for _ in range(2))

    def bounds(step):
        if step == 2:
            first.data = torch.full_like(first, 5.0)
        return 0.5, 1.5

    optimizer = AdaBound([{"params": [first]}, {"params": [second], "bounds": bounds}], lr=0.1, **options)
    for _ in range(2):
        first.grad, second.grad = torch.ones_like(first), torch.ones_like(second)
        optimizer.step()
    assert torch.all(first < 5.0)
    assert torch.all(first > 4.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_captured_tensor_lr_is_exact_in_every_dtype(dtype):
    """1 − lr · weight_decay is computed in float64 for every dtype of lr."""
    params = [nn.Parameter(torch.full((2,), 3.0, dtype=torch.float64)) for _ in range(2)]
    lr = torch.tensor(1e-3, dtype=dtype)
    options = dict(weight_decay=1e-4, decoupled_weight_decay=True)
    optimizers = [
        AdaBound(params[:1], lr=lr, capturable=True, **options),
        AdaBound(params[1:], lr=lr.item(), **options),
    ]
    for p, optimizer in zip(params, optimizers, strict=True):
        p.grad = torch.zeros_like(p)
        for _ in range(100):
            optimizer.step()
    torch.testing.assert_close(params[0], params[1], rtol=1e-13, atol=0)
