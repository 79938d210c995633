"""Moments in 8 bits: the format in NumPy, what rounding does, and where it is used."""

import io
import math

import numpy as np
import pytest
import torch

from dynabound import AdaBound
from dynabound.lens import effective_lr
from dynabound.optim import _fused
from dynabound.optim._scalars import scalars
from dynabound.optim._state import eightbit, rounding
from helpers.cases import VARIANTS, backends


def decode(packed, row, second):
    """The specification, element by element."""
    rows = []
    for line in packed.numpy():
        values, groups = [], len(line) // 36
        codes = line[: 32 * groups].view(np.uint8 if second else np.int8).reshape(groups, 32)
        for group, scale in zip(codes, line[32 * groups :].copy().view(np.float32).tolist(), strict=True):
            for q in group.tolist():
                values.append((scale * q) ** 2 * (1 if q > 0 else -1))
        rows.append(values[:row])
    return np.array(rows)


def pack(x, second, bits):
    packed = torch.zeros(eightbit.packed_shape(x.shape), dtype=torch.uint8)
    eightbit.pack(packed, x, second, bits)
    return packed


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("shape", [(4, 64), (3, 40), (2, 3, 11)])
def test_packed_moments_are_the_specification(shape, second):
    """Each element is one of the two numbers of the format beside it."""
    torch.manual_seed(0)
    x = torch.randn(shape) * 10 ** torch.randn(shape)
    x = x.square() if second else x
    x[0, :3] = 0
    packed = pack(x, second, rounding.noise(x, 1))
    row = math.prod(shape[1:])
    expected = decode(packed, row, second)
    unpacked = eightbit.unpack(packed, x, second)
    np.testing.assert_allclose(unpacked.flatten(1).numpy(), expected, rtol=1e-6)
    for values, line in zip(x.flatten(1).double().numpy(), expected, strict=True):
        for start in range(0, row, 32):
            exact, stored = values[start : start + 32], line[start : start + 32]
            q = np.arange(256 if second else 128)
            grid = (q / q[-1]) ** 2 * np.abs(exact).max()
            below = np.searchsorted(grid, np.abs(exact) * (1 + 1e-6), side="right") - 1
            neighbours = grid[[below, np.minimum(below + 1, len(grid) - 1)]]
            assert (np.abs(np.abs(stored) - neighbours).min(0) <= 2e-6 * grid[-1]).all()
            assert (np.sign(stored) * np.sign(exact) >= 0).all()
            assert ((stored > 0) >= (exact > 0)).all() if second else True


@pytest.mark.parametrize("second", [False, True])
def test_rounding_is_unbiased(second):
    x = torch.rand(32) if second else torch.rand(32) * 2 - 1
    x[0] = 1
    many = x.repeat(20_000, 1)
    unpacked = eightbit.unpack(pack(many, second, rounding.noise(many, 1)), many, second).double()
    # The largest step between two numbers is 1/128: the mean of 20,000 is off by less than 5 · 0.5/128/√20,000.
    assert ((unpacked.mean(0) - x.double()).abs() < 1.4e-4).all()


def run(steps, shape=(64, 64), gradient=lambda t: 1.0, **options):
    param = torch.nn.Parameter(torch.zeros(shape))
    optimizer = AdaBound([param], **{"state_dtype": "8bit", **options})
    for t in range(steps):
        param.grad = torch.full_like(param, gradient(t)) if isinstance(gradient(t), float) else gradient(t)
        optimizer.step()
    return param, optimizer


@pytest.mark.parametrize("backend", backends())
def test_second_moments_follow_their_gradients(backend):
    """Small ones beside a large one that stays: rounded to nearest, they would stop."""

    def gradient(t):
        grad = torch.full((64, 64), 0.1 if t < 100 else 0.01)
        grad[:, 0] = 1
        return grad

    param, optimizer = run(300, gradient=gradient, **backend)
    state = optimizer.state[param]
    assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == torch.uint8
    small = 1e-4 + ((1 - 0.999**100) * 0.01 - 1e-4) * 0.999**200
    v = eightbit.unpack(state["exp_avg_sq"], param, True)
    assert v[:, 0].mean().item() == pytest.approx(1 - 0.999**300, rel=1e-4)
    assert v[:, 1:32].mean().item() == pytest.approx(small, rel=0.03)
    m = eightbit.unpack(state["exp_avg"], param, False)
    assert m[:, 0].mean().item() == pytest.approx(1, rel=1e-4)
    assert m[:, 1:32].mean().item() == pytest.approx(0.01, rel=0.03)


