"""Every kind of missing order must be found, and correct orders must pass."""

from __future__ import annotations

import re

import pytest
import torch

from tests.virtual_gpu import RaceError
from tests.virtual_gpu_tests.snippets import run

# Thread t stores to word t of shared memory and reads word t ^ 32, which the other warp wrote.
EXCHANGE = """
shl.b32 %r1, %r0, 2;
add.s32 %r2, %r1, 1024;
xor.b32 %r3, %r1, 128;
add.s32 %r4, %r3, 1024;
st.shared.b32 [%r2], %r0;
bar.sync 0;
ld.shared.b32 %r5, [%r4];
bar.sync 0;
st.shared.b32 [%r2], %r5;
"""


def test_shared_memory_with_barriers():
    run(EXCHANGE, shared=256)


@pytest.mark.parametrize(("which", "reason"), [(0, "another warp wrote"), (1, "another warp read")], ids=["raw", "war"])
def test_shared_memory_without_a_barrier(which, reason):
    parts = EXCHANGE.split("bar.sync 0;\n")
    parts[which : which + 2] = [parts[which] + parts[which + 1]]
    body = "bar.sync 0;\n".join(parts)
    run(body, shared=256, races=False)
    with pytest.raises(RaceError, match=reason):
        run(body, shared=256)


def test_two_warps_store_to_one_shared_word():
    body = """
    shr.u32 %r1, %r0, 5;
    and.b32 %r2, %r0, 31;
    shl.b32 %r3, %r2, 2;
    add.s32 %r4, %r3, 1024;
    """
    with pytest.raises(RaceError, match="different values"):
        run(body + "st.shared.b32 [%r4], %r1;", shared=128)
    turns = "setp.eq.u32 %p1, %r1, 0;\n@%p1 st.shared.b32 [%r4], %r1;\n@!%p1 st.shared.b32 [%r4], %r1;"
    with pytest.raises(RaceError, match="two warps store"):
        run(body + turns, shared=128)
    run(body + turns.replace("\n@!", "\nbar.sync 0;\n@!"), shared=128)


def test_copy_over_what_another_warp_still_reads():
    body = EXCHANGE.rsplit("bar.sync 0;", 1)[0]
    copy = "mad.wide.u32 %rd8, %r0, 4, %rd0;\ncp.async.ca.shared.global [%r2], [%rd8], 4;\n"
    with pytest.raises(RaceError, match="another warp read"):
        run(body + copy, torch.zeros(64), shared=256)
    run(body + "bar.sync 0;" + copy, torch.zeros(64), shared=256)


COPY = """
shl.b32 %r1, %r0, 2;
add.s32 %r2, %r1, 1024;
mad.wide.u32 %rd8, %r0, 4, %rd0;
cp.async.ca.shared.global [%r2], [%rd8], 4;
cp.async.commit_group;
cp.async.wait_group 0;
{store}
"""


@pytest.mark.parametrize("store", ["st.shared.b32 [%r2], %r0;", "cp.async.ca.shared.global [%r2], [%rd8], 4;"])
def test_store_over_what_a_copy_may_still_write(store):
    body = COPY.format(store=store)
    run(body, torch.zeros(64), shared=256)
    for wait in ("", "cp.async.wait_group 1;"):
        with pytest.raises(RaceError, match=r"store over a cp\.async destination"):
            run(body.replace("cp.async.wait_group 0;", wait), torch.zeros(64), shared=256)


def test_copies_of_warps_that_have_diverged_are_their_own():
    """The second warp commits in two steps, so a wait for all groups but one leaves it the copy of the second step."""
    body = """
    shl.b32 %r1, %r0, 2;
    add.s32 %r2, %r1, 1024;
    mad.wide.u32 %rd8, %r0, 4, %rd0;
    setp.ge.u32 %p1, %r0, 32;
    cp.async.ca.shared.global [%r2], [%rd8], 4;
    @%p1 cp.async.commit_group;
    @%p1 cp.async.ca.shared.global [%r2+256], [%rd8], 4;
    cp.async.commit_group;
    @%p1 cp.async.wait_group 1;
    @!%p1 cp.async.wait_group 0;
    ld.shared.b32 %r3, [%r2];
    mad.wide.u32 %rd9, %r0, 4, %rd1;
    st.global.b32 [%rd9], %r3;
    """
    source, out = torch.arange(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    run(body, source, out, shared=512)
    assert torch.equal(out, source)
    second_step = f"{body}@%p1 ld.shared.b32 %r3, [%r2+256];"
    for early in (second_step, body.replace("@!%p1 cp.async.wait_group 0;", "")):
        with pytest.raises(RaceError, match="before its wait_group"):
            run(early, source, out, shared=512)


NEIGHBOUR = """
mad.wide.u32 %rd8, %r0, 4, %rd0;
xor.b32 %r1, %r0, 1;
mad.wide.u32 %rd9, %r1, 4, %rd0;
{first}
bar.sync 0;
{second}
"""
LOAD, STORE = "ld.global.b32 %r2, [%rd9];", "st.global.b32 [%rd8], %r0;"


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        pytest.param(STORE, LOAD, "written by another thread", id="read after write"),
        pytest.param(LOAD, STORE, "read by another thread", id="write after read"),
        pytest.param(STORE, "st.global.b32 [%rd9], %r0;", "written by another thread", id="write after write"),
    ],
)
def test_global_memory_within_a_cta(first, second, reason):
    body = NEIGHBOUR.format(first=first, second=second)
    run(body, torch.zeros(64))
    with pytest.raises(RaceError, match=reason):
        run(body.replace("bar.sync 0;", ""), torch.zeros(64))


