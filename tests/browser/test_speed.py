"""A long trace is stepped through as smoothly as a short one. Run by ``make test-browser``."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import quantiles

import pytest

pytest.importorskip("transformers")

import lsp
from lsp.tracing import html
from lsp.tracing.records import PassRecord
from tests.browser import chromium
from tests.browser.looks import problems

pytestmark = pytest.mark.browser

TOKENS, PASSES, FRAME = 1024, 128, 1000 / 60
# For every step: what script, style and layout take, and how long after the frame before it is shown.
STEPS = """(async () => {
  const out = [];
  const frame = () => new Promise(requestAnimationFrame);
  let before = await frame();
  for (let i = 0; i < 40; i += 1) {
    const begin = performance.now();
    document.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
    document.body.getBoundingClientRect();
    const work = performance.now() - begin;
    const now = await frame();
    out.push([work, now - before]);
    before = now;
  }
  return out;
})()"""


def long_trace(seed: int) -> lsp.Trace:
    """A trace of as many tokens, of which every pass commits a few, and in which a tenth of all values change."""
    rng = random.Random(seed)
    open_, committed = list(range(1, TOKENS + 1)), [0] * TOKENS
    margins = [round(rng.expovariate(0.2), 2) for _ in open_]
    steps = []
    for index in range(PASSES):
        chosen = sorted(rng.sample(open_, TOKENS // PASSES))
        for at in rng.sample(range(TOKENS), TOKENS // 10):
            margins[at] = round(rng.expovariate(0.2), 2)
        values = [margins[position - 1] for position in open_]
        tokens = [2 + position % 50 for position in open_]
        shared = {"frozen": 1, "begin": 1, "end": TOKENS + 1, "reason": "", "rule": None}
        confidence = [round(value / 50, 4) for value in values]
        written = [2 + position % 50 for position in chosen]
        steps.append(
            PassRecord(
                index=index,
                masks=[*open_],
                masks_in_pass=[*open_],
                tokens=tokens,
                margins=values,
                confidence=confidence,
                chosen=chosen,
                written=written,
                **shared,
            )
        )
        for position in chosen:
            committed[position - 1] = index
        open_ = [position for position in open_ if position not in set(chosen)]
    return lsp.Trace(
        scheduler="Scattered()",
        options={},
        name=f"Scattered {seed}",
        notes=[],
        measure="margin",
        level=4.0,
        islands=None,
        prompt=[1],
        tokens=[2 + position % 50 for position in range(1, TOKENS + 1)],
        text=None,
        finished=False,
        passes=PASSES,
        positions=PASSES * TOKENS,
        committed_in=committed,
        max_new_tokens=TOKENS,
        pieces={token: f" w{token}" for token in range(60)},
        delimiters=[],
        stops=[0],
        steps=steps,
    )


def test_a_step_through_two_long_traces_fits_into_a_frame(browser: chromium.Chromium, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    html.write(page, [long_trace(1), long_trace(2)])
    browser.size(1600, 900)
    browser.open(page)
    browser("Accessibility.disable")  # other tests read its tree, for which every step would pay
    browser("Performance.enable", timeDomain="threadTicks")
    rounds = []
    for _ in range(3):
        before = busy(browser)
        found = browser.run(STEPS)
        rounds.append((1000 * (busy(browser) - before) / len(found), found))
    browser("Accessibility.enable")
    whole, found = min(rounds)
    work, frames = ([pair[i] for pair in found] for i in (0, 1))
    late = sum(frame > 1.5 * FRAME for frame in frames)
    print(f"\na step: script, style and layout {middle(work):.1f} ms (median), all with paint {whole:.1f} ms (mean)")
    print(f"frames: {middle(frames):.1f} ms (median), {late} of {len(frames)} above {1.5 * FRAME:.0f} ms")
    # What the page needs; when a frame is shown depends on other work of the machine too.
    assert middle(work) < FRAME
    assert whole < FRAME
    assert problems(browser) == []


def busy(browser: chromium.Chromium) -> float:
    """For how many seconds the thread of the page has worked so far: script, style, layout and paint."""
    metrics = {one["name"]: one["value"] for one in browser("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"])


def middle(values: list[float]) -> float:
    return quantiles(values, n=2)[0]
