"""The optimizer inside torch's machinery: compile, capture, autograd, hooks, scaling, averaging."""

import copy
import importlib
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from dynabound import AdaBound, AMSBound
from dynabound.optim import _fused
from helpers.cases import backends


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
@pytest.mark.filterwarnings("ignore")  # torch.compile warns about its own internals
def test_compiles_once_and_whole(options):
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
def test_capturable_reads_nothing_back(options, foreach):
    """The captured arithmetic, on tensors throughout, equals the arithmetic on numbers."""
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


def test_step_hooks():
    p = nn.Parameter(torch.ones(2))
    optimizer = AdaBound([p])
    calls = []
    handles = [
        optimizer.register_step_pre_hook(lambda o, args, kwargs: calls.append("pre")),
        optimizer.register_step_post_hook(lambda o, args, kwargs: calls.append(p[0].item())),
    ]
    p.grad = torch.ones(2)
    optimizer.step()
    assert calls == ["pre", pytest.approx(0.999)]
    for handle in handles:
        handle.remove()
    optimizer.step()
    assert len(calls) == 2


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


def test_swa_utils():
    model = nn.Linear(3, 1)
    optimizer = AdaBound(model.parameters(), lr=0.1)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    scheduler = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=1)
    seen = []
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        averaged.update_parameters(model)
        seen.append(model.weight.detach().clone())
        scheduler.step()
    torch.testing.assert_close(averaged.module.weight, torch.stack(seen).mean(0))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    assert optimizer.param_groups[0]["base_lr"] == 0.1


def test_optimizer_in_backward():
    """One optimizer per parameter, stepping as soon as the gradient is accumulated."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    other = copy.deepcopy(model)
    optimizers = {p: AMSBound([p]) for p in model.parameters()}

    def update(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    usual = AMSBound(other.parameters())
    for _ in range(3):
        x = torch.randn(5, 3)
        usual.zero_grad()
        for network in (model, other):
            network(x).square().sum().backward()
        usual.step()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert p.grad is None
        assert torch.equal(p, q)


@pytest.mark.parametrize("backend", backends())
def test_autograd_notices_the_update(backend):
    """A parameter that changed between forward and backward must be an error, not a wrong gradient."""
    p = nn.Parameter(torch.ones(3))
    optimizer = AdaBound([p], **backend)
    loss = (p**2).sum()
    p.grad = torch.ones(3)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


needs_kernel = pytest.mark.skipif(not _fused.AVAILABLE, reason="the C kernel was not built")


@needs_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, dict(amsbound=True, weight_decay=0.1), dict(state_dtype=torch.bfloat16)])
def test_instruction_sets_and_thread_counts_give_the_same_bits(options, dtype, monkeypatch):
    torch.manual_seed(0)
    # 40,000 elements in odd pieces: two threads share out the work in the middle of a tensor.
    start = [torch.randn(size).to(dtype) for size in (1, 19999, 7, 20001, 64)]
    grads = [[torch.randn_like(p) for p in start] for _ in range(3)]
    results = []
    threads = torch.get_num_threads()
    try:
        for level in range(len(_fused.LEVELS)):
            for count in (1, 2, 3):
                monkeypatch.setattr(_fused, "LEVEL", level)
                torch.set_num_threads(count)
                params = [nn.Parameter(p.clone()) for p in start]
                optimizer = AdaBound(params, **options)
                for some in grads:
                    for p, g in zip(params, some, strict=True):
                        p.grad = g
                    optimizer.step()
                results.append(params)
    finally:
        torch.set_num_threads(threads)
    for params in results[1:]:
        for p, q in zip(params, results[0], strict=True):
            assert torch.equal(p, q)


@needs_kernel
def test_sixteen_bit_rounding_is_torchs():
    """Every float16 and bfloat16 number, and a million floats on and off the boundaries, through the kernel."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (1_000_000,), generator=generator, dtype=torch.int64).to(torch.int32)
    exact = torch.arange(-(2**15), 2**15, dtype=torch.int64).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        ties = exact.view(dtype).float().repeat(3) * torch.tensor([1.0, 1 + 2**-9, 1 + 2**-12]).repeat_interleave(2**16)
        wanted = torch.cat([bits.view(torch.float32), ties])
        # p = 0 and m = −wanted, with every other factor 1: the update stores wanted, rounded.
        p = torch.zeros(len(wanted), dtype=dtype)
        state = [-wanted, torch.zeros_like(wanted)]
        step = torch.zeros((), dtype=torch.int64)
        scalars = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, -float("inf"), float("inf"))
        grad = torch.zeros_like(p)
        _, entries = _fused.scan([p], [grad], [state[0]], [state[1]], [], [step])
        _fused._kernel.update(_fused.LEVEL, 1, entries, scalars)
        expected = wanted.to(dtype)
        assert torch.equal(torch.isnan(p), torch.isnan(expected))
        same = p.view(torch.int16) == expected.view(torch.int16)
        assert bool((same | torch.isnan(expected) | (expected == 0)).all())