def test_a_thread_is_ordered_with_itself():
    own = "mad.wide.u32 %rd8, %r0, 4, %rd0;\n" + f"{STORE}\nld.global.b32 %r2, [%rd8];\n{STORE}"
    run(own, torch.zeros(64))


def test_two_ctas_store_to_one_word():
    body = "mad.wide.u32 %rd8, %r0, 4, %rd0;\n" + STORE
    run(body, torch.zeros(64))
    with pytest.raises(RaceError, match="written by another program"):
        run(body, torch.zeros(64), grid=(2,))


def test_a_cta_overwrites_what_another_reads():
    body = """
    mov.u32 %r1, %ctaid.x;
    setp.eq.u32 %p1, %r1, 0;
    setp.eq.u32 %p2, %r0, 0;
    and.pred %p3, %p1, %p2;
    @!%p1 ld.global.b32 %r2, [%rd0];
    @%p3 st.global.b32 [%rd0], %r0;
    """
    reasons = set()
    for seed in range(8):
        with pytest.raises(RaceError) as raised:
            run(body, torch.zeros(1), grid=(2,), seed=seed)
        reasons.add(re.search(r"(read|written) by another program", str(raised.value))[1])
    assert reasons == {"read", "written"}  # both orders of the CTAs were tried


# Thread 5 stores, thread 0 takes a ticket; the last CTA reads all partial results with thread 9.
TICKET = """
mov.u32 %r1, %ctaid.x;
mad.wide.u32 %rd8, %r1, 4, %rd0;
setp.eq.u32 %p5, %r0, 5;
@%p5 st.global.b32 [%rd8], %r1;
bar.sync 0;
setp.eq.u32 %p0, %r0, 0;
mov.b32 %r2, -1;
@%p0 atom.global.gpu.acq_rel.add.u32 %r2, [%rd1], 1;
@%p0 st.shared.b32 [global_smem], %r2;
bar.sync 0;
ld.shared.b32 %r3, [global_smem];
setp.ne.u32 %p2, %r3, 3;
@%p2 ret;
setp.eq.u32 %p9, %r0, 9;
@%p9 ld.global.cg.v4.b32 {%r10, %r11, %r12, %r13}, [%rd0];
mov.b32 %r20, 0;
@%p0 st.global.b32 [%rd1], %r20;
"""
TICKET_DEFECTS = [
    pytest.param("acq_rel", "relaxed", id="relaxed ticket"),
    pytest.param("acq_rel", "acquire", id="ticket that does not release"),
    pytest.param("acq_rel", "release", id="ticket that does not acquire"),
    pytest.param("bar.sync 0;\nsetp.eq.u32 %p0", "setp.eq.u32 %p0", id="no barrier before the ticket"),
    pytest.param("setp.ne.u32 %p2, %r3, 3;", "setp.ne.u32 %p2, %r3, 2;", id="one arrival too early"),
    pytest.param("@%p2 ret;", "", id="nobody waits"),
    pytest.param(
        "bar.sync 0;\nld.shared.b32 %r3, [global_smem];\nsetp.ne.u32 %p2, %r3, 3;",
        "setp.ne.u32 %p2, %r1, 3;",
        id="no barrier after the ticket",
    ),
]


def ticket(text: str, seed: int) -> None:
    partial, tickets = torch.zeros(4, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    run(text, partial, tickets, grid=(4,), shared=16, seed=seed)
    assert partial.tolist() == [0, 1, 2, 3]
    assert tickets.item() == 0


@pytest.mark.parametrize("seed", range(5))
def test_ticket(seed):
    ticket(TICKET, seed)


@pytest.mark.parametrize(("old", "new"), TICKET_DEFECTS)
def test_ticket_defect(old, new):
    assert old in TICKET
    for seed in range(3):
        with pytest.raises(RaceError):
            ticket(TICKET.replace(old, new), seed)


def test_overwritten_ticket_orders_nothing():
    """CTA 0 resets the ticket with a plain store, so CTA 1 acquires nothing from it."""
    body = """
    setp.eq.u32 %p0, %r0, 0;
    mov.u32 %r1, %ctaid.x;
    mad.wide.u32 %rd8, %r1, 4, %rd0;
    @%p0 st.global.b32 [%rd8], %r1;
    @%p0 atom.global.gpu.acq_rel.add.u32 %r2, [%rd1], 1;
    mov.b32 %r3, 0;
    setp.eq.u32 %p1, %r1, 0;
    and.pred %p2, %p0, %p1;
    @%p2 st.global.b32 [%rd1], %r3;
    @%p0 ld.global.b32 %r4, [%rd0];
    """
    tensors = torch.zeros(2, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(RaceError):
        run(body, *tensors, grid=(2,))
    run(body.replace("@%p2 st.global.b32 [%rd1], %r3;", ""), *tensors, grid=(2,))


def test_fences_make_a_relaxed_ticket_right():
    relaxed = TICKET.replace("acq_rel", "relaxed")
    atom = next(line for line in relaxed.splitlines() if "atom." in line)
    fenced = relaxed.replace(atom, f"fence.acq_rel.gpu;\n{atom}\nfence.acq_rel.gpu;")
    ticket(fenced, 0)
    with pytest.raises(RaceError):
        ticket(fenced.replace("fence.acq_rel.gpu", "fence.acq_rel.cta"), 0)
    with pytest.raises(RaceError):
        ticket(fenced.replace("fence.acq_rel.gpu;", "", 1), 0)


def test_races_can_be_switched_off():
    text = TICKET.replace("acq_rel", "relaxed")
    tensors = torch.zeros(4, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    run(text, *tensors, grid=(4,), shared=16, races=False)
