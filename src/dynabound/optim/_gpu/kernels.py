"""The update rule for GPUs, in Triton: the functions that run on the GPU. Imported when they are first used.

They read the entries of the C kernel's ``scan``, eight 64-bit words per parameter, from a table on the GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl

CHUNK = tl.constexpr(8192)
"""Elements of one program. Every chunk of an aligned tensor is aligned."""
BLOCK = tl.constexpr(1024)
"""Elements that a program holds in registers: 8 per thread, two 128-bit words of float32."""
ENTRY = tl.constexpr(8)
"""64-bit words of an entry: p, m, v, vmax, g, count, step, (row, kind, ams)."""
GROUP = tl.constexpr(32)
"""Elements with a common scale, where a moment is in 8 bits: see ``_state/eightbit.py``."""
RELEASED = tl.constexpr(2)
"""The value of ``ams`` where there is no second moment any more, and the learning rate is the lower bound."""
SCALARS = tl.constexpr(14)
"""Numbers of a row of scalars: those of ``Scalars`` up to the box; 1 − β₁ₜ and 1 − β₂, which are rounded after the
difference; and the low 32 bits of the step, as they are."""


@triton.jit
def _load(pointer, mask, real: tl.constexpr):
    """Elements as float32 or float64; bfloat16 is read as its bits, the upper half of a float32."""
    x = tl.load(pointer, mask=mask)
    if x.dtype == tl.uint16:
        return (x.to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        return x.to(real)


@triton.jit
def _store(pointer, x, mask, noise):
    """Store elements; bfloat16 rounded by 16 random bits, or without ``noise`` to nearest, ties to even."""
    if pointer.dtype.element_ty == tl.uint16:
        bits = x.to(tl.uint32, bitcast=True)
        if noise is None:
            noise = 0x7FFF + ((bits >> 16) & 1)
        x = tl.where(x != x, 0x7FC0, (bits + noise) >> 16)
    tl.store(pointer, x.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def _mix(x):
    """The hash of ``_state/rounding.py``."""
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15)) * 0x735A2D97
    return x ^ (x >> 15)


@triton.jit
def _average(x, g, m, s, plain: tl.constexpr):
    """The gradient with its sign and L2 decay, and the first moment; the operations of ``_kernel.c``, in its order."""
    beta1, l2, sign, rest1 = s[3], s[7], s[8], s[11]
    if not plain:
        g = sign * g
        g = tl.where(l2 != 0, g + l2 * x, g)
    return g, beta1 * m + rest1 * g


@triton.jit
def _clip_rate(v, s):
    """The learning rate; an ordinary root and division of float32 are approximate."""
    step_size, lower, upper, eps = s[0], s[1], s[2], s[5]
    if v.dtype == tl.float64:
        rate = step_size / (tl.sqrt(v) + eps)
    else:
        rate = tl.div_rn(step_size, tl.sqrt_rn(v) + eps)
    rate = tl.where(rate < lower, lower, rate)  # both comparisons let a NaN through
    return tl.where(rate > upper, upper, rate)


@triton.jit
def _descend(x, m, rate, s, plain: tl.constexpr):
    """The new parameter."""
    shrink, low, high = s[6], s[9], s[10]
    if plain:
        x = x - rate * m
    else:
        x = shrink * x - rate * m
        x = tl.where(x < low, low, x)
        x = tl.where(x > high, high, x)
    return x


@triton.jit
def _update_squares(v_io, vmax_io, at, mask, g, s, noise, ams: tl.constexpr):
    """The second moment and its maximum, from and to memory; the learning rate."""
    v = s[4] * _load(v_io + at, mask, g.dtype) + s[12] * (g * g)
    _store(v_io + at, v, mask, noise)
    if ams:
        vmax = _load(vmax_io + at, mask, g.dtype)
        v = tl.where(v <= vmax, vmax, v)  # a NaN in v wins, as in torch.maximum
        _store(vmax_io + at, v, mask, None)
    return _clip_rate(v, s)


@triton.jit
def _update_block(tensors, at, mask, s, seed, types: tl.constexpr, ams: tl.constexpr, plain: tl.constexpr):
    """Update elements of a chunk. Without ``seed`` everything is rounded to nearest."""
    p_io, m_io, v_io, vmax_io, g_in, first = tensors
    real: tl.constexpr = tl.float64 if types[0] == tl.float64 else tl.float32
    noise_p, noise_v = None, None
    if seed is not None:
        noise = _mix((first.to(tl.uint32) + at.to(tl.uint32)) ^ seed)
        noise_v = noise >> 16
        if types[3]:
            noise_p = noise & 0xFFFF
    x, g = _load(p_io + at, mask, real), _load(g_in + at, mask, real)
    g, m = _average(x, g, _load(m_io + at, mask, real), s, plain)
    _store(m_io + at, m, mask, None)
    rate = s[1]  # the lower bound
    if ams != RELEASED:
        rate = _update_squares(v_io, vmax_io, at, mask, g, s, noise_v, ams)
    _store(p_io + at, _descend(x, m, rate, s, plain), mask, noise_p)


@triton.jit
def _decode(codes, scales, there, code: tl.constexpr):
    """First moments from codes of int8, second moments from codes of uint8."""
    scale = tl.load(scales.to(tl.pointer_type(tl.float32), bitcast=True), mask=there)
    root = tl.load(codes, mask=there[:, None]).to(code, bitcast=True).to(tl.float32) * scale[:, None]
    return root * tl.abs(root)


@triton.jit
def _encode(codes, scales, root, signed, mask, there, random, top: tl.constexpr):
    """Store roots as codes with the signs of ``signed``; without it those of second moments, at least 1 if not 0."""
    root = tl.where(mask, root, 0.0)
    most = tl.max(root.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1).to(tl.float32, bitcast=True)
    y = root * tl.where(most > 0, tl.div_rn(top, most), 0.0)[:, None]
    y = tl.where(y < top, y, top)  # also where it is not a number
    code = y.to(tl.int32)
    below = code.to(tl.float32)
    up = random.to(tl.float32) * (below * 2.0**-15 + 2.0**-16) < (y - below) * (y + below)
    code += up.to(tl.int32)
    if signed is None:
        code = tl.maximum(code, (root > 0).to(tl.int32))
    else:
        code = tl.where(signed.to(tl.int32, bitcast=True) < 0, -code, code)
    tl.store(codes, code.to(tl.uint8), mask=there[:, None])
    tl.store(scales.to(tl.pointer_type(tl.float32), bitcast=True), tl.div_rn(most, top), mask=there)


@triton.jit
def _update_groups(
    tensors,
    group,
    groups,
    row,
    s,
    seed,
    types: tl.constexpr,
    ams: tl.constexpr,
    plain: tl.constexpr,
    whole: tl.constexpr,
):
    """Update groups of 32 elements of rows with ``row`` elements, of which the first moment is in 8 bits.

    ``whole``: no row ends with a shorter group. The elements of a tensor are then those of its groups.
    """
    p_io, m_io, v_io, vmax_io, g_in = tensors
    per_row = (row + GROUP - 1) // GROUP
    r, c = (group // per_row).to(tl.int64), group % per_row
    lane = tl.arange(0, GROUP)[None, :]
    there = group < groups
    mask = there[:, None]
    if whole:
        at = (group.to(tl.int64) * GROUP)[:, None] + lane
    else:
        at = (r * row + c * GROUP)[:, None] + lane
        mask = mask & ((c * GROUP)[:, None] + lane < row)
    codes = (r * (per_row * (GROUP + 4)) + c * GROUP)[:, None] + lane
    scales = r * (per_row * (GROUP + 4)) + per_row * GROUP + c * 4
    noise = _mix(at.to(tl.uint32) ^ seed)
    x, g = _load(p_io + at, mask, tl.float32), _load(g_in + at, mask, tl.float32)
    g, m = _average(x, g, _decode(m_io + codes, m_io + scales, there, tl.int8), s, plain)
    _encode(m_io + codes, m_io + scales, tl.sqrt_rn(tl.abs(m)), m, mask, there, (noise >> 8) & 0xFFFF, 127.0)
    rate = s[1]  # the lower bound
    if ams != RELEASED and types[2] == tl.uint8:
        v = s[4] * _decode(v_io + codes, v_io + scales, there, tl.uint8) + s[12] * (g * g)
        _encode(v_io + codes, v_io + scales, tl.sqrt_rn(v), None, mask, there, noise >> 16, 255.0)
        rate = _clip_rate(v, s)
    elif ams != RELEASED:
        rate = _update_squares(v_io, vmax_io, at, mask, g, s, noise >> 16, ams)
    _store(p_io + at, _descend(x, m, rate, s, plain), mask, noise & 0xFFFF if types[3] else None)


@triton.jit
def _load_scalars(row, grad_scale):
    """The numbers of an update; the sign of the gradient includes the scale of the loss."""
    sign = tl.load(row + 8)
    if grad_scale is not None:
        sign = sign * tl.div_rn(1.0, tl.load(grad_scale)).to(sign.dtype)
    step_size, lower, upper, beta1 = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    beta2, eps, shrink, l2 = tl.load(row + 4), tl.load(row + 5), tl.load(row + 6), tl.load(row + 7)
    low, high, rest1, rest2 = tl.load(row + 9), tl.load(row + 10), tl.load(row + 11), tl.load(row + 12)
    return step_size, lower, upper, beta1, beta2, eps, shrink, l2, sign, low, high, rest1, rest2


@triton.jit
def update_chunk(
    entries,
    chunks,
    scalars,
    grad_scale,
    found_inf,
    types: tl.constexpr,
    ams: tl.constexpr,
    plain: tl.constexpr,
    capture: tl.constexpr,
    align: tl.constexpr,
):
    """Update the chunk of a tensor that ``chunks`` names; nothing where ``found_inf`` is not 0.

    ``types``: of parameter, first and second moment, and whether the parameter is rounded stochastically. ``plain``:
    sign, L2, decoupled decay and box are neutral, and left out. ``capture``: there is a row of scalars for every
    tensor, and the step counts are on the GPU.
    """
    if found_inf is not None:
        if tl.load(found_inf) != 0:
            return
    index = tl.load(chunks + 2 * tl.program_id(0))
    start = tl.load(chunks + 2 * tl.program_id(0) + 1).to(tl.int64) * CHUNK
    row = entries + index * ENTRY
    size = tl.load(row + 5)
    if capture:
        scalars += index * SCALARS
        if start == 0:
            step = tl.load(row + 6).to(tl.pointer_type(tl.int64))
            tl.store(step, tl.load(step) + 1)
    s = _load_scalars(scalars, grad_scale)
    seed = None
    if types[3] or types[1] == tl.uint8 or types[2] == tl.uint16:
        seed = tl.load((scalars + 13).to(tl.pointer_type(tl.uint32), bitcast=True))
        seed = _mix(seed ^ _mix(size.to(tl.uint32)))
    p = tl.multiple_of(tl.load(row).to(tl.pointer_type(types[0])), align)
    m = tl.multiple_of(tl.load(row + 1).to(tl.pointer_type(types[1])), align)
    v = tl.multiple_of(tl.load(row + 2).to(tl.pointer_type(types[2])), align)
    vmax = tl.multiple_of(tl.load(row + 3).to(tl.pointer_type(types[2])), align)
    g = tl.multiple_of(tl.load(row + 4).to(tl.pointer_type(types[0])), align)
    if types[1] == tl.uint8:
        length = tl.load(row + 7).to(tl.int32)  # its lower half
        groups = (size // length * ((length + GROUP - 1) // GROUP)).to(tl.int32)
        group = (start // GROUP).to(tl.int32)
        for i in range(group, tl.minimum(group + CHUNK // GROUP, groups), BLOCK // GROUP):
            some = i + tl.arange(0, BLOCK // GROUP)
            _update_groups((p, m, v, vmax, g), some, groups, length, s, seed, types, ams, plain, align == 16)
    else:
        tensors = p + start, m + start, v + start, vmax + start, g + start, start
        count = tl.minimum(size - start, CHUNK).to(tl.int32)
        whole = count // BLOCK * BLOCK  # blocks without a mask are read and written in 128-bit words
        for i in range(0, whole, BLOCK):
            _update_block(tensors, i + tl.arange(0, BLOCK), None, s, seed, types, ams, plain)
        if whole < count:
            at = whole + tl.arange(0, BLOCK)
            _update_block(tensors, at, at < count, s, seed, types, ams, plain)


@triton.jit
def _expm1(x):
    """eˣ − 1 for x ≤ 0 in float64: near 0 by Taylor's series, because tl has no expm1."""
    series = x * 0 + 1
    for k in tl.static_range(12):
        series = 1 + x / (13 - k) * series
    return tl.where(x > -0.5, x * series, tl.exp(x) - 1)


