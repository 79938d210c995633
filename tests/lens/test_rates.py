"""Rates are proven by what they are for: parameter change = −rate · direction, from the state and the gradient."""

import math

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, RAdam, RMSprop

from dynabound import AdaBound, AdaBoundW, AMSBound
from dynabound.lens import Rates, effective_lr, register
from dynabound.lens.rates import _RULES

SHAPES = [(3, 4), (5,), ()]
BACKENDS = {"loop": dict(foreach=False), "foreach": dict(foreach=True), "fused": dict(fused=True)}


def exp_avg(_group, _before, state, _grad):
    return state["exp_avg"]


def sgd(group, _before, state, grad):
    if not group["momentum"]:
        return grad
    buffer = state["momentum_buffer"]
    return grad + group["momentum"] * buffer if group["nesterov"] else buffer


def nadam(group, _before, state, grad):
    t, product = state["step"].item(), state["mu_product"].item()
    mu, mu_next = (group["betas"][0] * (1 - 0.5 * 0.96 ** (s * group["momentum_decay"])) for s in (t, t + 1))
    return (1 - mu) / (1 - product) * grad + mu_next / (1 - product * mu_next) * state["exp_avg"]


def rmsprop(group, before, state, grad):
    if not group["momentum"]:
        return grad
    square = state["square_avg"] - (state["grad_avg"] ** 2 if group["centered"] else 0)
    return grad + (square.sqrt() + group["eps"]) * group["momentum"] * before["momentum_buffer"]


def gradient(_group, _before, _state, grad):
    return grad


CASES = [
    *[(SGD, sgd, options) for options in (
        dict(),
        dict(weight_decay=0.1, maximize=True),
        dict(momentum=0.9),
        dict(momentum=0.9, dampening=0.3, weight_decay=0.1),
        dict(momentum=0.9, nesterov=True, maximize=True),
    )],
    *[(Adagrad, gradient, options) for options in (
        dict(),
        dict(lr_decay=0.1, initial_accumulator_value=0.5, eps=1e-3),
        dict(weight_decay=0.1, maximize=True),
    )],
    *[(RMSprop, rmsprop, options) for options in (
        dict(),
        dict(centered=True, weight_decay=0.1),
        dict(momentum=0.8, eps=1e-2),
        dict(momentum=0.8, centered=True, maximize=True),
    )],
    *[(cls, exp_avg, options) for cls in (Adam, AdamW) for options in (
        dict(),
        dict(amsgrad=True, eps=1e-2),
        dict(weight_decay=0.1, maximize=True),
        dict(amsgrad=True, weight_decay=0.1, betas=(0.5, 0.7)),
    )],
    (Adam, exp_avg, dict(weight_decay=0.1, decoupled_weight_decay=True)),
    *[(NAdam, nadam, options) for options in (
        dict(),
        dict(momentum_decay=0.1, weight_decay=0.1, maximize=True),
        dict(weight_decay=0.1, decoupled_weight_decay=True),
    )],
    *[(RAdam, exp_avg, options) for options in (
        dict(),  # rectified from the sixth step on
        dict(betas=(0.9, 0.7), eps=1e-2),  # never rectified
        dict(weight_decay=0.1, maximize=True),
        dict(weight_decay=0.1, decoupled_weight_decay=True),
    )],
    *[(cls, exp_avg, options) for cls in (AdaBound, AMSBound) for options in (
        dict(),
        dict(gamma=0.1, final_lr=0.03, eps=1e-2),
        dict(weight_decay=0.1, maximize=True),
        dict(debias=False, sqrt_decay=True, eps=0.0),
        dict(beta1_decay="harmonic", bounds="exponential"),
        dict(beta1_decay=0.9, bounds="linear", gamma=0.2),
        dict(bounds=("constant", 0.0, math.inf)),
        dict(bounds=lambda t: (0.5, 1 + 1 / t)),
        dict(capturable=True),
    )],
    (AdaBoundW, exp_avg, dict(weight_decay=0.1)),
]  # fmt: skip


def kernel_was_built():
    try:
        return bool(AdaBound([nn.Parameter(torch.ones(1))], fused=True))
    except RuntimeError:
        return False


FUSED = (SGD, Adagrad, Adam, AdamW, *((AdaBound, AMSBound, AdaBoundW) if kernel_was_built() else ()))
RUNS = [
    (*case, backend)
    for case in CASES
    for backend in BACKENDS
    if backend != "fused" or (case[0] in FUSED and "capturable" not in case[2])
]


def name_of(value):
    """Options without the addresses of functions: every process must name a test alike."""
    if isinstance(value, dict):
        return ",".join(f"{key}={'callable' if callable(option) else option}" for key, option in value.items())
    return getattr(value, "__name__", None)


def real(tensor):
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def check_steps(optimizer, params, direction, steps=12):
    """Take steps, and compare each parameter's change with −rate · direction, to float64 accuracy."""
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        for param in params:  # gradients over four decades, so that every bound is met
            size = 10 ** torch.empty(param.shape, dtype=torch.float64).uniform_(-3, 1, generator=generator)
            param.grad = size * torch.randn(param.shape, dtype=param.dtype, generator=generator)
        old = [param.detach().clone() for param in params]
        before = [
            {k: v.clone() for k, v in optimizer.state.get(p, {}).items() if isinstance(v, torch.Tensor)} for p in params
        ]
        if step == 7:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * 0.5
        optimizer.step()
        for group in optimizer.param_groups:
            decoupled = group.get("decoupled_weight_decay", False)
            for param in group["params"]:
                i = next(i for i, other in enumerate(params) if other is param)
                grad = param.grad * (-1 if group["maximize"] else 1)
                grad = grad if decoupled else grad + group["weight_decay"] * old[i]
                state = {k: real(v) if isinstance(v, torch.Tensor) else v for k, v in optimizer.state[param].items()}
                earlier = {"momentum_buffer": torch.zeros_like(real(old[i]))} | {
                    k: real(v) for k, v in before[i].items()
                }
                shrunk = old[i] * (1 - float(group["lr"]) * group["weight_decay"]) if decoupled else old[i]
                rates = effective_lr(optimizer, param)
                assert rates.shape == real(param).shape
                expected = real(shrunk) - rates * direction(group, earlier, state, real(grad))
                torch.testing.assert_close(real(param.detach()), expected, rtol=1e-11, atol=1e-13)


