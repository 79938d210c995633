"""How many kernels a step launches, when tables are uploaded, and what happens where the kernel cannot be used."""

import pytest
import torch
from torch import nn
from triton.runtime import interpreter

from dynabound import AdaBound
from dynabound.optim import _fused, kernel_status
from dynabound.optim._gpu import kernels, launch

CPU = torch.device("cpu")


@pytest.fixture
def launches(monkeypatch):
    """The names and grids of all launches, which compute nothing."""
    made = []
    monkeypatch.setattr(
        interpreter.InterpretedFunction, "run", lambda self, *_, grid, **__: made.append((self.__name__, grid[0]))
    )
    return made


def parameters(count, size=10):
    params = [nn.Parameter(torch.ones(size)) for _ in range(count)]
    for p in params:
        p.grad = torch.ones_like(p)
    return params


def test_tensors_in_8_bits_have_a_launch_for_whole_and_one_for_shorter_groups(launches):
    """Programs have 256 groups: 260 groups are two, although there are fewer than 8,192 elements."""
    params = [nn.Parameter(torch.ones(shape)) for shape in ((64, 64), (130, 33), (260, 64), (4, 8192))]
    for p in params:
        p.grad = torch.ones_like(p)
    AdaBound(params, state_dtype="8bit", fused=True).step()
    assert launches == [("update_chunk", 1 + 3 + 4), ("update_chunk", 2)]


def test_moments_in_8_bits_that_share_memory_are_seen():
    """Of 4,290 elements in rows of 33 the moments have 9,360 bytes."""
    for gap, count in ((9360, 1), (9359, 2)):
        rows = torch.tensor([[1 << 21, 1 << 20, 0, 0, 0, 4290, 0, 33], [1 << 22, (1 << 20) + gap, 0, 0, 0, 33, 0, 33]])
        table = launch._make_table(rows.numpy().tobytes(), [torch.float32, torch.uint8, torch.uint8], CPU)
        assert len(table.launches) == count


@pytest.mark.parametrize("capturable", [False, True])
def test_one_launch_for_all_tensors(capturable, launches):
    AdaBound(parameters(500), fused=True, capturable=capturable).step()
    assert launches == [("compute_scalars", 4)] * capturable + [("update_chunk", 500)]


def test_a_launch_for_each_dtype_step_count_and_group(launches):
    params = parameters(4)
    params[3] = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    params[3].grad = torch.ones_like(params[3])
    optimizer = AdaBound([{"params": params[:1]}, {"params": params[1:]}], fused=True)
    optimizer.step()
    assert launches == [("update_chunk", 1), ("update_chunk", 2), ("update_chunk", 1)]
    params[1].grad = None
    optimizer.step()
    params[1].grad = torch.ones_like(params[1])
    launches.clear()
    optimizer.step()
    assert len(launches) == 4