@triton.jit
def _first_moment(t, numbers, decay: tl.constexpr):
    """β₁ₜ, and the bias correction 1 − β₁₁·…·β₁ₜ."""
    beta1, log_beta1 = tl.load(numbers + 3), tl.load(numbers + 4)
    if decay == "harmonic":  # 1 − β₁ᵗ/t!: the factors after the 24th do not change it
        product = t * 0 + 1
        for k in tl.static_range(1, 25):
            product = tl.where(t >= k, product * (beta1 / k), product)
        return beta1 / t, 1 - product
    elif decay == "geometric":
        log_decay = tl.load(numbers + 7)
        return beta1 * tl.exp(log_decay * (t - 1)), -_expm1(t * log_beta1 + log_decay * (t * (t - 1) / 2))
    else:
        return t * 0 + beta1, -_expm1(t * log_beta1)


@triton.jit
def _bounds(t, numbers, family: tl.constexpr):
    """The bounds as multiples of the final learning rate, as in ``dynabound.bounds``."""
    x = tl.load(numbers + 2) * t
    if family == "harmonic":
        upper = 1 + 1 / x
        return 1 / upper, upper
    elif family == "exponential":
        lower = -_expm1(-x)
        return lower, 1 / lower
    elif family == "linear":
        lower = tl.minimum(x, 1.0)
        return lower, 1 / lower
    else:
        return x * 0 + tl.load(numbers + 8), x * 0 + tl.load(numbers + 9)


