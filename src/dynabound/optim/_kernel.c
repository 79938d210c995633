/* The AdaBound update in one pass over memory.
 *
 * For every element of every tensor of a call:
 *
 *     g     = sign * grad + l2 * p                     gradient, negated by maximize, with L2 decay
 *     m     = beta1 * m + (1 - beta1) * g
 *     v     = beta2 * v + (1 - beta2) * g * g
 *     vmax  = max(vmax, v)                             AMSBound only; replaces v below
 *     rate  = clip(step_size / (sqrt(v) + eps), lower, upper)
 *     p     = clip(shrink * p - rate * m, low, high)
 *
 * as in _loop.py. Where the bounds have met there may be no v: the rate is then the lower bound. A bfloat16 second moment
 * is rounded stochastically, and if asked for a bfloat16 parameter, with the noise of _state/rounding.py; the rest is
 * rounded to nearest. Moments in 8 bits, the format of _state/eightbit.py, are decoded before the rule and encoded after
 * it, block by block. The tensors' memory is read through DLPack's C exchange interface, and the file uses only CPython's
 * limited API, no torch headers: one binary works with every torch and every Python.
 * Floating-point contraction is off (see setup.py): all instruction sets and thread counts give the same bits.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#if defined(__GNUC__) || defined(__clang__)
#define INLINE static inline __attribute__((always_inline))
#define RESTRICT restrict
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define INLINE static inline
#define RESTRICT
#define PREFETCH(address) (void)(address)
#endif

/* Below this many elements a second thread costs more than it saves. */
#define ELEMENTS_PER_THREAD 8192
/* Threads split the work at multiples of this, so that no two share a cache line or a vector. */
#define SPLIT 64

typedef struct {
    double step_size, lower, upper, beta1, beta2, eps, shrink, l2, sign, low, high, stochastic;
} Scalars;

/* A parameter with its gradient and state: the entries that scan() returns as bytes and update() reads. */
typedef struct {
    void *p, *m, *v, *vmax;
    const void *g;
    Py_ssize_t count;
    int64_t *step;
    int32_t row;       /* the elements of a row, where a moment is in 8 bits */
    int16_t kind, ams; /* ams: whether AMSBound, or RELEASED, where there is no second moment any more */
} Tensor;
enum { RELEASED = 2 };

/* ---- 16-bit numbers, without branches, so that the compiler vectorises the conversions ---- */

INLINE float bits_to_float(uint32_t bits) { float x; memcpy(&x, &bits, sizeof x); return x; }
INLINE uint32_t float_to_bits(float x) { uint32_t bits; memcpy(&bits, &x, sizeof bits); return bits; }

INLINE float load_bf16(uint16_t h) { return bits_to_float((uint32_t)h << 16); }

INLINE uint16_t store_bf16(float x) {
    uint32_t bits = float_to_bits(x);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16; /* to nearest, ties to even */
    return (uint16_t)(x != x ? 0x7fc0u : rounded);
}

INLINE float load_f16(uint16_t h) {
    uint32_t magnitude = (uint32_t)(h & 0x7fffu);
    /* A subnormal half is its mantissa times 2^-24; any other is rebiased by 112 = 127 - 15. */
    float subnormal = (float)(int32_t)magnitude * 0x1p-24f;
    float normal = bits_to_float((magnitude << 13) + (112u << 23));
    float special = bits_to_float((magnitude << 13) | 0x7f800000u);
    float x = magnitude < 0x0400u ? subnormal : magnitude < 0x7c00u ? normal : special;
    return bits_to_float(float_to_bits(x) | (uint32_t)(h & 0x8000u) << 16);
}

INLINE uint16_t store_f16(float x) {
    uint32_t bits = float_to_bits(x), magnitude = bits & 0x7fffffffu;
    /* Adding 0.5 leaves a subnormal half's mantissa, correctly rounded, in the low bits of the sum. */
    uint32_t subnormal = float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t normal = (magnitude - (112u << 23) + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
    uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    uint32_t h = magnitude < (113u << 23) ? subnormal : magnitude < (143u << 23) ? normal : special;
    return (uint16_t)(h | (bits >> 16 & 0x8000u));
}

INLINE uint32_t mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x21f0aaadu;
    x = (x ^ x >> 15) * 0x735a2d97u;
    return x ^ x >> 15;
}

/* The noise of element i is mix(i ^ seed): its high 16 bits round a second moment, its low 16 bits a parameter, the 16 in
 * the middle a first moment in 8 bits. */
INLINE uint32_t noise_seed(const Tensor *t) { return mix((uint32_t)*t->step ^ mix((uint32_t)t->count)); }

INLINE uint16_t round_bf16(float x, uint32_t noise) {
    uint32_t rounded = (float_to_bits(x) + noise) >> 16;
    return (uint16_t)(x != x ? 0x7fc0u : rounded);
}

/* Stores take the noise of the element, and mostly ignore it. */
#define SAME(x) (x)
#define STORE(x, noise) (x)
#define STORE_BF16(x, noise) store_bf16(x)
#define STORE_F16(x, noise) store_f16(x)
#define ROUND_V(x, noise) round_bf16(x, (noise) >> 16)
#define ROUND_P(x, noise) round_bf16(x, (noise) & 0xffffu)

/* ---- moments in 8 bits ---- */

/* A group of 32 codes has a scale; a row of a moment is its codes, filled up to whole groups, and then its scales. The
 * kernel computes with signed roots, scale * code, of a block of groups. Each loop over a block does little, so that the
 * processor, which waits long for roots and conversions, has many elements at hand. */
enum { GROUP = 32, BLOCK = 1024, AHEAD = 1536 };

INLINE float signed_root(float x) { return copysignf(sqrtf(fabsf(x)), x); }

/* The bytes of a row of n elements. */
INLINE Py_ssize_t row_bytes(Py_ssize_t n) { return (n + GROUP - 1) / GROUP * (GROUP + (Py_ssize_t)sizeof(float)); }