def test_a_large_tensor_is_divided_into_chunks_of_int64_offsets(launches):
    """2³¹ + 5000 elements in memory that is never touched; its last chunk is one of its own."""
    count = 2**31 + 5000
    rows = torch.tensor([[16, 16, 16, 0, 16, count, 0, 0]])
    types = [torch.float32] * 3
    table = launch._make_table(rows.numpy().tobytes(), types, CPU)
    (chunks, align), *_ = table.launches
    assert chunks[-1].tolist() == [0, count // 8192]
    assert len(chunks) == count // 8192 + 1
    assert align == 16


def test_the_last_chunk_of_a_large_tensor_is_updated():
    """Only that chunk is computed, and only it needs memory."""
    count = 2**31 + 5000
    memory = [torch.empty(count) for _ in range(4)]
    p, g, m, v = memory
    tail = slice(count // 8192 * 8192, None)
    p[tail], g[tail], m[tail], v[tail] = 1.0, 1.0, 0.0, 0.0
    step = torch.zeros((), dtype=torch.int64)
    _, entries = _fused._kernel.scan([p], [g], [m], [v], [], [step], True)
    table = launch._make_table(entries, [torch.float32] * 3, CPU)
    row = torch.tensor([[0.5, 0.0, 1.0, 0.0, 0.0, 1e-8, 1.0, 0.0, 1.0, -9.0, 9.0, 1.0, 1.0, 0.0]])
    tl = kernels.tl
    kernels.update_chunk[(1,)](
        table.entries, table.launches[0][0][-1:], row, None, None, types=(tl.float32,) * 3 + (False,), ams=False,
        plain=True, capture=False, align=16,
    )  # fmt: skip
    assert torch.equal(p[tail], torch.full_like(p[tail], 0.5))
    assert torch.equal(m[tail], g[tail])


def test_the_last_chunk_of_a_large_tensor_in_8_bits_is_updated():
    """Beyond 2³¹ elements and bytes; only that chunk is computed, and only it needs memory."""
    shape = (2**18, 8256)
    p, g = (torch.empty(shape) for _ in range(2))
    m, v = (torch.empty(shape[0], 8256 // 32 * 36, dtype=torch.uint8) for _ in range(2))
    p[-2:], g[-2:], m[-2:], v[-2:] = 1.0, 1.0, 0, 0
    _, entries = _fused._kernel.scan([p], [g], [m], [v], [], [torch.zeros((), dtype=torch.int64)], True)
    table = launch._make_table(entries, [torch.float32, torch.uint8, torch.uint8], CPU)
    row = torch.tensor([[0.5, 0.0, 1.0, 0.0, 0.0, 1e-8, 1.0, 0.0, 1.0, -9.0, 9.0, 1.0, 1.0, 0.0]])
    tl = kernels.tl
    kernels.update_chunk[(1,)](
        table.entries, table.launches[0][0][-1:], row, None, None, types=(tl.float32, tl.uint8, tl.uint8, False),
        ams=False, plain=True, capture=False, align=16,
    )  # fmt: skip
    assert torch.equal(p[-1, 64:], torch.full((8192,), 0.5))
    assert torch.equal(p[-2], torch.ones(8256))
    assert bool((m[-1, 64:8256] == 127).all())
    assert bool((v[-1, 64:8256] == 255).all())


def test_tables_are_uploaded_when_an_address_changes(launches, monkeypatch):
    uploads = []
    monkeypatch.setattr(launch, "_upload", lambda tensor, device: uploads.append(tensor) or tensor)
    params = parameters(3)
    optimizer = AdaBound(params, fused=True)
    counts = []
    other = torch.ones(10)
    for tensor, grad in ((0, params[0].grad), (0, params[0].grad), (0, other), (0, other), (1, None)):
        params[tensor].grad = grad
        uploads.clear()
        optimizer.step()
        counts.append(len(uploads))
    assert counts == [3, 1, 3, 1, 3]  # entries, chunks and scalars; the scalars only


def test_at_most_64_tables_are_kept(launches):
    p = nn.Parameter(torch.ones(4))
    optimizer = AdaBound([p], fused=True)
    grads = [torch.ones(4) for _ in range(100)]
    for p.grad in grads:
        optimizer.step()
    assert len(launch._uploaded) == 64
    assert any(entries == _fused._kernel.scan(*lists_of(optimizer, p), True)[1] for entries, *_ in launch._uploaded)


def lists_of(optimizer, p):
    state = optimizer.state[p]
    return [p], [p.grad], [state["exp_avg"]], [state["exp_avg_sq"]], [], [state["step"]]


def test_a_captured_graph_keeps_what_it_reads(launches, monkeypatch):
    params = parameters(2)
    optimizer = AdaBound(params, fused=True, capturable=True)
    optimizer.step()
    known = dict(launch._uploaded)
    monkeypatch.setattr(launch, "_captured", [])
    monkeypatch.setattr(launch, "_stream", lambda device: (1, True))
    optimizer.step()  # on another stream: the tables of the warm-up are used, and kept
    assert [id(kept) for kept in launch._captured] == [id(table) for table in known.values()]
    params[0].grad = torch.ones(10)
    optimizer.step()
    assert len(launch._captured) == 4
    assert launch._uploaded.keys() == known.keys()  # what a replay will fill is of no use to other steps


def test_a_failure_falls_back_to_foreach(monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("no code for this GPU")

    p, q = parameters(2)
    for capturable in (False, True):
        monkeypatch.setattr(interpreter.InterpretedFunction, "run", fail)
        monkeypatch.setattr(_fused, "gpu_failure", None)
        optimizers = AdaBound([p], fused=True, capturable=capturable), AdaBound([q], foreach=True)
        with pytest.warns(
            UserWarning, match="Triton kernel failed .RuntimeError: no code for this GPU., and steps use"
        ):
            optimizers[0].step()
        optimizers[0].step()  # without a second warning
        for _ in range(2):
            optimizers[1].step()
        torch.testing.assert_close(p, q)
        assert "no code for this GPU" in _fused.gpu_failure
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        status = kernel_status()
        assert not status.gpu
        assert "no code for this GPU" in status.gpu_reason


def test_without_triton_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(_fused, "find_spec", lambda name: None)
    with pytest.raises(
        RuntimeError, match=r"fused=True: there is no Triton kernel: triton is not installed: pip install"
    ):
        AdaBound(parameters(1), fused=True)


def test_foreach_remains_the_default(launches):
    AdaBound(parameters(1), capturable=True).step()
    AdaBound(parameters(1), foreach=True).step()
    assert launches == []


def test_status_with_a_gpu(monkeypatch):
    assert kernel_status().gpu_reason == "torch finds no CUDA, ROCm or XPU device"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert kernel_status().gpu
    assert kernel_status().gpu_reason is None