@needs_kernel
def test_the_kernel_refuses_entries_it_cannot_take():
    """Cut, mixed, empty or not its own: an error, and nothing is written."""
    tensors = [torch.ones(3) for _ in range(4)]
    step = torch.zeros((), dtype=torch.int64)
    lists = [[tensor] for tensor in tensors]
    _, plain = _fused.scan(*lists, [], [step])
    _, ams = _fused.scan(*lists, [torch.ones(3)], [step])
    keys, sparse = _fused.scan([torch.ones(3).to_sparse()], *lists[1:], [], [step])
    assert keys == [None]
    scalars = (1e-3, 0.0, 1.0, 0.9, 0.999, 1e-8, 1.0, 0.0, 1.0, -9.0, 9.0)
    for entries in (b"", plain[:-1], plain + ams, plain + sparse):
        with pytest.raises(ValueError, match="not all of one kind"):
            _fused._kernel.update(_fused.LEVEL, 1, entries, scalars)
    with pytest.raises(ValueError, match="bad level"):
        _fused._kernel.update(len(_fused.LEVELS), 1, plain, scalars)
    assert step.item() == 0
    assert all(torch.equal(tensor, torch.ones(3)) for tensor in tensors)


@pytest.mark.parametrize("options", backends())
def test_bounds_that_move_a_parameter_do_no_harm(options):
    """A user's function runs while the step is planned; whatever it does, the step is made where the parameter is."""
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


@needs_kernel
def test_the_kernel_releases_the_gil():
    """While the kernel runs, another thread takes note of the time: deep inside of the call, not just at its ends."""
    p = nn.Parameter(torch.ones(20_000_000))
    p.grad = torch.ones_like(p)
    optimizer = AdaBound([p], fused=True)
    optimizer.step()
    state = optimizer.state[p]
    lists = [[p], [p.grad], [state["exp_avg"]], [state["exp_avg_sq"]], [], [state["step"]]]
    _, entries = _fused.scan(*lists)
    scalars = (1e-3, 0.0, 1.0, 0.9, 0.999, 1e-8, 1.0, 0.0, 1.0, -9.0, 9.0)
    stamps, stop = [], threading.Event()

    def count():
        while not stop.is_set():
            stamps.append(time.perf_counter())

    thread = threading.Thread(target=count)
    thread.start()
    inside = 0
    try:
        for _ in range(5):
            start = time.perf_counter()
            _fused._kernel.update(_fused.LEVEL, 1, entries, scalars)
            end = time.perf_counter()
            quarter = (end - start) / 4
            inside += sum(start + quarter < stamp < end - quarter for stamp in list(stamps))
    finally:
        stop.set()
        thread.join()
    assert inside > 0


@needs_kernel
def test_the_kernel_takes_torchs_number_of_threads(monkeypatch):
    asked = []

    class Spy:
        @staticmethod
        def update(level, threads, *rest):
            asked.append(threads)

        scan = staticmethod(_fused._kernel.scan)
        ENTRY_SIZE = _fused._kernel.ENTRY_SIZE

    monkeypatch.setattr(_fused, "_kernel", Spy)
    before = torch.get_num_threads()
    p = nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            AdaBound([p]).step()
    finally:
        torch.set_num_threads(before)
    assert asked == [1, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_captured_tensor_lr_loses_nothing_to_its_dtype(dtype):
    """1 − lr · weight_decay is computed in float64, whatever the dtype of lr."""
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


def test_works_with_a_torch_that_has_the_old_name_of_the_capture_check(monkeypatch):
    """Torch < 2.11 has _cuda_graph_capture_health_check alone."""
    module = importlib.import_module("dynabound.optim.adabound")
    assert module._check_capture is torch.optim.Optimizer._accelerator_graph_capture_health_check
    with monkeypatch.context() as patch:
        patch.delattr(torch.optim.Optimizer, "_accelerator_graph_capture_health_check")
        patch.setattr(torch.optim.Optimizer, "_cuda_graph_capture_health_check", lambda self: None)
        code = Path(module.__file__).read_text()
        old = {"__name__": "dynabound.optim.old", "__file__": module.__file__}
        exec(compile(code, module.__file__, "exec"), old)
    p = nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    old["AdaBound"]([p]).step()
    assert p[0].item() == pytest.approx(0.999)