/* The loops over all elements of a block convert to and from bytes: those of one group are too short for whole vectors. */
INLINE void decode(float *RESTRICT roots, const uint8_t *RESTRICT codes, const float *RESTRICT scales, int groups,
                   int second) {
    for (int j = 0; j < groups * GROUP; j++) roots[j] = (float)(second ? (int)codes[j] : (int)(int8_t)codes[j]);
    for (int k = 0; k < groups; k++)
        for (int j = 0; j < GROUP; j++) roots[k * GROUP + j] *= scales[k];
}

/* The scales of groups, and the factors that make codes of roots. */
INLINE void find_scales(float *RESTRICT scales, float *RESTRICT factors, const float *RESTRICT roots, int groups,
                        float top) {
    uint32_t largest[BLOCK / GROUP]; /* the order of floats >= 0 is that of their bits, with NaN the largest */
    for (int k = 0; k < groups; k++) {
        uint32_t bits = 0;
        for (int j = 0; j < GROUP; j++) {
            uint32_t one = float_to_bits(roots[k * GROUP + j]) & 0x7fffffffu;
            bits = one > bits ? one : bits;
        }
        largest[k] = bits;
    }
    for (int k = 0; k < groups; k++) {
        const float most = bits_to_float(largest[k]);
        scales[k] = most / top;
        factors[k] = most > 0 ? top / most : 0;
    }
}

/* The code of y = |root| * factor, rounded by 16 random bits so that its square is unbiased; top if y is not finite. */
INLINE int32_t round_code(float y, float top, uint32_t random) {
    const uint32_t bits = float_to_bits(y), limit = float_to_bits(top);
    y = bits_to_float(bits < limit ? bits : limit);
    const int32_t code = (int32_t)y;
    const float below = (float)code;
    return code + ((float)(int32_t)random * (below * 0x1p-15f + 0x1p-16f) < (y - below) * (y + below));
}

/* Memory ahead of a block, which may not be there, with elements of size bytes. */
typedef struct { const char *p, *g, *m, *v; int size; } Next;

/* Read the lines of a group ahead: while a block is encoded the hardware sees no reads that it could continue. Each loop
 * over groups asks for a part, because all of it at once would be more than the memory can deliver during one loop. */
INLINE void prefetch(const char *address, int k, int size) {
    for (int j = 0; j < GROUP * size; j += 64) PREFETCH(address + k * GROUP * size + j);
}

/* m holds first moments, of which it takes the roots here, where the divider has nothing else to do; v holds roots. */
INLINE void encode(uint8_t *RESTRICT m_codes, uint8_t *RESTRICT v_codes, float *RESTRICT m_scales,
                   float *RESTRICT v_scales, float *RESTRICT m, const float *RESTRICT v, int groups, uint32_t first,
                   uint32_t seed, int second, Next next) {
    float factors[BLOCK / GROUP];
    uint32_t noise[BLOCK];
    int32_t wide[BLOCK];
    for (int j = 0; j < groups * GROUP; j++) {
        noise[j] = mix((first + (uint32_t)j) ^ seed);
        m[j] = signed_root(m[j]);
    }
    find_scales(m_scales, factors, m, groups, 127);
    for (int k = 0; k < groups; k++) {
        const float factor = factors[k];
        prefetch(next.p, k, next.size);
        if (!second) prefetch(next.g, k, next.size);
        if (k % 2 == 0) prefetch(next.m, k, 1);
        for (int j = k * GROUP; j < (k + 1) * GROUP; j++) {
            const int32_t sign = (int32_t)float_to_bits(m[j]) >> 31;
            wide[j] = (round_code(fabsf(m[j]) * factor, 127, noise[j] >> 8 & 0xffffu) ^ sign) - sign;
        }
    }
    for (int j = 0; j < groups * GROUP; j++) m_codes[j] = (uint8_t)wide[j];
    if (!second) return;
    find_scales(v_scales, factors, v, groups, 255);
    for (int k = 0; k < groups; k++) {
        const float factor = factors[k];
        prefetch(next.g, k, next.size);
        if (k % 2 == 0) prefetch(next.v, k, 1);
        for (int j = k * GROUP; j < (k + 1) * GROUP; j++) {
            const int32_t code = round_code(v[j] * factor, 255, noise[j] >> 16), least = v[j] > 0;
            wide[j] = code > least ? code : least;
        }
    }
    for (int j = 0; j < groups * GROUP; j++) v_codes[j] = (uint8_t)wide[j];
}

/* decode() and encode() for an instruction set, as functions: inlined, they would take registers from the rule. */
typedef struct {
    void (*decode)(float *, const uint8_t *, const float *, int, int);
    void (*encode)(uint8_t *, uint8_t *, float *, float *, float *, const float *, int, uint32_t, uint32_t, int, Next);
} Codec;

#define DEFINE_CODEC(ISA, TARGET)                                                                                 \
    TARGET static void decode_##ISA(float *roots, const uint8_t *codes, const float *scales, int groups, int second) {\
        if (second) decode(roots, codes, scales, groups, 1);                                                      \
        else decode(roots, codes, scales, groups, 0);                                                             \
    }                                                                                                             \
    TARGET static void encode_##ISA(uint8_t *m_codes, uint8_t *v_codes, float *m_scales, float *v_scales, float *m,\
                                    const float *v, int groups, uint32_t first, uint32_t seed, int second, Next next) {\
        if (second) encode(m_codes, v_codes, m_scales, v_scales, m, v, groups, first, seed, 1, next);             \
        else encode(m_codes, v_codes, m_scales, v_scales, m, v, groups, first, seed, 0, next);                    \
    }                                                                                                             \
    static const Codec codec_##ISA = {decode_##ISA, encode_##ISA};

/* ---- formats ---- */

#define ALL(i, from) (i)
#define IN_GROUP(i, from) ((i) - (from))
#define SQUARE(x) ((x) * (x))
#define SIGNED_SQUARE(x) ((x) * fabsf(x))
#define STORE_ROOT(x, noise) sqrtf(x)

/* Type, index, load, store. The last of a second moment's is for AMSBound's maximum, whose value is mostly an old one: to
 * nearest, because noise in a maximum only ever raises it. A buffer holds what is in 8 bits: the
 * roots of both moments, then new first moments and the roots of the second. */