@pytest.mark.parametrize("backend", backends())
def test_the_trajectory_is_close_to_float32s(backend):
    """Least squares by noisy gradients: the noise of 8 bits is small beside the way to the minimum."""
    torch.manual_seed(0)
    target, results = torch.randn(64, 100), []
    for state_dtype in ("8bit", None):
        generator = torch.Generator().manual_seed(1)
        param = torch.nn.Parameter(torch.zeros(64, 100))
        optimizer = AdaBound([param], lr=1e-2, state_dtype=state_dtype, **backend)
        for _ in range(150):
            param.grad = param.detach() - target + 0.1 * torch.randn(64, 100, generator=generator)
            optimizer.step()
        results.append(param.detach())
    way = results[1].norm()
    assert 0 < (results[0] - results[1]).norm() / way < 0.02
    errors = [(result - target).norm().item() for result in results]
    assert errors[0] == pytest.approx(errors[1], rel=0.05)


def step_in_numpy(param, state, grad, group):
    """The kernel's arithmetic, which NumPy rounds as C does, and torch's vectorised functions do not."""
    s = scalars(group, group["lr"], int(state["step"]) + 1, torch.float32)
    step_size, lower, upper, beta1, beta2, eps, shrink, l2, sign, low, high, rest1, rest2 = np.float32(
        (*s[:11], 1 - s.beta1, 1 - s.beta2)
    )
    stored = [param, state["exp_avg"], state["exp_avg_sq"]]
    x, m, v, g = (t.float().numpy() for t in (*[eightbit.unpack(t, param, t is stored[2]) for t in stored], grad))
    g = sign * g + l2 * x if l2 else sign * g
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * (g * g)
    results = [m, v]
    if "max_exp_avg_sq" in state:
        stored.append(state["max_exp_avg_sq"])
        results.append(np.maximum(stored[3].float().numpy(), v))
    with np.errstate(divide="ignore"):
        rate = np.clip(step_size / (np.sqrt(results[-1]) + eps), lower, upper)
    x = np.clip(shrink * x - rate * m, low, high)
    rounding.write_back(stored, [torch.from_numpy(a) for a in (x, *results)], state["step"], s.stochastic > 0)
    state["step"] += 1


@pytest.mark.skipif(not _fused.AVAILABLE, reason="the C kernel was not built")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_kernel_gives_the_bits_of_this_format(variant, dtype):
    """Rows of whole groups, rows with a shorter last group, several blocks in a row; with a resume in the middle."""
    torch.manual_seed(0)
    shapes = [(64, 64), (3, 40, 50), (5, 2200), (200, 33)]
    params = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    expected = [p.detach().clone() for p in params]
    options = dict(**VARIANTS[variant], state_dtype="8bit", rounding="stochastic", fused=True)
    optimizer, states = AdaBound(params, **options), None
    for t in range(6):
        if t == 3:
            checkpoint = optimizer.state_dict()
            optimizer = AdaBound(params, **{**options, "lr": 7.0})
            optimizer.load_state_dict(checkpoint)
        for p in params:
            p.grad = (torch.randn(p.shape) * 10 ** torch.linspace(-4, 1, p.shape[-1])).to(dtype)
            p.grad[0, 0] = 0
        optimizer.step()
        if states is None:
            states = [{k: torch.zeros_like(v) for k, v in optimizer.state[p].items()} for p in params]
        for p, q, state in zip(params, expected, states, strict=True):
            step_in_numpy(q, state, p.grad, optimizer.param_groups[0])
            assert torch.equal(p.detach(), q)
            assert all(torch.equal(value, state[name]) for name, value in optimizer.state[p].items())


@pytest.mark.parametrize("amsbound", [False, True])
def test_backends_round_alike(amsbound):
    """They differ by a code where their float32 moments lie on different sides of a random number."""
    torch.manual_seed(0)
    start, grads, results = torch.randn(100, 70), torch.randn(20, 100, 70), []
    for backend in backends():
        param = torch.nn.Parameter(start.clone())
        optimizer = AdaBound([param], state_dtype="8bit", amsbound=amsbound, **backend.values[0])
        for grad in grads:
            param.grad = grad
            optimizer.step()
        state = optimizer.state[param]
        results.append([param.detach(), *[eightbit.unpack(state[k], param, k != "exp_avg") for k in sorted(state)[:2]]])
    for others in results[1:]:
        for ours, theirs in zip(results[0], others, strict=True):
            assert ours.isclose(theirs, rtol=1e-4, atol=1e-6).double().mean() > 0.99


def test_small_tensors_and_other_groups_stay_in_full_precision():
    shapes = [(4096,), (64, 63), (512, 8), (64, 64), (8, 64, 3, 3)]
    params = [torch.nn.Parameter(torch.ones(shape)) for shape in shapes]
    other = torch.nn.Parameter(torch.ones(64, 64))
    number = torch.nn.Parameter(torch.ones(64, 64, dtype=torch.complex64))
    groups = [{"params": [*params, number]}, {"params": [other], "state_dtype": torch.bfloat16}]
    optimizer = AdaBound(groups, state_dtype="8bit")
    for p in (*params, other, number):
        p.grad = torch.ones_like(p)
    optimizer.step()
    dtypes = [optimizer.state[p]["exp_avg_sq"].dtype for p in (*params, other, number)]
    eight, full = torch.uint8, torch.float32
    assert dtypes == [full, full, full, eight, eight, torch.bfloat16, torch.complex64]
    state = optimizer.state[params[3]]
    assert state["exp_avg"].nbytes == state["exp_avg_sq"].nbytes == 64 * 64 * 9 // 8