@triton.jit(do_not_specialize=["count"])
def compute_scalars(
    entries,
    count,
    numbers,
    lr,
    scalars,
    bounds: tl.constexpr,
    beta1_decay: tl.constexpr,
    debias: tl.constexpr,
    sqrt_decay: tl.constexpr,
):
    """The scalars of 128 tensors from their step counts, in float64, as ``_scalars.scalars`` computes them."""
    index = tl.program_id(0) * 128 + tl.arange(0, 128)
    mask = index < count
    steps = tl.load(entries + index * ENTRY + 6, mask=mask, other=0).to(tl.pointer_type(tl.int64))
    step = tl.load(steps, mask=mask, other=0) + 1
    t = step.to(tl.float64)
    rate = tl.load(lr).to(tl.float64)
    base_lr, final_lr, largest = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 6)
    beta1, correction = _first_moment(t, numbers, beta1_decay)
    step_size = t * 0 + rate
    if debias:
        step_size = rate * tl.sqrt(-_expm1(t * tl.load(numbers + 5))) / correction
    lower, upper = _bounds(t, numbers, bounds)
    factor = tl.where(base_lr > 0, rate / base_lr, tl.where(rate > 0, 1.0, 0.0))
    final_lr *= factor
    root = tl.sqrt(t) if sqrt_decay else t * 0 + 1
    row = scalars + index * SCALARS
    tl.store(row, tl.minimum(step_size / root, largest), mask=mask)
    tl.store(row + 1, tl.minimum(lower * final_lr / root, largest), mask=mask)
    tl.store(row + 2, tl.minimum(tl.minimum(upper, largest) * final_lr / root, largest), mask=mask)
    tl.store(row + 3, beta1, mask=mask)
    tl.store(row + 6, 1 - rate * tl.load(numbers + 10) - factor * tl.load(numbers + 17), mask=mask)
    tl.store(row + 11, 1 - beta1, mask=mask)
    tl.store(row + 12, 1 - tl.load(numbers + 11), mask=mask)
    tl.store((row + 13).to(tl.pointer_type(tl.int32), bitcast=True), step.to(tl.int32), mask=mask)
    for k in tl.static_range(6):  # β₂, ε, L2, sign and box do not change with the step
        tl.store(row + (k + 4 if k < 2 else k + 5), tl.load(numbers + 11 + k), mask=mask)