#define F32 float, ALL, SAME, STORE
#define F64 double, ALL, SAME, STORE
#define BF16 uint16_t, ALL, load_bf16, STORE_BF16
#define F16 uint16_t, ALL, load_f16, STORE_F16
#define RANDOM_BF16 uint16_t, ALL, load_bf16, ROUND_P
#define ROOT float, IN_GROUP, SIGNED_SQUARE, STORE
#define V_F32 float, ALL, SAME, STORE, STORE
#define V_F64 double, ALL, SAME, STORE, STORE
#define V_BF16 uint16_t, ALL, load_bf16, ROUND_V, STORE_BF16
#define V_ROOT float, IN_GROUP, SQUARE, STORE_ROOT, STORE_ROOT

/* ---- the rule ---- */

/* One body per kind: the formats of parameter, first and second moment; it computes in R, and ams and plain are constants
 * at every call.
 * Plain means that sign, l2, shrink, low and high are neutral: leaving them out changes no bit, and saves a tenth of the
 * arithmetic. */
#define DEFINE_BODY(...) DEFINE_BODY_(__VA_ARGS__)
#define DEFINE_BODY_(NAME, R, SQRT, P, AT_P, LOAD_P, STORE_P, M, AT_M, LOAD_M, STORE_M, V, AT_V, LOAD_V, STORE_V, \
                     STORE_VMAX)                                                                                  \
    INLINE void NAME##_body(const Tensor *t, Py_ssize_t from, Py_ssize_t to, const Scalars *s, int ams, int plain,\
                            const Codec *codec) {                                                                 \
        P *RESTRICT p = (P *)t->p;                                                                                \
        const P *RESTRICT g_in = (const P *)t->g;                                                                 \
        M *RESTRICT m_io = (M *)t->m;                                                                             \
        V *RESTRICT v_io = (V *)t->v;                                                                             \
        V *RESTRICT vmax_io = (V *)t->vmax;                                                                       \
        const R step_size = (R)s->step_size, lower = (R)s->lower, upper = (R)s->upper, eps = (R)s->eps,           \
                beta1 = (R)s->beta1, rest1 = (R)(1 - s->beta1), beta2 = (R)s->beta2, rest2 = (R)(1 - s->beta2),   \
                shrink = (R)s->shrink, decay = (R)s->l2, sign = (R)s->sign, low = (R)s->low, high = (R)s->high;   \
        const uint32_t seed = noise_seed(t);                                                                      \
        for (Py_ssize_t i = from; i < to; i++) {                                                                  \
            const uint32_t noise = mix((uint32_t)i ^ seed);                                                       \
            R x = LOAD_P(p[i]), g = LOAD_P(g_in[i]);                                                              \
            (void)noise, (void)codec;                                                                             \
            if (!plain) g = sign * g;                                                                             \
            if (!plain && decay != 0) g += decay * x;                                                             \
            R m = beta1 * LOAD_M(m_io[AT_M(i, from)]) + rest1 * g;                                                \
            m_io[AT_M(i, from)] = STORE_M(m, noise);                                                              \
            R rate = lower;                                                                                       \
            if (ams != RELEASED) {                                                                                \
                R v = beta2 * LOAD_V(v_io[AT_V(i, from)]) + rest2 * (g * g);                                      \
                v_io[AT_V(i, from)] = STORE_V(v, noise);                                                          \
                if (ams) {                                                                                        \
                    R vmax = LOAD_V(vmax_io[AT_V(i, from)]);                                                      \
                    v = v <= vmax ? vmax : v; /* a NaN in v wins, as in torch.maximum */                          \
                    vmax_io[AT_V(i, from)] = STORE_VMAX(v, noise);                                                \
                }                                                                                                 \
                rate = step_size / (SQRT(v) + eps);                                                               \
                rate = rate < lower ? lower : rate; /* both comparisons let a NaN through, as torch.clamp does */ \
                rate = rate > upper ? upper : rate;                                                               \
            }                                                                                                     \
            x = (plain ? x : shrink * x) - rate * m;                                                              \
            if (!plain) x = x < low ? low : x;                                                                    \
            if (!plain) x = x > high ? high : x;                                                                  \
            p[i] = STORE_P(x, noise);                                                                             \
        }                                                                                                         \
    }

/* The rule where the first moment is in 8 bits, with SECOND also the second: BASE for the groups of 32 elements whose first
 * element is in [from, to). The last group of a row may be shorter. */
#define DEFINE_GROUPS(NAME, BASE, P, SECOND)                                                                      \
    INLINE void NAME##_body(const Tensor *t, Py_ssize_t from, Py_ssize_t to, const Scalars *s, int ams, int plain,\
                            const Codec *codec) {                                                                 \
        const Py_ssize_t row = t->row, bytes = row_bytes(row), whole = (row + GROUP - 1) / GROUP * GROUP;         \
        const uint32_t seed = noise_seed(t);                                                                      \
        const int second = SECOND && ams != RELEASED;                                                             \
        float m[BLOCK], v[BLOCK];                                                                                 \
        Tensor part = *t;                                                                                         \
        part.m = m;                                                                                               \
        if (SECOND) part.v = v;                                                                                   \
        if (SECOND && ams == 1) return; /* scan() finds no such kind */                                           \
        Py_ssize_t r = from / row, c = (from % row + GROUP - 1) / GROUP * GROUP;                                  \
        for (; r * row < to; r++, c = 0) {                                                                        \
            const Py_ssize_t last = to - r * row < row ? to - r * row : row;                                      \
            for (; c < last; c += BLOCK) {                                                                        \
                const int groups = last - c < BLOCK ? (int)(last - c + GROUP - 1) / GROUP : BLOCK / GROUP;        \
                const int count = row - c < groups * GROUP ? (int)(row - c) : groups * GROUP;                     \
                const Py_ssize_t i = r * row + c, scales = r * bytes + whole + c / GROUP * (Py_ssize_t)sizeof(float);\
                uint8_t *m_codes = (uint8_t *)t->m + r * bytes + c;                                               \
                uint8_t *v_codes = second ? (uint8_t *)t->v + r * bytes + c : NULL;                               \
                float *m_scales = (float *)((char *)t->m + scales);                                               \
                float *v_scales = second ? (float *)((char *)t->v + scales) : NULL;                               \
                const Next next = {(char *)((P *)t->p + i + AHEAD), (char *)((P *)t->g + i + AHEAD),              \
                                   (char *)m_codes + AHEAD, second ? (char *)v_codes + AHEAD : NULL, sizeof(P)};  \
                codec->decode(m, m_codes, m_scales, groups, 0);                                                   \
                if (second) codec->decode(v, v_codes, v_scales, groups, 1);                                       \
                BASE##_body(&part, i, i + count, s, ams, plain, codec);                                           \
                for (int j = count; j < groups * GROUP; j++) m[j] = v[j] = 0;                                     \
                codec->encode(m_codes, v_codes, m_scales, v_scales, m, v, groups, (uint32_t)i, seed, second, next);\
            }                                                                                                     \
        }                                                                                                         \
    }

