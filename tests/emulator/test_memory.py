"""State spaces, generic addresses, asynchronous copies and matrix loads."""

import numpy as np
import pytest

from mkb_core.emulator import EmulatorError, MemoryFault
from mkb_core.emulator.memory import AccessError, GlobalMemory

AT = "mul.wide.u32 %d9, %r1, 4; add.s64 %d10, %d1, %d9;"
STORE = f"{AT} st.global.u32 [%d10], %r3; ret;"
SHARED = ".shared .align 16 .b8 s[1024]; mov.u32 %r4, s; shl.b32 %r5, %r1, 2; add.u32 %r6, %r4, %r5;"


def test_generic_addresses_reach_every_space(run, aligned):
    """Even lanes read shared memory and odd lanes read global memory, in one load."""
    out = aligned(32, np.uint32)
    out[:] = np.arange(32) + 1000
    body = f"{SHARED} st.shared.u32 [%r6], %r1; {AT} cvt.u64.u32 %d2, %r6; cvta.shared.u64 %d3, %d2;"
    pick = "and.b32 %r7, %r1, 1; setp.eq.u32 %p1, %r7, 0; selp.b64 %d4, %d3, %d10, %p1; ld.u32 %r3, [%d4];"
    run(f"{body} {pick} isspacep.shared %p2, %d4; @!%p2 add.u32 %r3, %r3, 1; {STORE}", out)
    assert out.tolist() == [i if i % 2 == 0 else 1001 + i for i in range(32)]


def test_local_memory_is_per_thread(run, aligned):
    out = aligned(32, np.uint32)
    body = (
        ".local .align 8 .b8 depot[16]; mov.u64 %d2, depot; st.local.u32 [%d2+8], %r1; ld.local.u32 %r3, [%d2+8];"
    )
    run(f"{body} {STORE}", out)
    assert out.tolist() == list(range(32))


def test_shared_memory_is_per_block_and_starts_poisoned(run, aligned):
    out = aligned(64, np.uint32)
    body = f"{SHARED} mov.u32 %r7, %ctaid.x; setp.eq.u32 %p1, %r7, 0; @%p1 st.shared.u32 [%r6], %r1;"
    run(f"{body} ld.shared.u32 %r3, [%r6]; mad.lo.u32 %r1, %r7, 32, %r1; {STORE}", out, grid=(2, 1, 1))
    assert out.tolist() == [*range(32), *[0xFFFFFFFF] * 32]


def test_asynchronous_copy_fills_with_zeros(run, aligned):
    source, out = aligned(128, np.uint32), aligned(128, np.uint32)
    source[:] = np.arange(1, 129)
    place = f"{SHARED} shl.b32 %r5, %r1, 4; add.u32 %r6, %r4, %r5; cvt.u64.u32 %d9, %r5; add.s64 %d10, %d1, %d9;"
    copy = "setp.lt.u32 %p1, %r1, 16; selp.u32 %r7, 16, 6, %p1;"
    copy += "cp.async.cg.shared.global.L2::128B [%r6], [%d10], 16, %r7;"
    wait = "cp.async.commit_group; cp.async.wait_group 0; ld.shared.v4.u32 {%r7, %r8, %r9, %r10}, [%r6];"
    run(
        f"{place} {copy} {wait} add.s64 %d11, %d2, %d9; st.global.v4.u32 [%d11], {{%r7, %r8, %r9, %r10}}; ret;",
        source,
        out,
    )
    assert (out[:64] == source[:64]).all()
    tail = out[64:].view(np.uint8).reshape(16, 16)
    assert (tail[:, :6] == source[64:].view(np.uint8).reshape(16, 16)[:, :6]).all()
    assert not tail[:, 6:].any()


@pytest.mark.parametrize("transposed", [False, True])
def test_matrix_load(run, aligned, transposed):
    """Element (r, c) of the 8x8 matrix holds 8 r + c; lane 4 r + c gets (r, 2c) and (r, 2c + 1)."""
    out = aligned(32, np.uint32)
    pair = "shl.b32 %r7, %r1, 1; add.u32 %r8, %r7, 1; shl.b32 %r8, %r8, 16; or.b32 %r7, %r7, %r8;"
    fill = f"{SHARED} {pair} st.shared.u32 [%r6], %r7;"
    row = "and.b32 %r9, %r1, 7; shl.b32 %r9, %r9, 4; add.u32 %r9, %r9, %r4; bar.warp.sync -1;"
    load = f"ldmatrix.sync.aligned.m8n8.x1{'.trans' if transposed else ''}.shared.b16 {{%r3}}, [%r9];"
    run(f"{fill} {row} {load} {STORE}", out)
    matrix = np.arange(64).reshape(8, 8)
    expected = matrix.T if transposed else matrix
    assert (out.view(np.uint16).reshape(8, 8) == expected).all()


def test_regions_are_checked_apart():
    first, second = np.arange(8, dtype=np.uint32), np.arange(8, 16, dtype=np.uint32)
    memory = GlobalMemory()
    for array in (first, second):
        memory.add(array.ctypes.data, array.nbytes)
    addresses = np.array([second.ctypes.data, first.ctypes.data + 28])
    assert memory.gather(addresses, np.dtype("u4"), 1).ravel().tolist() == [8, 7]
    memory.replace([(second.ctypes.data, second.nbytes)])
    with pytest.raises(AccessError, match="outside every tensor") as caught:
        memory.gather(addresses, np.dtype("u4"), 1)
    assert caught.value.position == 1


def test_regions_that_overlap_become_one():
    array = np.zeros(16, np.uint8)
    base = array.ctypes.data
    memory = GlobalMemory()
    memory.replace([(base + 4, 4), (base, 8), (base + 6, 6), (base + 12, 4)])
    assert [memory.room(base + i) for i in (-1, 0, 5, 11, 12, 15, 16)] == [0, 12, 7, 1, 4, 1, 0]


def test_vector_access_that_crosses_the_end(run, aligned):
    with pytest.raises(MemoryFault, match=r"ld.global.v4.u32 .*4 bytes past the end"):
        run("ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%d1]; ret;", aligned(3, np.uint32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": (1025, 1, 1)}, "more than 1024 threads"),
        ({"grid": (1, 70000, 1)}, "is not possible"),
        ({"grid": (0, 1, 1)}, "is not possible"),
    ],
)
def test_launch_that_no_device_accepts(run, aligned, options, message):
    with pytest.raises(EmulatorError, match=message):
        run("ret;", aligned(1, np.uint32), **options)


def test_too_much_shared_memory(run, aligned):
    with pytest.raises(EmulatorError, match="300000 bytes of shared memory"):
        run(".shared .align 16 .b8 big[300000]; ret;", aligned(1, np.uint32))
