"""Damaged copies are damaged where they say."""

from __future__ import annotations

from tests.virtual_gpu.mutate import (
    ASYNCHRONOUS,
    BARRIER,
    with_weaker_waits,
    with_wrong_descriptors,
    without_each,
    without_each_barrier,
)

TEXT = """
\tst.shared.b32 [%r1], %r2;
\tadd.s32 %r1, %r1, 1;
\t@%p2 mbarrier.init.shared::cta.b64 [%r1], 1;
\tbar.sync \t0;
\tcp.async.wait_group \t2;
\t@!complete bra.uni again;
\twgmma.wait_group.sync.aligned 0;
\tor.b64 %rd1, %rd2, 4611686293305294848;
\tadd.s64 %rd1, %rd2, -9223371899415822336;
"""


def test_each_instruction_is_removed_and_its_neighbours_named() -> None:
    mutants = list(without_each(TEXT, f"{BARRIER}|{ASYNCHRONOUS}"))
    assert [mutant.context for mutant in mutants] == [
        ("st.shared", "mbarrier.init", "bar.sync"),
        ("mbarrier.init", "bar.sync", "cp.async.wait_group"),
        ("bar.sync", "cp.async.wait_group", "@!complete bra"),
        ("cp.async.wait_group", "@!complete bra", "wgmma.wait_group"),
        ("@!complete bra", "wgmma.wait_group", ""),
    ]
    lines = TEXT.splitlines()
    for mutant in mutants:
        assert mutant.text.splitlines() == lines[: mutant.line - 1] + lines[mutant.line :]
    assert list(without_each_barrier(TEXT)) == [mutants[1].text]


def test_each_wait_is_weakened() -> None:
    weaker = ["cp.async.wait_group \t3;", "wgmma.wait_group.sync.aligned 1;"]
    for mutant, wait in zip(with_weaker_waits(TEXT), weaker, strict=True):
        assert TEXT.splitlines()[mutant.line - 1].strip() != wait
        assert mutant.text.splitlines()[mutant.line - 1].strip() == wait


def test_each_descriptor_is_moved_and_swizzled_otherwise() -> None:
    first, other = 4611686293305294848, -9223371899415822336
    wrong = [other + 2, (other ^ 3 << 62) % (1 << 64) - (1 << 64), first + 2, first ^ 3 << 62]
    for text, number in zip(with_wrong_descriptors(TEXT), wrong, strict=True):
        assert str(number) in text
        assert (str(first) in text) + (str(other) in text) == 1
