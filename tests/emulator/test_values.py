"""Arithmetic and conversion of single instructions against values worked out by hand or in float64."""

import numpy as np
import pytest

ADDRESS = "mul.wide.u32 %d9, %r1, 4; add.s64 %d10, %d1, %d9; add.s64 %d11, %d2, %d9;"
OUT = "st.global.b32 [%d11], %r3;"


def apply(run, aligned, body, values, dtype=np.uint32):
    """Lane i gets values[i] in %r2 and leaves its result in %r3."""
    source, target = aligned(32, dtype), aligned(32, np.uint32)
    source[: len(values)] = values
    run(f"{ADDRESS} ld.global.b32 %r2, [%d10]; {body} {OUT} ret;", source, target)
    return target[: len(values)]


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0x3F808000, 0x3F80),  # a tie goes to even: down
        (0x3F818000, 0x3F82),  # and up
        (0x3F808001, 0x3F81),  # above the tie
        (0x3F807FFF, 0x3F80),  # below it
        (0x7F7FFFFF, 0x7F80),  # overflows to infinity
        (0xFF800000, 0xFF80),
        (0x80000001, 0x8000),
    ],
)
def test_bf16_rounding(run, aligned, bits, expected):
    assert apply(run, aligned, "cvt.rn.bf16.f32 %h1, %r2; cvt.u32.u16 %r3, %h1;", [bits])[0] == expected


def test_bf16_nan_stays_nan(run, aligned):
    out = apply(run, aligned, "cvt.rn.bf16.f32 %h1, %r2; cvt.u32.u16 %r3, %h1;", [0x7F800001])[0]
    assert out & 0x7F80 == 0x7F80
    assert out & 0x7F


def test_packed_pair_has_the_first_operand_on_top(run, aligned):
    out = apply(run, aligned, "mov.b32 %r4, 0f40000000; cvt.rn.bf16x2.f32 %r3, %r4, %r2;", [0x3F800000])
    assert out[0] == 0x40003F80


@pytest.mark.parametrize(
    ("how", "expected"),
    [("rni", [2, 4, -2, 0]), ("rzi", [2, 3, -2, 0]), ("rmi", [2, 3, -3, 0]), ("rpi", [3, 4, -2, 0])],
)
def test_float_to_integer(run, aligned, how, expected):
    values = [2.5, 3.5, -2.5, np.nan]
    out = apply(run, aligned, f"cvt.{how}.s32.f32 %r3, %r2;", values, np.float32)
    assert out.view(np.int32).tolist() == expected


def test_float_to_integer_clamps(run, aligned):
    out = apply(run, aligned, "cvt.rzi.s32.f32 %r3, %r2;", [3e9, -3e9, np.inf], np.float32)
    assert out.view(np.int32).tolist() == [2**31 - 1, -(2**31), 2**31 - 1]


def test_fma_rounds_once(run, aligned):
    value = np.float32(1 + 2**-12)
    out = apply(run, aligned, "neg.f32 %f1, %r2; fma.rn.f32 %r3, %r2, %r2, %f1;", [value], np.float32)
    exact = float(value) * float(value) - float(value)
    assert out.view(np.float32)[0] == np.float32(exact)
    assert np.float32(exact) != np.float32(value * value) - value


def test_rsqrt_and_flush_to_zero(run, aligned):
    values = np.array([4.0, 0.0, -1.0, 1e-40], np.float32)
    out = apply(run, aligned, "rsqrt.approx.ftz.f32 %r3, %r2;", values, np.float32).view(np.float32)
    assert out[0] == 0.5
    assert np.isinf(out[[1, 3]]).all()
    assert np.isnan(out[2])


def test_minimum_prefers_the_number(run, aligned):
    body = "mov.b32 %r4, 0f3F800000; min.f32 %r5, %r2, %r4; min.NaN.f32 %r6, %r2, %r4; xor.b32 %r3, %r5, %r6;"
    out = apply(run, aligned, body, [np.nan], np.float32)
    assert out[0] & 0x7F800000 == 0x3F800000 ^ 0x7F800000


