"""Gradients of every kind: missing, infinite, expanded, in any memory order."""

import numpy as np
import pytest
import torch
from torch import nn

from dynabound import AdaBound, AMSBound
from dynabound.optim import _foreach, _fused, _loop
from helpers.cases import backends
from helpers.reference import Reference


@pytest.mark.parametrize("backend", backends())
def test_parameters_without_a_gradient_keep_their_own_count(backend):
    params = [nn.Parameter(torch.full((4,), float(i), dtype=torch.float64)) for i in range(3)]
    optimizer = AdaBound(params, lr=0.01, **backend)
    references = [Reference(p.detach().numpy(), lr=0.01) for p in params]
    generator = torch.Generator().manual_seed(0)
    for t in range(30):
        for index, (p, reference) in enumerate(zip(params, references, strict=True)):
            p.grad = None
            if t % (index + 1) == 0:
                p.grad = torch.randn(4, generator=generator, dtype=torch.float64)
                reference.step(p.grad.numpy())
        optimizer.step()
    assert [int(optimizer.state[p]["step"]) for p in params] == [30, 15, 10]
    for p, reference in zip(params, references, strict=True):
        np.testing.assert_allclose(p.detach().numpy(), reference.x, rtol=1e-12)


def layouts():
    """Parameters and gradients in the memory orders of real networks, and stranger ones."""
    torch.manual_seed(0)
    image = torch.randn(4, 3, 5, 2)
    return {
        "contiguous": (image.clone(), image.clone()),
        "channels-last": tuple(image.clone(memory_format=torch.channels_last) for _ in range(2)),
        "transposed": (torch.randn(5, 3).t(), torch.randn(5, 3).t()),
        "transposed-gradient": (torch.randn(3, 5), torch.randn(5, 3).t()),
        "channels-last-parameter": (image.clone(memory_format=torch.channels_last), image.clone()),
        "expanded-gradient": (torch.randn(3, 5), torch.randn(()).expand(3, 5)),
        "overlapping-gradient": (torch.randn(4, 3), torch.randn(6).as_strided((4, 3), (1, 1))),
        "strided-parameter": (torch.randn(6, 8)[::2, ::2], torch.randn(3, 4)),
        "unaligned": (torch.randn(101)[1:], torch.randn(102)[2:]),
        "negated-gradient": (torch.randn(5), torch._neg_view(torch.randn(5))),
        "negated-strided-gradient": (torch.randn(5), torch.randn(5, dtype=torch.complex64).conj().imag),
        "symbolic-zeros": (torch.randn(5), torch._efficientzerotensor((5,))),  # a gradient without memory
        "size-one-dimension": (torch.randn(1, 7).t(), torch.randn(7, 1)),
    }


@pytest.mark.parametrize("cls", [AdaBound, AMSBound])
@pytest.mark.parametrize("backend", [*backends(), pytest.param({}, id="default")])
@pytest.mark.parametrize("name", layouts())
def test_any_memory_order(name, backend, cls):
    data, grad = layouts()[name]
    p = nn.Parameter(data)
    assert p.stride() == data.stride()
    optimizer = cls([p], lr=0.05, **backend)
    reference = Reference(data.double().numpy(), lr=0.05, amsbound=cls is AMSBound)
    for scale in (1.0, -3.0, 0.5):
        p.grad = grad if scale == 1.0 else grad * scale
        optimizer.step()
        reference.step(p.grad.double().clone().numpy())
    np.testing.assert_allclose(p.detach().double().numpy(), reference.x, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not _fused.AVAILABLE, reason="the C kernel was not built")
def test_which_memory_orders_the_kernel_supports():
    """Dense ones run fused, without a copy; the others use foreach."""
    supported = set()
    for name, (data, grad) in layouts().items():
        state = [torch.zeros_like(data) for _ in range(2)]
        step = torch.zeros((), dtype=torch.int64)
        keys, _ = _fused._kernel.scan([data], [grad], [state[0]], [state[1]], [], [step])
        if keys[0]:
            supported.add(name)
    assert supported == {"contiguous", "channels-last", "transposed", "unaligned", "size-one-dimension"}


def test_the_default_backend(monkeypatch):
    used = []
    for backend in (_fused, _foreach):
        name, update = backend.__name__.rpartition(".")[2], backend.update
        monkeypatch.setattr(backend, "update", lambda *a, name=name, update=update: used.append(name) or update(*a))
    params = [nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(3, 2))]
    params[0].grad, params[1].grad = torch.ones(3, 2), torch.ones(()).expand(3, 2)
    AdaBound(params).step()
    assert used == (["_fused", "_foreach"] if _fused.AVAILABLE else ["_foreach"])
    assert torch.equal(*params)


def test_the_default_backend_without_the_kernel(monkeypatch):
    """Small tensors use foreach, which is faster for them; large ones the loop, which needs less memory."""
    used = []
    for backend in (_loop, _foreach):
        name = backend.__name__.rpartition(".")[2]
        monkeypatch.setattr(
            backend, "update", lambda lists, *a, name=name: used.append((name, [p.numel() for p in lists[0]]))
        )
    monkeypatch.setattr(_fused, "AVAILABLE", False)
    params = [nn.Parameter(torch.ones(size)) for size in (3, 5000, 4096)]
    for p in params:
        p.grad = torch.ones_like(p)
    AdaBound(params).step()
    assert used == [("_foreach", [3, 4096]), ("_loop", [5000])]


