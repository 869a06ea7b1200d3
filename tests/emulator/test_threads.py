"""Control flow, exchange between threads, and what must be refused."""

import numpy as np
import pytest

from mkb_core.emulator import Deadlock, MemoryFault, StepLimit, UnsupportedInstruction
from mkb_core.emulator.ptx import parse

STORE = "mul.wide.u32 %d9, %r1, 4; add.s64 %d10, %d1, %d9; st.global.u32 [%d10], %r3; ret;"


def test_loop_with_a_trip_count_per_lane(run, aligned):
    out = aligned(32, np.uint32)
    body = "mov.u32 %r2, 0; mov.u32 %r3, 0; LOOP: setp.ge.u32 %p1, %r2, %r1; @%p1 bra DONE;"
    run(f"{body} add.u32 %r3, %r3, %r2; add.u32 %r2, %r2, 1; bra LOOP; DONE: {STORE}", out)
    assert out.tolist() == [sum(range(i)) for i in range(32)]


def test_branch_that_parts_the_warp(run, aligned):
    out = aligned(32, np.uint32)
    body = "and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; @%p1 bra EVEN; mov.u32 %r3, 7; bra.uni JOIN;"
    run(f"{body} EVEN: mov.u32 %r3, 4; JOIN: add.u32 %r3, %r3, %r1; {STORE}", out)
    assert out.tolist() == [i + (7 if i % 2 else 4) for i in range(32)]


def test_predicated_instruction(run, aligned):
    out = aligned(32, np.uint32)
    run(f"mov.u32 %r3, 1; setp.lt.u32 %p1, %r1, 5; @!%p1 mov.u32 %r3, 2; {STORE}", out)
    assert out.tolist() == [1] * 5 + [2] * 27


def test_scopes_of_inline_assembly(run, aligned):
    out = aligned(32, np.uint32)
    scope = (
        "{ .reg .pred P; .reg .b32 t; mov.u32 t, %s; setp.ne.u32 P, t, 0;"
        " @P bra SKIP; mov.u32 t, 9; SKIP: add.u32 %%r3, %%r3, t; }"
    )
    run(f"mov.u32 %r3, 0; {scope % 5} {scope % 0} {STORE}", out)
    assert (out == 14).all()