typedef void (*Update)(const Tensor *, Py_ssize_t, Py_ssize_t, const Scalars *, int, int);

#define DEFINE_FOR(NAME, ISA, TARGET)                                                                             \
    TARGET static void NAME##_##ISA(const Tensor *t, Py_ssize_t from, Py_ssize_t to, const Scalars *s, int ams,   \
                                    int plain) {                                                                  \
        if (ams == RELEASED && plain) NAME##_body(t, from, to, s, RELEASED, 1, &codec_##ISA);                     \
        else if (ams == RELEASED) NAME##_body(t, from, to, s, RELEASED, 0, &codec_##ISA);                         \
        else if (ams && plain) NAME##_body(t, from, to, s, 1, 1, &codec_##ISA);                                   \
        else if (ams) NAME##_body(t, from, to, s, 1, 0, &codec_##ISA);                                            \
        else if (plain) NAME##_body(t, from, to, s, 0, 1, &codec_##ISA);                                          \
        else NAME##_body(t, from, to, s, 0, 0, &codec_##ISA);                                                     \
    }

/* The machine's streaming limit, for the benchmark: the bytes of AdaBound, and almost no arithmetic. */
INLINE void stream_body(const Tensor *t, Py_ssize_t from, Py_ssize_t to, const Scalars *s, int ams, int plain,
                        const Codec *codec) {
    float *RESTRICT p = (float *)t->p, *RESTRICT m = (float *)t->m, *RESTRICT v = (float *)t->v;
    const float *RESTRICT g = (const float *)t->g;
    const float sign = (float)s->sign;
    (void)ams, (void)plain, (void)codec;
    for (Py_ssize_t i = from; i < to; i++) {
        float x = sign * g[i];
        m[i] = m[i] + x;
        v[i] = v[i] + x;
        p[i] = p[i] + x;
    }
}

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define X86_DISPATCH 1
#define AVX2 __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")))
#define DEFINE_ALL(NAME) DEFINE_FOR(NAME, avx512, AVX512) DEFINE_FOR(NAME, avx2, AVX2) DEFINE_FOR(NAME, baseline, )
#define LEVELS(NAME) {NAME##_baseline, NAME##_avx2, NAME##_avx512}
static const char *const LEVEL_NAMES[] = {"baseline", "avx2", "avx512"};
#else
#define DEFINE_ALL(NAME) DEFINE_FOR(NAME, baseline, )
#define LEVELS(NAME) {NAME##_baseline}
static const char *const LEVEL_NAMES[] = {"baseline"};
#endif
DEFINE_CODEC(baseline, )
#ifdef X86_DISPATCH
DEFINE_CODEC(avx2, AVX2)
DEFINE_CODEC(avx512, AVX512)
#endif
#define LEVEL_COUNT (int)(sizeof LEVEL_NAMES / sizeof *LEVEL_NAMES)

DEFINE_BODY(f32, float, sqrtf, F32, F32, V_F32)
DEFINE_BODY(f64, double, sqrt, F64, F64, V_F64)
DEFINE_BODY(f32_bf16, float, sqrtf, F32, BF16, V_BF16)
DEFINE_BODY(f32_bf16_f32, float, sqrtf, F32, BF16, V_F32)
DEFINE_BODY(f16_f32, float, sqrtf, F16, F32, V_F32)
DEFINE_BODY(bf16_f32, float, sqrtf, BF16, F32, V_F32)
DEFINE_BODY(bf16, float, sqrtf, BF16, BF16, V_BF16)
DEFINE_BODY(random_bf16_f32, float, sqrtf, RANDOM_BF16, F32, V_F32)
DEFINE_BODY(random_bf16, float, sqrtf, RANDOM_BF16, BF16, V_BF16)
DEFINE_BODY(f32_roots, float, sqrtf, F32, ROOT, V_ROOT)
DEFINE_BODY(f32_root_bf16, float, sqrtf, F32, ROOT, V_BF16)
DEFINE_BODY(f16_roots, float, sqrtf, F16, ROOT, V_ROOT)
DEFINE_BODY(f16_root_bf16, float, sqrtf, F16, ROOT, V_BF16)
DEFINE_BODY(bf16_roots, float, sqrtf, BF16, ROOT, V_ROOT)
DEFINE_BODY(bf16_root_bf16, float, sqrtf, BF16, ROOT, V_BF16)
DEFINE_BODY(random_bf16_roots, float, sqrtf, RANDOM_BF16, ROOT, V_ROOT)
DEFINE_BODY(random_bf16_root_bf16, float, sqrtf, RANDOM_BF16, ROOT, V_BF16)
DEFINE_GROUPS(f32_8bit, f32_roots, float, 1)
DEFINE_GROUPS(f32_8bit_bf16, f32_root_bf16, float, 0)
DEFINE_GROUPS(f16_8bit, f16_roots, uint16_t, 1)
DEFINE_GROUPS(f16_8bit_bf16, f16_root_bf16, uint16_t, 0)
DEFINE_GROUPS(bf16_8bit, bf16_roots, uint16_t, 1)
DEFINE_GROUPS(bf16_8bit_bf16, bf16_root_bf16, uint16_t, 0)
DEFINE_GROUPS(random_bf16_8bit, random_bf16_roots, uint16_t, 1)
DEFINE_GROUPS(random_bf16_8bit_bf16, random_bf16_root_bf16, uint16_t, 0)
DEFINE_ALL(f32)
DEFINE_ALL(f64)
DEFINE_ALL(f32_bf16)
DEFINE_ALL(f32_bf16_f32)
DEFINE_ALL(f16_f32)
DEFINE_ALL(bf16_f32)
DEFINE_ALL(bf16)
DEFINE_ALL(random_bf16_f32)
DEFINE_ALL(random_bf16)
DEFINE_ALL(f32_8bit)
DEFINE_ALL(f32_8bit_bf16)
DEFINE_ALL(f16_8bit)
DEFINE_ALL(f16_8bit_bf16)
DEFINE_ALL(bf16_8bit)
DEFINE_ALL(bf16_8bit_bf16)
DEFINE_ALL(random_bf16_8bit)
DEFINE_ALL(random_bf16_8bit_bf16)
DEFINE_ALL(stream)