def test_foreach_loses_no_update_of_16_bit_parameters_that_share_memory():
    """It computes on float32 copies, which must not overwrite each other's results."""
    results = []
    for backend in (dict(foreach=True), dict(fused=False)):
        memory = torch.linspace(-1, 1, 60, dtype=torch.bfloat16)
        params = [nn.Parameter(part) for part in (memory, memory[20:], memory[:40])]
        for p in params:
            p.grad = torch.ones_like(p)
        AdaBound(params, lr=0.1, **backend).step()
        results.append(memory)
    assert torch.equal(*results)


def test_a_parameter_that_is_a_lazy_view_raises():
    for view in (torch._neg_view(torch.ones(3)), torch.ones(3, dtype=torch.complex64).conj()):
        with pytest.raises(ValueError, match="parameter 0 is a lazily negated or conjugated view"):
            AdaBound([nn.Parameter(view)])


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize(
    "options",
    [
        dict(box=(0.0, 1.7e308)),
        dict(final_lr=1e300),
        dict(bounds=("constant", 1e300, 1e300)),
        dict(weight_decay=1e300),
        dict(lr=1e300),
        dict(eps=1e300),
        dict(gamma=1e-300),
        dict(gamma=1e308),
    ],
    ids=str,
)
def test_numbers_outside_the_dtype_do_not_interrupt_a_step(options, backend):
    """Every backend accepts them, and with a zero gradient and no weight decay nothing changes."""
    p = nn.Parameter(torch.ones(3))
    optimizer = AdaBound([p], **options, **backend)
    for _ in range(2):
        p.grad = torch.zeros(3)
        optimizer.step()
    assert int(optimizer.state[p]["step"]) == 2
    if "weight_decay" not in options:
        assert torch.equal(p, torch.ones(3))


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("amsbound", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_nan_affects_only_its_own_elements(value, amsbound, backend):
    params = [nn.Parameter(torch.linspace(-1, 1, 37)) for _ in range(2)]
    optimizers = [AdaBound([p], amsbound=amsbound, **backend) for p in params]
    for t in range(4):
        grad = torch.linspace(1, 2, 37)
        for p, optimizer, broken in zip(params, optimizers, (False, True), strict=True):
            p.grad = grad.clone()
            if broken and t == 1:
                p.grad[5] = value
            optimizer.step()
    assert not torch.isfinite(params[1][5])
    keep = torch.arange(37) != 5
    assert torch.equal(params[0][keep], params[1][keep])


@pytest.mark.parametrize("backend", [*backends(), pytest.param(dict(capturable=True), id="capturable")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bounds", ["harmonic", ("constant", 0.0, float("inf"))])
@pytest.mark.parametrize("amsbound", [False, True])
def test_no_epsilon_and_no_gradient_is_no_update(amsbound, bounds, dtype, backend):
    p = nn.Parameter(torch.ones(5, dtype=dtype))
    optimizer = AdaBound([p], lr=5.0, eps=0.0, bounds=bounds, amsbound=amsbound, **backend)
    for _ in range(3):
        p.grad = torch.zeros_like(p)
        optimizer.step()
    assert torch.equal(p, torch.ones_like(p))


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_parameters_are_their_real_view(dtype, backend):
    torch.manual_seed(0)
    z = nn.Parameter(torch.randn(4, 3, dtype=dtype))
    real = nn.Parameter(torch.view_as_real(z.detach()).clone())
    optimizers = [AdaBound([p], amsbound=True, weight_decay=0.1, **backend) for p in (z, real)]
    for t in range(5):
        grad = torch.randn(4, 3, dtype=dtype)
        z.grad = grad.conj() if t % 2 else grad  # a lazy conjugate must be resolved
        real.grad = torch.view_as_real(z.grad.resolve_conj()).clone()
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(torch.view_as_real(z.detach()), real)
    assert optimizers[0].state[z]["exp_avg"].dtype == dtype


def test_float16_survives_a_huge_upper_bound():
    p = nn.Parameter(torch.ones(3, dtype=torch.float16))
    optimizer = AdaBound([p], gamma=1e-12, final_lr=10.0)  # the first upper bound is 1e13
    for _ in range(3):
        p.grad = torch.tensor([1.0, 1e-4, 0.0], dtype=torch.float16)
        optimizer.step()
    assert bool(torch.isfinite(p).all())
    assert p[2].item() == 1.0


@pytest.mark.parametrize("backend", backends())
def test_after_an_infinite_gradient_a_box_keeps_its_edge(backend):
    param = torch.zeros(2)
    optimizer = AdaBound([param], box=(-1.0, 2.0), **backend)
    for grad in ([float("inf"), -float("inf")], [1.0, 1.0], [-1.0, -1.0]):
        param.grad = torch.tensor(grad)
        optimizer.step()
        assert param.tolist() == [-1.0, 2.0]