@pytest.mark.parametrize(
    ("mode", "b", "c", "source"),
    [
        ("bfly", 1, 31, lambda i: i ^ 1),
        ("up", 4, 0, lambda i: i - 4 if i >= 4 else i),
        ("down", 4, 31, lambda i: i + 4 if i + 4 < 32 else i),
        ("idx", 3, 31, lambda i: 3),
        ("idx", 3, 0x181F, lambda i: i // 8 * 8 + 3),  # within groups of 8
        ("down", 4, 0x181F, lambda i: i + 4 if i % 8 < 4 else i),
    ],
)
def test_shuffle(run, aligned, mode, b, c, source):
    out = aligned(64, np.uint32)
    run(f"shfl.sync.{mode}.b32 %r3|%p1, %r1, {b}, {c}, -1; {STORE}", out, block=(64, 1, 1))
    assert out.tolist() == [source(i % 32) + i // 32 * 32 for i in range(64)]


def test_shuffle_waits_for_the_lanes_of_its_mask(run, aligned):
    """Half of the warp takes the long way; the exchange after it still sees every lane."""
    out = aligned(32, np.uint32)
    body = "mov.u32 %r2, %r1; setp.lt.u32 %p1, %r1, 16; @%p1 bra WAIT; add.u32 %r2, %r2, 100; bra WAIT2;"
    both = "shfl.sync.bfly.b32 %r3, %r2, 16, 31, -1;"
    run(f"{body} WAIT: bra JOIN; WAIT2: bra JOIN; JOIN: {both} {STORE}", out)
    assert out.tolist() == [(i ^ 16) + (100 if i ^ 16 >= 16 else 0) for i in range(32)]


def test_vote_and_block_of_a_broken_warp(run, aligned):
    out = aligned(40, np.uint32)
    body = "setp.ne.u32 %p1, %r1, 33; vote.sync.ballot.b32 %r3, %p1, -1;"
    run(f"{body} {STORE}", out, block=(40, 1, 1))
    assert (out[:32] == 0xFFFFFFFF).all()
    assert (out[32:] == 0xFD).all()


SHARED = """
.shared .align 4 .b8 s[1024]; mov.u32 %r4, s; shl.b32 %r5, %r1, 2; add.u32 %r6, %r4, %r5; st.shared.u32 [%r6], %r1;
{sync}
xor.b32 %r7, %r1, 255; shl.b32 %r7, %r7, 2; add.u32 %r7, %r4, %r7; ld.shared.u32 %r3, [%r7];
mov.u32 %r8, %ctaid.x; mad.lo.u32 %r1, %r8, 256, %r1;
"""


def test_barrier_orders_shared_memory(run, aligned):
    out = aligned(512, np.uint32)
    run(SHARED.format(sync="bar.sync 0;") + STORE, out, block=(256, 1, 1), grid=(2, 1, 1), seed=3)
    assert (out.reshape(2, 256) == np.arange(256)[::-1]).all()


def test_warps_name_their_barrier_in_one_instruction(run, aligned):
    """Warps 0 and 1 meet at barrier 1, warps 2 and 3 at barrier 2, which warp 3 reaches late."""
    out = aligned(128, np.uint32)
    half = "shr.u32 %r9, %r1, 6; add.u32 %r10, %r9, 1;"
    late = "setp.lt.u32 %p1, %r1, 96; @%p1 bra MEET; mov.u32 %r11, 0; MORE: add.u32 %r11, %r11, 1;"
    wait = "setp.lt.u32 %p2, %r11, 50; @%p2 bra MORE; MEET:"
    body = SHARED.format(sync=f"{half} {late} {wait} barrier.sync %r10, 64;")
    body = body.replace("xor.b32 %r7, %r1, 255", "xor.b32 %r7, %r1, 63").replace("mov.u32 %r8, %ctaid.x;", "")
    for seed in (None, 1, 2):
        out[:] = 0
        run(body.replace("mad.lo.u32 %r1, %r8, 256, %r1;", "") + STORE, out, block=(128, 1, 1), seed=seed)
        assert out.tolist() == [i ^ 63 for i in range(128)]


def test_missing_barrier_shows_under_random_order(run, aligned):
    out = aligned(256, np.uint32)
    for seed in range(4):
        run(SHARED.format(sync="bra NEXT; NEXT:") + STORE, out, block=(256, 1, 1), seed=seed)
        if (out == 0xFFFFFFFF).any():
            return
    pytest.fail("poisoned shared memory was never read")


def test_atomics_count_every_thread(run, aligned):
    out = aligned(1, np.uint32)
    run("red.global.add.u32 [%d1], 1; atom.global.add.u32 %r3, [%d1], 2; ret;", out, grid=(5, 1, 1))
    assert out[0] == 5 * 32 * 3


def test_threads_that_spin_on_another_warp_end(run, aligned):
    """Warp 1 releases warp 0, which spins at a lower program counter."""
    out = aligned(1, np.uint32)
    body = "setp.ge.u32 %p1, %r1, 32; @%p1 bra FREE; SPIN: ld.volatile.global.u32 %r2, [%d1];"
    run(
        f"{body} setp.eq.u32 %p2, %r2, 0; @%p2 bra SPIN; ret; FREE: st.global.u32 [%d1], 1; ret;",
        out,
        block=(64, 1, 1),
    )
    assert out[0] == 1


def test_deadlock_is_named(run, aligned):
    body = "setp.lt.u32 %p1, %r1, 32; @%p1 bra ONE; bar.sync 1; ret; ONE: bar.sync 2, 64; ret;"
    with pytest.raises(Deadlock, match=r"kernel k: deadlock, 64 threads .*block \(0, 0, 0\) thread \(0, 0, 0\)"):
        run(body, aligned(1, np.uint32), block=(64, 1, 1))


def test_endless_loop_ends(run, aligned):
    with pytest.raises(StepLimit, match="kernel k: not done after 1000 steps"):
        run("AGAIN: bra AGAIN;", aligned(1, np.uint32), max_steps=1000)


def test_access_past_the_end_is_named(run, aligned):
    """Four blocks of 32 threads write 70 elements: thread 6 of block (0, 1) is the first beyond."""
    number = "mov.u32 %r4, %ctaid.x; mov.u32 %r2, %ctaid.y; mad.lo.u32 %r2, %r2, 2, %r4;"
    body = f"{number} mad.lo.u32 %r1, %r2, 32, %r1; mov.u32 %r3, 1; {STORE}"
    where = r"kernel k, block \(0, 1, 0\) thread \(6, 0, 0\): st.global.u32 .*outside every tensor"
    with pytest.raises(MemoryFault, match=where):
        run(body, aligned(70, np.uint32), grid=(2, 2, 1))


def test_misaligned_access_is_named(run, aligned):
    body = "add.s64 %d2, %d1, 2; ld.global.v2.u32 {%r2, %r3}, [%d2]; ret;"
    with pytest.raises(MemoryFault, match=r"thread \(0, 0, 0\): ld.global.v2.u32 .*misaligned for 8 bytes"):
        run(body, aligned(8, np.uint32))


def test_shared_memory_has_an_end(run, aligned):
    body = ".shared .align 4 .b8 s[64]; mov.u32 %r2, s; st.shared.u32 [%r2+64], %r1; ret;"
    with pytest.raises(MemoryFault, match="shared memory"):
        run(body, aligned(1, np.uint32))


def test_unknown_instruction_only_fails_when_reached(run, aligned):
    out = aligned(32, np.uint32)
    run(f"mov.u32 %r3, 1; bra END; frobnicate.f32 %f1, %f2; END: {STORE}", out)
    assert (out == 1).all()
    with pytest.raises(UnsupportedInstruction, match=r"^needs a GPU: frobnicate\.f32 in kernel k$"):
        run("frobnicate.f32 %f1, %f2; ret;", out)


def test_unknown_modifier_is_refused(run, aligned):
    with pytest.raises(UnsupportedInstruction, match=r"add\.cc\.u32"):
        run("add.cc.u32 %r2, %r3, 1; ret;", aligned(1, np.uint32))


def test_warpgroup_product_is_refused_before_anything_runs(run, aligned):
    out = aligned(32, np.uint32)
    with pytest.raises(UnsupportedInstruction, match=r"^needs a GPU: wgmma\.mma_async\.sync in kernel k$"):
        run(f"mov.u32 %r3, 1; {STORE} wgmma.fence.sync.aligned; wgmma.mma_async.sync; ret;", out)
    assert (out == 0).all()


def test_parser_reads_what_compilers_write():
    text = """
    .version 9.0
    .global .align 4 .u32 table[2] = {1, 0xFF};
    .extern .shared .align 16 .b8 dyn[];
    .visible .entry k(.param .align 8 .b8 p[24], .param .u64 .ptr .global .align 16 q)
    .maxntid 64, 1, 1
    {
      .reg .b32 %r<3>;  // comment; with a semicolon
      .loc 1 2 3
      $L__1: ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%r1, %r2}, [table+4];
      @%p1 bra $L__1;
    }
    """
    kernel = parse(text)["k"]
    assert kernel.params == {"p": 24, "q": 8}
    assert kernel.variables["table"].initial == bytes([1, 0, 0, 0, 255, 0, 0, 0])
    assert [item.opcode for item in kernel.code] == ["ld", "bra"]
    assert kernel.labels == {"$L__1": 0}