static int best_level(void) {
#ifdef X86_DISPATCH
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return 2;
    return avx2;
#else
    return 0;
#endif
}

/* ---- dividing the work among threads ---- */

/* Update elements [from, to) of the concatenation of all tensors. */
static void walk(Update update, const Tensor *tensors, Py_ssize_t count, Py_ssize_t from, Py_ssize_t to,
                 const Scalars *s, int ams, int plain) {
    for (Py_ssize_t k = 0, start = 0; k < count && start < to; start += tensors[k++].count) {
        Py_ssize_t first = from > start ? from - start : 0;
        Py_ssize_t last = to - start < tensors[k].count ? to - start : tensors[k].count;
        if (first < last) update(&tensors[k], first, last, s, ams, plain);
    }
}

static void run(Update update, const Tensor *tensors, Py_ssize_t count, Py_ssize_t total, const Scalars *s, int ams,
                int threads) {
    int plain = s->sign == 1 && s->l2 == 0 && s->shrink == 1 && s->low == -INFINITY && s->high == INFINITY;
    if (threads > total / ELEMENTS_PER_THREAD) threads = (int)(total / ELEMENTS_PER_THREAD);
#ifdef _OPENMP
    if (threads > 1) {
#pragma omp parallel num_threads(threads)
        {
            Py_ssize_t team = omp_get_num_threads(), me = omp_get_thread_num();
            Py_ssize_t share = (total / team + SPLIT - 1) / SPLIT * SPLIT;
            Py_ssize_t from = me * share, to = me == team - 1 ? total : from + share;
            walk(update, tensors, count, from, to < total ? to : total, s, ams, plain);
        }
        return;
    }
#endif
    walk(update, tensors, count, 0, total, s, ams, plain);
}

/* ---- parameters that share memory ---- */

typedef struct { uintptr_t from, to; } Range;

/* The end of the ascending run that begins at i. */
static Py_ssize_t run_end(const Range *ranges, Py_ssize_t i, Py_ssize_t count) {
    while (++i < count && ranges[i - 1].from <= ranges[i].from) {}
    return i < count ? i : count;
}

/* Whether no two ranges overlap. A natural merge sort, because memory is mostly allocated in ascending order: then this is
 * one pass. */
static int are_disjoint(Range *ranges, Range *spare, Py_ssize_t count) {
    while (run_end(ranges, 0, count) < count) {
        for (Py_ssize_t i = 0; i < count;) {
            Py_ssize_t x = i, mid = run_end(ranges, i, count), y = mid, end = mid < count ? run_end(ranges, mid, count) : mid;
            for (; i < end; i++)
                spare[i] = x < mid && (y == end || ranges[x].from <= ranges[y].from) ? ranges[x++] : ranges[y++];
        }
        Range *sorted = spare;
        spare = ranges, ranges = sorted;
    }
    for (Py_ssize_t i = 1; i < count; i++)
        if (ranges[i].from < ranges[i - 1].to) return 0;
    return 1;
}

static Range *add_range(Range *next, const void *data, Py_ssize_t bytes) {
    if (bytes) *next++ = (Range){(uintptr_t)data, (uintptr_t)data + (uintptr_t)bytes};
    return next;
}

static Py_ssize_t moment_bytes(const Tensor *t, int bits) {
    return bits == 8 ? t->count / t->row * row_bytes(t->row) : t->count * bits / 8;
}

/* Whether parameters share memory, also with a gradient or a state; they must then be updated one after the other. */
static int share_memory(const Tensor *tensors, Py_ssize_t count, int p_bits, int m_bits, int v_bits) {
    Range *ranges = malloc((size_t)count * 10 * sizeof *ranges), *next = ranges;
    if (!ranges) return 1; /* updating one after the other is always right */
    for (Py_ssize_t k = 0; k < count; k++) next = add_range(next, tensors[k].p, tensors[k].count * p_bits / 8);
    for (Py_ssize_t k = 0; k < count; k++) next = add_range(next, tensors[k].g, tensors[k].count * p_bits / 8);
    for (Py_ssize_t k = 0; k < count; k++) {
        next = add_range(next, tensors[k].m, moment_bytes(&tensors[k], m_bits));
        if (tensors[k].ams != RELEASED) next = add_range(next, tensors[k].v, moment_bytes(&tensors[k], v_bits));
        if (tensors[k].ams == 1) next = add_range(next, tensors[k].vmax, moment_bytes(&tensors[k], v_bits));
    }
    int disjoint = are_disjoint(ranges, ranges + count * 5, next - ranges);
    free(ranges);
    return !disjoint;
}

/* ---- tensors, as DLPack (github.com/dmlc/dlpack) lays them out ---- */

typedef struct { uint8_t code, bits; uint16_t lanes; } DLDataType;

typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    DLDataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct {
    uint32_t major, minor;
    void *older;
    void *allocate, *managed_from_object, *managed_to_object;
    int (*view)(void *object, DLTensor *out); /* a borrowed view: nothing to release */
} DLExchange;

enum { DL_CPU = 1, DL_CUDA = 2, DL_ROCM = 10, DL_ONEAPI = 14, DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4 };
#define FLOAT16 {DL_FLOAT, 16, 1}
#define FLOAT32 {DL_FLOAT, 32, 1}
#define FLOAT64 {DL_FLOAT, 64, 1}
#define BFLOAT16 {DL_BFLOAT, 16, 1}
#define UINT8 {DL_UINT, 8, 1} /* 8 bits with a scale for each group */