@pytest.mark.parametrize("backend", backends())
def test_amsbounds_maximum_is_not_raised_by_noise(backend):
    """The true v stays at 1/3."""
    param, optimizer = run(500, gradient=lambda t: 3**-0.5, amsbound=True, betas=(0.9, 0.99), **backend)
    state = optimizer.state[param]
    assert state["exp_avg"].dtype == torch.uint8
    assert state["max_exp_avg_sq"].dtype == torch.bfloat16
    assert state["max_exp_avg_sq"].max().item() <= 1 / 3 + 2**-9


def steps(param, optimizer, seed, count=5):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)
        optimizer.step()


@pytest.mark.parametrize("amsbound", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_run_is_the_uninterrupted_one(dtype, amsbound):
    torch.manual_seed(0)
    options = dict(state_dtype="8bit", rounding="stochastic", amsbound=amsbound)
    params = [torch.nn.Parameter(torch.ones(48, 100, dtype=dtype)) for _ in range(2)]
    optimizers = [AdaBound([param], **options) for param in params]
    for seed in range(4):
        for param, optimizer in zip(params, optimizers, strict=True):
            steps(param, optimizer, seed)
        file = io.BytesIO()
        torch.save(optimizers[1].state_dict(), file)
        file.seek(0)
        optimizers[1] = AdaBound([params[1]])
        optimizers[1].load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(*params)
    for name, moment in optimizers[0].state[params[0]].items():
        assert torch.equal(moment, optimizers[1].state[params[1]][name])


@pytest.mark.parametrize("other", [torch.float32, torch.bfloat16, torch.float64])
def test_checkpoints_load_into_other_formats_and_back(other):
    param, first = run(0, (48, 100))
    steps(param, first, 0)
    moments = first.state[param]
    exact = {name: eightbit.unpack(moments[name], param, name != "exp_avg") for name in ("exp_avg", "exp_avg_sq")}
    second, third = AdaBound([param], state_dtype=other), AdaBound([param], state_dtype="8bit")
    second.load_state_dict(first.state_dict())
    third.load_state_dict(second.state_dict())
    for name, values in exact.items():
        assert second.state[param][name].dtype == other
        torch.testing.assert_close(second.state[param][name].float(), values, rtol=2**-8, atol=0)
        assert third.state[param][name].dtype == torch.uint8
        again = eightbit.unpack(third.state[param][name], param, name != "exp_avg")
        assert (again - values).abs().max() <= values.abs().max() / 60
    steps(param, third, 1)


def test_a_checkpoint_of_another_model_raises():
    _, optimizer = run(1)
    for shape in ((64, 128), (4096,), (32, 64)):
        resumed = AdaBound([torch.nn.Parameter(torch.ones(shape))], state_dtype="8bit")
        with pytest.raises(ValueError, match="belongs to another model"):
            resumed.load_state_dict(optimizer.state_dict())


def test_rates_are_those_of_the_unpacked_moments():
    param, optimizer = run(3, lr=1e-3, gamma=1e-6, eps=0.0)
    v = eightbit.unpack(optimizer.state[param]["exp_avg_sq"], param, True)
    expected = 1e-3 * math.sqrt(1 - 0.999**3) / (1 - 0.9**3) / v.sqrt()
    torch.testing.assert_close(effective_lr(optimizer, param), expected)


@pytest.mark.parametrize("backend", backends())
def test_a_release_at_equal_bounds_changes_no_bit(backend):
    results = []
    for release in (None, 0):
        param, optimizer = run(0, (48, 100), bounds="linear", gamma=0.5, release=release, **backend)
        steps(param, optimizer, 0)
        state = optimizer.state[param]
        assert state.keys() == {"step", "exp_avg"} | ({"exp_avg_sq"} if release is None else set())
        results.append((param.detach(), state["exp_avg"]))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


@pytest.mark.parametrize("backend", backends())
def test_an_infinite_gradient_ruins_its_group_only(backend):
    grad = torch.ones(64, 64)
    grad[1, 2] = math.inf
    param, optimizer = run(1, gradient=lambda t: grad, **backend)
    param.grad = torch.ones_like(param)
    optimizer.step()
    finite = torch.ones(64, 64, dtype=torch.bool)
    finite[1, :32] = False
    assert param[finite].isfinite().all()


def test_what_is_not_supported_raises():
    with pytest.raises(ValueError, match=r"differentiable=True, .*8bit"):
        AdaBound([torch.nn.Parameter(torch.ones(64, 64))], state_dtype="8bit", differentiable=True)
