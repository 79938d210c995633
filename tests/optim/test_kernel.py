"""The C kernel: bits, rounding, threads, and the arguments that it rejects."""

import threading
import time

import pytest
import torch
from torch import nn

from dynabound import AdaBound, AdaBoundW
from dynabound.optim import _fused
from helpers.cases import TOLERANCES

pytestmark = pytest.mark.skipif(not _fused.AVAILABLE, reason="the C kernel was not built")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(amsbound=True, weight_decay=0.1),
        dict(state_dtype=torch.bfloat16),
        dict(state_dtype=(torch.bfloat16, torch.float32), amsbound=True),
        dict(state_dtype=torch.bfloat16, rounding="stochastic", amsbound=True, box=(-1, 1)),
        dict(rounding="stochastic"),
        dict(state_dtype="8bit", rounding="stochastic", weight_decay=0.1),
        dict(state_dtype="8bit", amsbound=True),
        dict(state_dtype="8bit", release=0, bounds="linear", gamma=0.5),
        dict(release=0, bounds="linear", gamma=0.5, amsbound=True, maximize=True),
    ],
)
def test_instruction_sets_and_thread_counts_give_the_same_bits(options, dtype, monkeypatch):
    torch.manual_seed(0)
    # 60,000 elements of odd sizes: the boundaries between threads lie inside tensors.
    start = [torch.randn(size).to(dtype) for size in (1, 19999, (150, 133), 7, 20001, 64)]
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
                moments = [tensor for state in optimizer.state.values() for tensor in state.values()]
                results.append(params + moments)
    finally:
        torch.set_num_threads(threads)
    for params in results[1:]:
        for p, q in zip(params, results[0], strict=True):
            assert torch.equal(p, q)


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
        scalars = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, -float("inf"), float("inf"), 0.0)
        grad = torch.zeros_like(p)
        _, entries = _fused._kernel.scan([p], [grad], [state[0]], [state[1]], [], [step])
        _fused._kernel.update(_fused.LEVEL, 1, entries, scalars)
        expected = wanted.to(dtype)
        assert torch.equal(torch.isnan(p), torch.isnan(expected))
        same = p.view(torch.int16) == expected.view(torch.int16)
        assert bool((same | torch.isnan(expected) | (expected == 0)).all())


def test_invalid_entries_raise():
    """Truncated, mixed or empty: an error, and nothing is written."""
    tensors = [torch.ones(3) for _ in range(4)]
    step = torch.zeros((), dtype=torch.int64)
    lists = [[tensor] for tensor in tensors]
    _, plain = _fused._kernel.scan(*lists, [], [step])
    _, ams = _fused._kernel.scan(*lists, [torch.ones(3)], [step])
    keys, sparse = _fused._kernel.scan([torch.ones(3).to_sparse()], *lists[1:], [], [step])
    assert keys == [None]
    scalars = (1e-3, 0.0, 1.0, 0.9, 0.999, 1e-8, 1.0, 0.0, 1.0, -9.0, 9.0, 0.0)
    for entries in (b"", plain[:-1], plain + ams, plain + sparse):
        with pytest.raises(ValueError, match="not all of one kind"):
            _fused._kernel.update(_fused.LEVEL, 1, entries, scalars)
    with pytest.raises(ValueError, match="bad level"):
        _fused._kernel.update(len(_fused.LEVELS), 1, plain, scalars)
    assert step.item() == 0
    assert all(torch.equal(tensor, torch.ones(3)) for tensor in tensors)


def test_the_kernel_releases_the_gil():
    """While the kernel runs, another thread records the time: in the middle of the call, not only at its ends."""
    p = nn.Parameter(torch.ones(20_000_000))
    p.grad = torch.ones_like(p)
    optimizer = AdaBound([p], fused=True)
    optimizer.step()
    state = optimizer.state[p]
    lists = [[p], [p.grad], [state["exp_avg"]], [state["exp_avg_sq"]], [], [state["step"]]]
    _, entries = _fused._kernel.scan(*lists)
    scalars = (1e-3, 0.0, 1.0, 0.9, 0.999, 1e-8, 1.0, 0.0, 1.0, -9.0, 9.0, 0.0)
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


def test_the_kernel_uses_torchs_number_of_threads(monkeypatch):
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


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads(2)
    torch.set_num_threads(before)


SHARED = {
    "same memory": lambda x: (x, x[:]),
    "overlapping slices": lambda x: (x[x.numel() // 4 :], x[: x.numel() // 2]),
    "one inside the other": lambda x: (x, x[:7]),
}


@pytest.mark.parametrize("view", SHARED.values(), ids=SHARED)
def test_parameters_that_share_memory_are_updated_one_after_the_other(view, two_threads):
    """Otherwise two threads lose updates of each other, or make them in the wrong order."""
    torch.manual_seed(0)
    start = torch.randn(400_000)
    for _ in range(5):
        results = []
        grads = [torch.randn_like(part) for part in view(start)]
        for backend in (dict(fused=True), dict(fused=False)):
            memory = start.clone()
            params = [nn.Parameter(part) for part in view(memory)]
            for p, grad in zip(params, grads, strict=True):
                p.grad = grad
            # The decay halves the parameter at each update: then the order of the updates matters.
            AdaBoundW(params, lr=0.5, weight_decay=1.0, **backend).step()
            results.append(memory)
        torch.testing.assert_close(*results, **TOLERANCES[torch.float32])


def test_a_gradient_that_overlaps_its_own_parameter():
    """Vectorised code must not read what it has written."""
    memory = [torch.linspace(-1, 1, 1001) for _ in range(2)]
    for values, backend in zip(memory, (dict(fused=True), dict(fused=False)), strict=True):
        p = nn.Parameter(values[1:])
        p.grad = values[:-1]
        AdaBound([p], lr=0.1, **backend).step()
    torch.testing.assert_close(*memory, **TOLERANCES[torch.float32])


def test_disjoint_tensors_in_any_order(two_threads):
    """Memory in random order is sorted, and found disjoint: same bits as one after the other."""
    torch.manual_seed(0)
    memory = torch.randn(300 * 200)
    order = torch.randperm(300).tolist()
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        params = [nn.Parameter(part) for part in memory.clone().split(200)]
        params = [params[i] for i in order]
        for index, p in enumerate(params):
            p.grad = torch.full_like(p, index + 1.0)
        AdaBound(params).step()
        results.append(torch.cat([p.detach() for p in params]))
    assert torch.equal(*results)