static struct {
    const DLExchange *exchange;
    PyObject *tensor_type, *parameter_type, *is_neg;
} torch;

/* The kinds: dtypes of a parameter and its two moments, and what updates them, with rounding to nearest or stochastic. */
static const struct {
    DLDataType p, m, v;
    Update nearest[LEVEL_COUNT], stochastic[LEVEL_COUNT];
} KINDS[] = {
    {FLOAT32, FLOAT32, FLOAT32, LEVELS(f32), LEVELS(f32)},
    {FLOAT64, FLOAT64, FLOAT64, LEVELS(f64), LEVELS(f64)},
    {FLOAT32, BFLOAT16, BFLOAT16, LEVELS(f32_bf16), LEVELS(f32_bf16)},
    {FLOAT32, BFLOAT16, FLOAT32, LEVELS(f32_bf16_f32), LEVELS(f32_bf16_f32)},
    {FLOAT16, FLOAT32, FLOAT32, LEVELS(f16_f32), LEVELS(f16_f32)},
    {BFLOAT16, FLOAT32, FLOAT32, LEVELS(bf16_f32), LEVELS(random_bf16_f32)},
    {BFLOAT16, BFLOAT16, BFLOAT16, LEVELS(bf16), LEVELS(random_bf16)},
    {FLOAT32, UINT8, UINT8, LEVELS(f32_8bit), LEVELS(f32_8bit)},
    {FLOAT32, UINT8, BFLOAT16, LEVELS(f32_8bit_bf16), LEVELS(f32_8bit_bf16)},
    {FLOAT16, UINT8, UINT8, LEVELS(f16_8bit), LEVELS(f16_8bit)},
    {FLOAT16, UINT8, BFLOAT16, LEVELS(f16_8bit_bf16), LEVELS(f16_8bit_bf16)},
    {BFLOAT16, UINT8, UINT8, LEVELS(bf16_8bit), LEVELS(random_bf16_8bit)},
    {BFLOAT16, UINT8, BFLOAT16, LEVELS(bf16_8bit_bf16), LEVELS(random_bf16_8bit_bf16)},
};
enum { KIND_COUNT = sizeof KINDS / sizeof *KINDS };
static const Update STREAM[] = LEVELS(stream);

/* Whether a tensor has memory: not if its storage was resized to 0, nor if it is torch's symbolic zero. A view into an
 * empty storage has the address NULL plus its offset; so the size of the storage is read where the address is low. */
static int has_memory(PyObject *list, Py_ssize_t k, const DLTensor *tensor) {
    if ((uint64_t)(uintptr_t)tensor->data >> 32) return 1;
    PyObject *object = PyList_GetItem(list, k);
    PyObject *storage = tensor->data ? PyObject_CallMethod(object, "untyped_storage", NULL) : NULL;
    PyObject *bytes = storage ? PyObject_CallMethod(storage, "nbytes", NULL) : NULL;
    int answer = bytes && PyLong_AsSsize_t(bytes) > 0;
    PyErr_Clear();
    Py_XDECREF(storage);
    Py_XDECREF(bytes);
    return answer;
}

/* The memory of a plain torch.Tensor or Parameter on the CPU or a GPU; false for anything else. */
static int view(PyObject *object, DLTensor *out) {
    PyObject *type = (PyObject *)Py_TYPE(object);
    if (type != torch.tensor_type && type != torch.parameter_type) return 0;
    if (torch.exchange->view(object, out)) {
        PyErr_Clear(); /* sparse, meta, … */
        return 0;
    }
    out->data = (char *)out->data + out->byte_offset;
    int32_t device = out->device_type;
    return (device == DL_CPU || device == DL_CUDA || device == DL_ROCM || device == DL_ONEAPI) && out->dtype.lanes == 1;
}

static int same_device(const DLTensor *a, const DLTensor *b) {
    return a->device_type == b->device_type && a->device_id == b->device_id;
}

/* The bytes of a dense tensor. */
static uintptr_t bytes_of(const DLTensor *t) {
    uintptr_t bytes = t->dtype.bits / 8;
    for (int32_t i = 0; i < t->ndim; i++) bytes *= (uintptr_t)t->shape[i];
    return bytes;
}

static int overlap(const DLTensor *a, const DLTensor *b) {
    uintptr_t x = (uintptr_t)a->data, y = (uintptr_t)b->data;
    return x < y + bytes_of(b) && y < x + bytes_of(a);
}

static int same_type(const DLDataType *a, const DLDataType *b) { return !memcmp(a, b, sizeof *a); }

static int same_layout(const DLTensor *a, const DLTensor *b) {
    if (a->ndim != b->ndim) return 0;
    for (int32_t i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i] || (a->shape[i] > 1 && a->strides[i] != b->strides[i])) return 0;
    return 1;
}

/* Whether the elements fill their memory without gaps or overlaps, in whatever order of dimensions. */
static int is_dense(const DLTensor *t, Py_ssize_t *count) {
    *count = 1;
    for (int32_t i = 0; i < t->ndim; i++) *count *= t->shape[i];
    int64_t expected = 1;
    while (*count > 1 && expected < *count) {
        int32_t i = 0;
        while (i < t->ndim && !(t->shape[i] > 1 && t->strides[i] == expected)) i++;
        if (i == t->ndim) return 0;
        expected *= t->shape[i];
    }
    return 1;
}

static int is_contiguous(const DLTensor *t) {
    int64_t expected = 1;
    for (int32_t i = t->ndim; i-- > 0; expected *= t->shape[i])
        if (t->shape[i] > 1 && t->strides[i] != expected) return 0;
    return 1;
}

static int is_8bit(const DLTensor *moment) {
    return moment->dtype.code == DL_UINT && moment->dtype.bits == 8;
}