@pytest.mark.parametrize(
    ("body", "value", "expected"),
    [
        ("shl.b32 %r3, %r2, 32;", 1, 0),
        ("shr.s32 %r3, %r2, 40;", 0x80000000, 0xFFFFFFFF),
        ("shr.u32 %r3, %r2, 31;", 0x80000000, 1),
        ("mul.hi.s32 %r3, %r2, %r2;", 0xFFFF0000, 1),
        ("div.s32 %r3, %r2, 2;", (-7) & 0xFFFFFFFF, (-3) & 0xFFFFFFFF),
        ("rem.s32 %r3, %r2, 2;", (-7) & 0xFFFFFFFF, (-1) & 0xFFFFFFFF),
        ("bfe.s32 %r3, %r2, 4, 4;", 0xF0, 0xFFFFFFFF),
        ("bfe.u32 %r3, %r2, 4, 4;", 0xF0, 15),
        ("bfi.b32 %r3, 3, %r2, 4, 8;", 0xFFFF, 0xF03F),
        ("popc.b32 %r3, %r2;", 0xF0F, 8),
        ("clz.b32 %r3, %r2;", 1, 31),
        ("brev.b32 %r3, %r2;", 1, 0x80000000),
        ("prmt.b32 %r3, %r2, 0, 0x0123;", 0x11223344, 0x44332211),
        ("lop3.b32 %r3, %r2, 0xFF, 0xF0, 0x96;", 0x0F, 0),
        ("add.sat.s32 %r3, %r2, 1;", 0x7FFFFFFF, 0x7FFFFFFF),
        ("shf.l.wrap.b32 %r3, 0x80000000, %r2, 1;", 1, 3),
    ],
)
def test_integer(run, aligned, body, value, expected):
    assert apply(run, aligned, body, [value])[0] == expected


def test_narrow_signed_load_is_extended(run, aligned):
    source, target = aligned(4, np.int8), aligned(32, np.int32)
    source[:] = [-1, -128, 127, 0]
    body = "and.b32 %r4, %r1, 3; cvt.u64.u32 %d9, %r4; add.s64 %d10, %d1, %d9; ld.global.s8 %r3, [%d10];"
    run(f"{body} mul.wide.u32 %d9, %r1, 4; add.s64 %d11, %d2, %d9; {OUT} ret;", source, target)
    assert target[:4].tolist() == [-1, -128, 127, 0]


def test_vector_access(run, aligned):
    source, target = aligned(128, np.float32), aligned(128, np.float32)
    source[:] = np.arange(128)
    body = "mul.wide.u32 %d9, %r1, 16; add.s64 %d10, %d1, %d9; add.s64 %d11, %d2, %d9;"
    body += "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%d10]; st.global.v4.f32 [%d11], {%f4, %f3, %f2, %f1};"
    run(f"{body} ret;", source, target)
    assert (target.reshape(32, 4) == source.reshape(32, 4)[:, ::-1]).all()


def test_tensor_core_product(run, aligned):
    """mma.sync m16n8k16: A of ones, B of row numbers, so that D[r, c] = sum of k over n = c of B."""
    target = aligned(128, np.float32)
    body = """
    mov.b32 %r2, 0x3F803F80;                      // two ones
    and.b32 %r3, %r1, 3; shl.b32 %r3, %r3, 1;     // k of the lane's first pair
    cvt.rn.f32.u32 %f1, %r3; add.f32 %f2, %f1, 0f3F800000; cvt.rn.bf16x2.f32 %r4, %f2, %f1;
    add.f32 %f3, %f1, 0f41000000; add.f32 %f4, %f2, 0f41000000; cvt.rn.bf16x2.f32 %r5, %f4, %f3;
    mov.f32 %f5, 0f3F800000;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
        {%f1,%f2,%f3,%f4}, {%r2,%r2,%r2,%r2}, {%r4,%r5}, {%f5,%f5,%f5,%f5};
    mul.wide.u32 %d9, %r1, 16; add.s64 %d10, %d1, %d9; st.global.v4.f32 [%d10], {%f1,%f2,%f3,%f4}; ret;
    """
    run(body, target)
    assert (target == sum(range(16)) + 1).all()
