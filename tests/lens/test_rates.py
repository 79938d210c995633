"""Rates are proven by what they are for: parameter change = −rate · direction, from the state and the gradient."""

import math

import adabound
import pytest
import pytorch_optimizer
import torch
import torch_optimizer
from torch import nn, optim

from dynabound import AdaBound, AdaBoundW, AMSBound
from dynabound.lens import effective_lr

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


def adadelta(group, before, state, grad):
    """The step used the mean of squared updates before it, which is not stored."""
    used = before.get("acc_delta", torch.zeros_like(grad))
    return grad * ((used + group["eps"]) / (state["acc_delta"] + group["eps"])).sqrt()


def adafactor(group, before, state, grad):
    """The gradient, after the clipping of the update, with the parameter's size before the step."""
    eps, least = group["eps"][0] or torch.finfo(grad.dtype).eps, group["eps"][1]
    variance = state.get("variance")
    if variance is None:
        variance = state["row_var"] * state["col_var"] / state["row_var"].mean(-2, keepdim=True).clamp(min=eps)
    update = grad / variance.clamp(min=eps**2).sqrt()
    sizes = [max(least, values.square().mean().sqrt().item()) for values in (before["param"], state["param"])]
    return grad / max(1.0, update.square().mean().sqrt().item() / group["d"]) * sizes[0] / sizes[1]


def rprop(_group, before, _state, grad):
    turned = grad * before.get("prev", torch.zeros_like(grad)) < 0
    return grad.sign() * ~turned


def asgd(group, before, state, grad):
    return grad * used_eta(group, before) / float(state["eta"])


def used_eta(group, before):
    return float(before.get("eta", torch.tensor(float(group["lr"]), dtype=torch.float32)))  # it is stored in float32