/* Whether a moment has the parameter's layout, or in 8 bits the groups of its rows, whose length this sets. */
static int fits(const DLTensor *moment, const DLTensor *p, Tensor *out) {
    if (!is_8bit(moment)) return same_layout(p, moment);
    if (!out->count || p->ndim < 2 || !is_contiguous(p)) return 0;
    Py_ssize_t row = out->count / (Py_ssize_t)p->shape[0];
    out->row = (int32_t)row;
    return row <= INT32_MAX && moment->ndim == 2 && moment->shape[0] == p->shape[0] &&
           moment->shape[1] == row_bytes(row) && is_contiguous(moment) && (uintptr_t)moment->data % sizeof(float) == 0;
}

/* The lists of one call: parameters, gradients, first and second moments, for AMSBound the largest second moments. */
typedef struct { PyObject *p, *g, *m, *v, *vmax, *steps; } Lists;

/* Where the tensors may be: on the CPU; with gpus on any one device; with capture the step count is there too, unread. */
typedef struct { int gpus, capture; } Place;

static int fit_place(const DLTensor *p, const DLTensor *g, const DLTensor *m, const DLTensor *v, const DLTensor *vmax,
                     const DLTensor *s, Place place) {
    return (place.gpus || p->device_type == DL_CPU) && same_device(p, g) && same_device(p, m) && same_device(p, v) &&
           (!vmax || same_device(p, vmax)) && (place.capture ? same_device(p, s) : s->device_type == DL_CPU);
}

/* Fill in the entry of the k-th parameter; return its kind, or -1 where the kernel does not apply. */
static int read_tensor(const Lists *lists, Py_ssize_t k, Place place, Tensor *out) {
    DLTensor p, g, m, v, vmax, s;
    int released = PyList_GetItem(lists->v, k) == Py_None, ams = !released && PyList_Size(lists->vmax) > 0;
    PyObject *list_of_v = released ? lists->m : lists->v; /* to be checked in its place */
    if (!view(PyList_GetItem(lists->p, k), &p) || !view(PyList_GetItem(lists->g, k), &g) ||
        !view(PyList_GetItem(lists->m, k), &m) || !view(PyList_GetItem(list_of_v, k), &v) ||
        (ams && !view(PyList_GetItem(lists->vmax, k), &vmax)) || !view(PyList_GetItem(lists->steps, k), &s))
        return -1;
    if (!same_layout(&p, &g) || !is_dense(&p, &out->count) || !fits(&m, &p, out) || !fits(&v, &p, out) ||
        !same_type(&p.dtype, &g.dtype) ||
        (ams && (is_8bit(&v) || !same_layout(&p, &vmax) || !same_type(&v.dtype, &vmax.dtype))) ||
        s.ndim != 0 || s.dtype.code != DL_INT || s.dtype.bits != 64)
        return -1;
    if (!fit_place(&p, &g, &m, &v, ams ? &vmax : NULL, &s, place) || !has_memory(lists->steps, k, &s)) return -1;
    if (out->count && (!has_memory(lists->p, k, &p) || !has_memory(lists->g, k, &g) || !has_memory(lists->m, k, &m) ||
                       !has_memory(list_of_v, k, &v) || (ams && !has_memory(lists->vmax, k, &vmax))))
        return -1;
    if (overlap(&p, &g) || overlap(&p, &m) || overlap(&p, &v) || overlap(&g, &m) || overlap(&g, &v) ||
        (!released && overlap(&m, &v)) ||
        (ams && (overlap(&p, &vmax) || overlap(&g, &vmax) || overlap(&m, &vmax) || overlap(&v, &vmax))))
        return -1; /* the bodies' pointers are restrict */
    out->p = p.data, out->g = g.data, out->m = m.data;
    out->v = released ? NULL : v.data, out->vmax = ams ? vmax.data : NULL;
    out->step = s.data, out->ams = released ? RELEASED : ams;
    for (int kind = 0; kind < KIND_COUNT; kind++)
        if (same_type(&KINDS[kind].p, &p.dtype) && same_type(&KINDS[kind].m, &m.dtype) &&
            (released || same_type(&KINDS[kind].v, &v.dtype)))
            return kind;
    return -1;
}

/* A gradient may be a lazily negated view: its memory then has the opposite sign. */
static int is_negated(PyObject *tensor) {
    PyObject *answer = PyObject_CallMethodObjArgs(tensor, torch.is_neg, NULL);
    int negated = answer ? answer == Py_True : -1;
    Py_XDECREF(answer);
    return negated;
}

static int check_lists(const Lists *lists) {
    Py_ssize_t count = PyList_Size(lists->p), ams = PyList_Size(lists->vmax);
    if (torch.exchange && PyList_Size(lists->g) == count && PyList_Size(lists->m) == count &&
        PyList_Size(lists->v) == count && PyList_Size(lists->steps) == count && (!ams || ams == count))
        return 1;
    PyErr_SetString(PyExc_ValueError, "fused update: connect() was not called, or lists of different lengths");
    return 0;
}

#define LISTS_FORMAT "O!O!O!O!O!O!"
#define LISTS_ARGUMENTS(l)                                                                                        \
    &PyList_Type, &(l).p, &PyList_Type, &(l).g, &PyList_Type, &(l).m, &PyList_Type, &(l).v, &PyList_Type,         \
        &(l).vmax, &PyList_Type, &(l).steps

/* ---- the Python side ---- */

static PyObject *connect(PyObject *self, PyObject *args) {
    PyObject *tensor, *parameter, *capsule;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOO", &tensor, &parameter, &capsule)) return NULL;
    const DLExchange *exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (!exchange) return NULL;
    while (exchange && exchange->major != 1) exchange = exchange->older;
    if (!exchange || !exchange->view) {
        PyErr_SetString(PyExc_ImportError, "this torch has no DLPack 1 exchange of borrowed tensors");
        return NULL;
    }
    torch.is_neg = PyUnicode_InternFromString("is_neg");
    torch.tensor_type = Py_NewRef(tensor);
    torch.parameter_type = Py_NewRef(parameter);
    torch.exchange = exchange;
    Py_RETURN_NONE;
}

/* The key of a parameter: kind and step count, or None. Neighbours mostly have equal keys and then share the object. With
 * capture the step count is not read, because it may be on a GPU: None. */
