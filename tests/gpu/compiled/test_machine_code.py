"""The kernels compiled for GPUs that need not be there: registers, spills, width and number of memory accesses."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from dynabound.optim._gpu import kernels, launch

NVIDIA = {"sm_80": GPUTarget("cuda", 80, 32), "sm_90": GPUTarget("cuda", 90, 32)}
AMD = {"gfx942": GPUTarget("hip", "gfx942", 64)}
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
F32, F64, F16, BF16, U8 = tl.float32, tl.float64, tl.float16, tl.uint16, tl.uint8

# Types of parameter, first and second moment, stochastic rounding; AMSBound, 2: released; bytes per element; registers.
KINDS = {
    "float32": ((F32, F32, F32, False), False, 28, 64),
    "float32 AMSBound": ((F32, F32, F32, False), True, 36, 80),
    "bfloat16, float32 state": ((BF16, F32, F32, False), False, 22, 80),
    "float16, float32 state": ((F16, F32, F32, False), False, 22, 80),
    "bfloat16": ((BF16, BF16, BF16, False), False, 14, 80),
    "bfloat16, stochastic": ((BF16, BF16, BF16, True), False, 14, 80),
    "bfloat16, stochastic, float32 state": ((BF16, F32, F32, True), False, 22, 96),
    "bfloat16 state": ((F32, BF16, BF16, False), False, 20, 80),
    "bfloat16 first moment": ((F32, BF16, F32, False), False, 24, 80),
    "released": ((F32, F32, F32, False), 2, 20, 64),
    "released, bfloat16": ((BF16, BF16, BF16, True), 2, 10, 80),
    "float64": ((F64, F64, F64, False), False, 56, 132),
    "8 bits": ((F32, U8, U8, False), False, 16.5, 128),
    "8 bits and bfloat16": ((F32, U8, BF16, False), False, 18.25, 128),
    "8 bits and bfloat16, AMSBound": ((F32, U8, BF16, False), True, 22.25, 128),
    "float16, 8 bits": ((F16, U8, U8, False), False, 10.5, 128),
    "bfloat16, stochastic, 8 bits": ((BF16, U8, U8, True), False, 10.5, 128),
    "bfloat16, stochastic, 8 bits and bfloat16": ((BF16, U8, BF16, True), False, 12.25, 128),
    "8 bits, released": ((F32, U8, U8, False), 2, 14.25, 128),
}


def packed(kind):
    """The number of moments in 8 bits that a step uses."""
    types, ams, _, _ = KINDS[kind]
    return types[1 : 2 if ams == 2 else 3].count(U8)


def wide_bytes(kind):
    """The bytes of an element without codes and scales, which are read and written: 1 byte, and 4 for 32 elements."""
    return KINDS[kind][2] - packed(kind) * 2 * (1 + 4 / 32)


@cache
def compiled(kind, plain, target, **options):
    types, ams, _, _ = KINDS[kind]
    scales = options.pop("scales", False)
    constants = dict(types=types, ams=ams, plain=plain, capture=scales, align=options.pop("align", 16))
    real = "*fp64" if types[0] == F64 else "*fp32"
    signature = dict(entries="*i64", chunks="*i32", scalars=real, grad_scale="*fp32", found_inf="*fp32")
    if not scales:
        constants |= dict(grad_scale=None, found_inf=None)
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernels.update_chunk, signature, constexprs=constants)
    return triton.compile(source, target=(NVIDIA | AMD)[target], options=launch._OPTIONS)


def dump(tool, machine_code, tmp_path, *options):
    path = tmp_path / "kernel.cubin"
    path.write_bytes(machine_code)
    return subprocess.run([TOOLS / tool, *options, path], capture_output=True, text=True, check=True).stdout


def resources(kernel, tmp_path):
    usage = dump("cuobjdump", kernel.asm["cubin"], tmp_path, "--dump-resource-usage")
    return {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}


@pytest.mark.parametrize("target", NVIDIA)
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_nvidia(kind, plain, target, tmp_path):
    """A thread updates 8 elements of a block; its 128-bit accesses are all that the block needs, but codes."""
    registers = KINDS[kind][3]
    kernel = compiled(kind, plain, target)
    used = resources(kernel, tmp_path)
    assert used["REG"] <= (registers if plain else max(registers, 80))
    assert used["LOCAL"] == used["STACK"] == 0
    sass = dump("nvdisasm", kernel.asm["cubin"], tmp_path)
    assert len(re.findall(r"\b(?:LDG|STG)\.E\.128\b", sass)) * 16 / 8 == wide_bytes(kind)
    if packed(kind):  # a thread stores 8 codes in two words, and a scale
        assert len(re.findall(r"\bSTG\.E(?!\.)", sass)) == 3 * packed(kind)
    assert_ieee(kernel.asm["ptx"])


def assert_ieee(ptx):
    """Nothing is flushed to zero, approximate or contracted, which the interpreter could not show."""
    assert not re.findall(r"\.ftz|\.approx|\bdiv\.full|\bfma\.", ptx)


@pytest.mark.parametrize("target", NVIDIA)
@pytest.mark.parametrize("kind", ["float32", "float32 AMSBound", "bfloat16, stochastic"])
def test_nvidia_with_all_options(kind, target, tmp_path):
    """A row of scalars for every tensor, scaled gradients, decay and a box."""
    kernel = compiled(kind, False, target, scales=True)
    used = resources(kernel, tmp_path)
    assert used["REG"] <= 80
    assert used["LOCAL"] == used["STACK"] == 0
    assert_ieee(kernel.asm["ptx"])


def test_unaligned_tensors_have_no_wide_accesses(tmp_path):
    sass = dump("nvdisasm", compiled("float32", True, "sm_80", align=4).asm["cubin"], tmp_path)
    assert not re.findall(r"\bLDG\.E\.128\b|\bSTG\.E\.(?:64|128)\b", sass)  # 64-bit loads read the table


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_amd(kind, plain):
    """A thread updates 4 elements of a block: float32 in words of 128 bits, 16-bit numbers in words of 64."""
    assembly = compiled(kind, plain, "gfx942").asm["amdgcn"]
    numbers = dict(
        re.findall(r"\.(vgpr_count|vgpr_spill_count|sgpr_spill_count|private_segment_fixed_size): +(\d+)", assembly)
    )
    assert int(numbers["vgpr_count"]) <= 132
    assert {numbers["vgpr_spill_count"], numbers["sgpr_spill_count"], numbers["private_segment_fixed_size"]} == {"0"}
    widths = "4" if kind == "float64" else "24"  # the tail of a float64 tensor has accesses of 64 bits, too
    words = [int(number) for number in re.findall(rf"global_(?:load|store)_dwordx([{widths}])", assembly)]
    assert sum(words) * 4 / 4 == wide_bytes(kind)


@pytest.mark.parametrize("target", [*NVIDIA, *AMD])
@pytest.mark.parametrize("bounds", ["harmonic", "exponential", "linear", "constant"])
def test_the_scalars(bounds, target, tmp_path):
    constants = dict(bounds=bounds, beta1_decay="geometric", debias=True, sqrt_decay=True)
    signature = dict(entries="*i64", count="i32", numbers="*fp64", lr="*fp64", scalars="*fp32")
    source = ASTSource(kernels.compute_scalars, signature | dict.fromkeys(constants, "constexpr"), constexprs=constants)
    kernel = triton.compile(source, target=(NVIDIA | AMD)[target], options=launch._OPTIONS)
    if target in AMD:
        assert re.search(r"\.vgpr_spill_count: +0", kernel.asm["amdgcn"])
    else:
        assert resources(kernel, tmp_path)["LOCAL"] == 0