CASES = [
    *[(optim.SGD, sgd, options) for options in (
        dict(),
        dict(weight_decay=0.1, maximize=True),
        dict(momentum=0.9),
        dict(momentum=0.9, dampening=0.3, weight_decay=0.1),
        dict(momentum=0.9, nesterov=True, maximize=True),
    )],
    *[(optim.Adagrad, gradient, options) for options in (
        dict(),
        dict(lr_decay=0.1, initial_accumulator_value=0.5, eps=1e-3),
        dict(weight_decay=0.1, maximize=True),
    )],
    *[(optim.RMSprop, rmsprop, options) for options in (
        dict(),
        dict(centered=True, weight_decay=0.1),
        dict(momentum=0.8, eps=1e-2),
        dict(momentum=0.8, centered=True, maximize=True),
    )],
    *[(cls, exp_avg, options) for cls in (optim.Adam, optim.AdamW) for options in (
        dict(),
        dict(amsgrad=True, eps=1e-2),
        dict(weight_decay=0.1, maximize=True),
        dict(amsgrad=True, weight_decay=0.1, betas=(0.5, 0.7)),
    )],
    *([(optim.Adam, exp_avg, dict(weight_decay=0.1, decoupled_weight_decay=True))]
      if issubclass(optim.AdamW, optim.Adam) else []),
    *[(optim.NAdam, nadam, options) for options in (
        dict(),
        dict(momentum_decay=0.1, weight_decay=0.1, maximize=True),
        dict(weight_decay=0.1, decoupled_weight_decay=True),
    )],
    *[(optim.RAdam, exp_avg, options) for options in (
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
    *[(optim.Adamax, exp_avg, options) for options in (dict(), dict(eps=1e-2, weight_decay=0.1, maximize=True))],
    *[(optim.Adadelta, adadelta, options)
      for options in (dict(), dict(rho=0.5, eps=1e-3, weight_decay=0.1, maximize=True))],
    *[(optim.Adafactor, adafactor, options) for options in (
        dict(),
        dict(eps=(1e-2, 0.5), d=1.5, beta2_decay=-0.5, weight_decay=0.1, maximize=True),
    )],
    *[(optim.Rprop, rprop, options)
      for options in (dict(), dict(etas=(0.3, 1.7), step_sizes=(0.01, 0.1), maximize=True))],
    *[(optim.ASGD, asgd, options) for options in (dict(), dict(lambd=0.1, alpha=0.6, weight_decay=0.1, maximize=True))],
]  # fmt: skip


def kernel_was_built():
    try:
        return bool(AdaBound([nn.Parameter(torch.ones(1))], fused=True))
    except RuntimeError:
        return False


FUSED = (
    optim.SGD,
    optim.Adagrad,
    optim.Adam,
    optim.AdamW,
    *((AdaBound, AMSBound, AdaBoundW) if kernel_was_built() else ()),
)
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
            for param in group["params"]:
                i = next(i for i, other in enumerate(params) if other is param)
                state = {k: real(v) if isinstance(v, torch.Tensor) else v for k, v in optimizer.state[param].items()}
                earlier = {"momentum_buffer": torch.zeros_like(real(old[i])), "param": real(old[i])} | {
                    k: real(v) for k, v in before[i].items()
                }
                kept = kept_share(optimizer, group, earlier)
                grad = param.grad * (-1 if group.get("maximize") else 1)
                if kept == 1 or isinstance(optimizer, optim.ASGD):  # an L2 penalty, and for ASGD a decay beside it
                    grad = grad + group.get("weight_decay", 0) * old[i]
                rates = effective_lr(optimizer, param)
                assert rates.shape == real(param).shape
                step_direction = direction(group, earlier, {**state, "param": real(param.detach())}, real(grad))
                expected = real(old[i]) * kept - rates * step_direction
                torch.testing.assert_close(real(param.detach()), expected, rtol=1e-11, atol=1e-13)


def kept_share(optimizer, group, earlier):
    """What decoupled weight decay leaves of a parameter."""
    if isinstance(optimizer, optim.ASGD):
        return 1 - group["lambd"] * used_eta(group, earlier)
    decouples = group.get("decoupled_weight_decay") or group.get("weight_decouple")
    if decouples or isinstance(optimizer, (optim.Adafactor, optim.AdamW)):
        return 1 - float(group["lr"]) * group["weight_decay"]
    return 1


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
        (optim.Adam, exp_avg, dict(amsgrad=True)),
        (optim.AdamW, exp_avg, dict(weight_decay=0.1)),
        (optim.NAdam, nadam, {}),
        (optim.RAdam, exp_avg, {}),
        (optim.RMSprop, rmsprop, dict(centered=True, momentum=0.5)),
        (optim.Adagrad, gradient, {}),
        (optim.Adamax, exp_avg, {}),
        (optim.Adadelta, adadelta, {}),
        (optim.Rprop, rprop, {}),
        (optim.ASGD, asgd, {}),
        (optim.SGD, sgd, dict(momentum=0.9)),
        (AMSBound, exp_avg, dict(gamma=0.1)),
    ],
    ids=name_of,
)
def test_complex_parameters_and_tensor_rates(cls, direction, options):
    params = make_params(torch.complex128)
    check_steps(cls(params, lr=torch.tensor(0.05, dtype=torch.float64), foreach=False, **options), params, direction)


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (adabound.AdaBound, dict(gamma=0.1)),
        (adabound.AdaBound, dict(amsbound=True, weight_decay=0.1)),
        (torch_optimizer.AdaBound, dict(gamma=0.1)),
        (torch_optimizer.AdaBound, dict(amsbound=True, weight_decay=0.1, eps=1e-2)),
        (pytorch_optimizer.AdaBound, dict(gamma=0.1)),
        (pytorch_optimizer.AdaBound, dict(ams_bound=True, weight_decay=0.1, eps=1e-2)),
        (pytorch_optimizer.AdaBound, dict(weight_decay=0.1, weight_decouple=False, maximize=True, foreach=True)),
    ],
    ids=name_of,
)
@pytest.mark.filterwarnings("ignore:This overload of add")  # adabound 0.0.5 is written for torch 1
def test_the_adabounds_of_other_packages(cls, options):
    params = make_params()
    groups = [{"params": params[:1]}, {"params": params[1:], "lr": 0.2, "final_lr": 0.01}]
    check_steps(cls(groups, lr=0.05, **options), params, exp_avg)


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
    for cls in (optim.Adam, AdaBound, optim.SGD):
        optimizer = cls([param], lr=1e-2)
        optimizer.step()
        assert effective_lr(optimizer, param).dtype is torch.float32
    free = AdaBound([param], lr=1e-2, bounds=("constant", 0.0, math.inf), eps=0.0)
    free.step()  # the first step's rate is lr / (|g|·(1 − β₁)), because m = (1 − β₁)·g
    torch.testing.assert_close(effective_lr(free, param), 0.1 / torch.tensor([1.0, 2.0, 4.0]))


def test_a_subclass_follows_its_parent():
    class Mine(optim.Adam):
        pass

    params = make_params()
    check_steps(Mine(params, lr=0.05), params, exp_avg)


@pytest.mark.parametrize("cls", [optim.Adam, optim.Adagrad, optim.RMSprop, AdaBound])
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
    optimizer = optim.Adam(params, lr=0.1)
    params[1].grad = torch.ones(5, dtype=torch.float64)
    optimizer.step()
    square = optimizer.state[params[1]]["exp_avg_sq"].clone()
    assert not effective_lr(optimizer, params[1]).zero_().any()
    assert torch.equal(optimizer.state[params[1]]["exp_avg_sq"], square)