static PyObject *make_key(const Tensor *tensor, const Tensor *before, PyObject *last, int capture) {
    if (tensor->kind < 0) return Py_NewRef(Py_None);
    if (before && before->kind == tensor->kind && before->ams == tensor->ams &&
        (capture || *before->step == *tensor->step))
        return Py_NewRef(last);
    int kind = tensor->kind + (tensor->ams == RELEASED ? KIND_COUNT : 0);
    return capture ? Py_BuildValue("iO", kind, Py_None) : Py_BuildValue("iL", kind, (long long)*tensor->step);
}

static PyObject *scan(PyObject *self, PyObject *args) {
    Lists lists;
    Place place = {0, 0};
    (void)self;
    if (!PyArg_ParseTuple(args, LISTS_FORMAT "|pp", LISTS_ARGUMENTS(lists), &place.gpus, &place.capture) ||
        !check_lists(&lists))
        return NULL;
    Py_ssize_t count = PyList_Size(lists.p);
    PyObject *keys = PyList_New(count), *entries = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(Tensor));
    Tensor *tensors = entries ? (Tensor *)PyBytes_AsString(entries) : NULL;
    for (Py_ssize_t k = 0; keys && tensors && k < count; k++) {
        memset(&tensors[k], 0, sizeof *tensors);
        tensors[k].kind = read_tensor(&lists, k, place, &tensors[k]);
        int negated = tensors[k].kind < 0 ? 0 : is_negated(PyList_GetItem(lists.g, k));
        if (negated) tensors[k].kind = -1;
        PyObject *last = k ? PyList_GetItem(keys, k - 1) : NULL;
        PyObject *key = negated < 0 ? NULL : make_key(&tensors[k], k ? &tensors[k - 1] : NULL, last, place.capture);
        if (!key) Py_CLEAR(keys);
        else PyList_SetItem(keys, k, key);
    }
    PyObject *answer = keys && entries ? PyTuple_Pack(2, keys, entries) : NULL;
    Py_XDECREF(keys);
    Py_XDECREF(entries);
    return answer;
}

/* Run the update, or the stream, over entries of scan(), whose tensors must still be alive. */
static PyObject *apply(PyObject *args, int stream) {
    int level, threads;
    PyObject *entries;
    Scalars s;
    if (!PyArg_ParseTuple(args, "iiO!(dddddddddddd)", &level, &threads, &PyBytes_Type, &entries, &s.step_size, &s.lower,
                          &s.upper, &s.beta1, &s.beta2, &s.eps, &s.shrink, &s.l2, &s.sign, &s.low, &s.high,
                          &s.stochastic))
        return NULL;
    const Tensor *tensors = (const Tensor *)PyBytes_AsString(entries);
    Py_ssize_t size = PyBytes_Size(entries), count = size / (Py_ssize_t)sizeof *tensors, total = 0;
    int fits = count > 0 && size % (Py_ssize_t)sizeof *tensors == 0 && level >= 0 && level <= best_level();
    for (Py_ssize_t k = 0; fits && k < count; k++) {
        fits = tensors[k].kind >= 0 && tensors[k].kind == tensors[0].kind && (!stream || tensors[k].kind == 0) &&
               tensors[k].ams == tensors[0].ams;
        total += tensors[k].count;
    }
    if (!fits) {
        PyErr_SetString(PyExc_ValueError, "fused update: bad level, or entries that are not all of one kind");
        return NULL;
    }
    for (Py_ssize_t k = 0; k < count; k++) ++*tensors[k].step;
    Py_BEGIN_ALLOW_THREADS
    const int kind = tensors[0].kind;
    Update body = stream ? STREAM[level] : s.stochastic ? KINDS[kind].stochastic[level] : KINDS[kind].nearest[level];
    int parallel = count > 1 && threads > 1 && total >= 2 * ELEMENTS_PER_THREAD;
    if (parallel && !stream &&
        share_memory(tensors, count, KINDS[kind].p.bits, KINDS[kind].m.bits, KINDS[kind].v.bits))
        for (Py_ssize_t k = 0; k < count; k++)
            run(body, &tensors[k], 1, tensors[k].count, &s, tensors[0].ams, threads);
    else
        run(body, tensors, count, total, &s, tensors[0].ams, threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *update(PyObject *self, PyObject *args) { (void)self; return apply(args, 0); }
static PyObject *stream(PyObject *self, PyObject *args) { (void)self; return apply(args, 1); }

static PyMethodDef METHODS[] = {
    {"connect", connect, METH_VARARGS,
     "connect(tensor_type, parameter_type, exchange)\n--\n\nSet the types of plain tensors and the interface that reads them."},
    {"scan", scan, METH_VARARGS,
     "scan(p, g, m, v, vmax, steps, gpus=False, capture=False)\n--\n\n(kind, step count) of every parameter, or None where "
     "the kernel does not apply; and an entry of ENTRY_SIZE bytes for update(). With gpus also tensors on a GPU, whose "
     "entries are for the Triton kernel; with capture the step counts are on the parameters' devices: None."},
    {"update", update, METH_VARARGS,
     "update(level, threads, entries, scalars)\n--\n\nUpdate all tensors, which must be of one kind and still alive, in "
     "place, and increment their step counts."},
    {"stream", stream, METH_VARARGS,
     "stream(level, threads, entries, scalars)\n--\n\nMove update()'s bytes of float32 tensors, and "
     "compute almost nothing: the machine's limit."},
    {NULL, NULL, 0, NULL},
};

static int add_constants(PyObject *module) {
    PyObject *names = PyTuple_New(best_level() + 1);
    for (int k = 0; names && k <= best_level(); k++)
        PyTuple_SetItem(names, k, PyUnicode_FromString(LEVEL_NAMES[k]));
    int failed = !names || PyModule_AddObjectRef(module, "LEVELS", names);
    Py_XDECREF(names);
#ifdef _OPENMP
    const int openmp = 1;
#else
    const int openmp = 0;
#endif
    return failed || PyModule_AddIntConstant(module, "OPENMP", openmp) ||
                   PyModule_AddIntConstant(module, "ENTRY_SIZE", sizeof(Tensor))
               ? -1
               : 0;
}

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, (void *)add_constants}, {0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_kernel", "The AdaBound update in one pass over memory.", 0, METHODS, SLOTS, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&MODULE); }