def make_params(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, dtype=dtype, generator=generator)) for shape in SHAPES]


@pytest.mark.parametrize(("cls", "direction", "options", "backend"), RUNS, ids=name_of)
def test_rate_times_direction_is_the_update(cls, direction, options, backend):
    params = make_params()
    check_steps(cls(params, lr=0.05, **options, **BACKENDS[backend]), params, direction)


@pytest.mark.parametrize(
    ("cls", "direction", "options"),
    [
        (Adam, exp_avg, dict(amsgrad=True)),
        (AdamW, exp_avg, dict(weight_decay=0.1)),
        (NAdam, nadam, {}),
        (RAdam, exp_avg, {}),
        (RMSprop, rmsprop, dict(centered=True, momentum=0.5)),
        (Adagrad, gradient, {}),
        (SGD, sgd, dict(momentum=0.9)),
        (AMSBound, exp_avg, dict(gamma=0.1)),
    ],
    ids=name_of,
)
def test_complex_parameters_and_tensor_rates(cls, direction, options):
    params = make_params(torch.complex128)
    check_steps(cls(params, lr=torch.tensor(0.05, dtype=torch.float64), foreach=False, **options), params, direction)


def test_param_groups_have_their_own_rates():
    params = make_params()
    groups = [{"params": params[:1], "lr": 0.2, "final_lr": 0.01}, {"params": params[1:], "amsbound": True}]
    check_steps(AdaBound(groups, lr=0.05, gamma=0.1), params, exp_avg)


def test_the_bounds_were_met():
    """The proof above covers clipped and free rates alike."""
    params = make_params()
    optimizer = AdaBound(params, lr=0.05, gamma=0.1, final_lr=0.06)
    check_steps(optimizer, params, exp_avg)
    rates = torch.cat([effective_lr(optimizer, param).flatten() for param in params])
    lower, upper = (0.5 * 0.06 * bound for bound in (1 - 1 / 2.2, 1 + 1 / 1.2))
    assert rates.min() == pytest.approx(lower)
    assert rates.max() == pytest.approx(upper)
    assert ((rates > 1.01 * lower) & (rates < 0.99 * upper)).any()


def test_low_precision_parameters_have_float32_rates():
    param = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    param.grad = torch.tensor([1.0, 2.0, 4.0], dtype=torch.bfloat16)
    for cls in (Adam, AdaBound, SGD):
        optimizer = cls([param], lr=1e-2)
        optimizer.step()
        assert effective_lr(optimizer, param).dtype is torch.float32
    free = AdaBound([param], lr=1e-2, bounds=("constant", 0.0, math.inf), eps=0.0)
    free.step()  # the first step's rate is lr / (|g|·(1 − β₁)), because m = (1 − β₁)·g
    torch.testing.assert_close(effective_lr(free, param), 0.1 / torch.tensor([1.0, 2.0, 4.0]))


def test_a_subclass_follows_its_parent():
    class Mine(Adam):
        pass

    params = make_params()
    check_steps(Mine(params, lr=0.05), params, exp_avg)


def test_unknown_optimizers_are_named_and_can_be_registered():
    param = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Rprop([param], lr=0.3)
    with pytest.raises(TypeError, match=r"Rprop.*AdaBound, Adagrad, Adam, AdamW, NAdam, RAdam, RMSprop, SGD.*register"):
        effective_lr(optimizer, param)
    register(torch.optim.Rprop, lambda group, state, param: Rates(state["step_size"]))
    try:
        param.grad = torch.tensor([1.0, -1.0])
        optimizer.step()
        assert effective_lr(optimizer, param).tolist() == pytest.approx([0.3, 0.3])
    finally:
        del _RULES[torch.optim.Rprop]


@pytest.mark.parametrize(("cls", "rule"), [(int, gradient), (Adam(make_params()), gradient), (Adam, "lr / sqrt(v)")])
def test_bad_registrations_are_refused(cls, rule):
    with pytest.raises(TypeError, match="must be a"):
        register(cls, rule)


@pytest.mark.parametrize("cls", [Adam, Adagrad, RMSprop, AdaBound])
def test_a_parameter_without_a_step_has_no_rate(cls):
    params = make_params()
    optimizer = cls(params, lr=0.1)
    params[0].grad = torch.ones(3, 4, dtype=torch.float64)
    optimizer.step()
    assert effective_lr(optimizer, params[0]).shape == (3, 4)
    with pytest.raises(ValueError, match=r"shape \(5,\) was never updated"):
        effective_lr(optimizer, params[1])
    with pytest.raises(ValueError, match=r"shape \(7,\): must be one of the optimizer's parameters"):
        effective_lr(optimizer, nn.Parameter(torch.ones(7)))


def test_rates_do_not_alias_the_state():
    params = make_params()
    optimizer = Adam(params, lr=0.1)
    params[1].grad = torch.ones(5, dtype=torch.float64)
    optimizer.step()
    square = optimizer.state[params[1]]["exp_avg_sq"].clone()
    assert not effective_lr(optimizer, params[1]).zero_().any()
    assert torch.equal(optimizer.state[params[1]]["exp_avg_sq"], square)
