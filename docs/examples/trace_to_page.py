"""Record what two schedulers did in every pass, and write one page to step through: `python trace_to_page.py [OUT]`."""

import sys
import tempfile
from pathlib import Path

import lsp
from lsp.tracing import html

out = Path(sys.argv[1] if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "trace.html")
model, prompt = lsp.load("tiny"), "Use 3, 5 and 7 to make 15.\n"
schedulers = [lsp.LongestStablePrefix(), lsp.Threshold(0.9)]
traces = [lsp.trace(model, prompt, max_new_tokens=32, scheduler=scheduler)[0] for scheduler in schedulers]
for trace in traces:
    print(f"{trace.name} ({', '.join(trace.notes)}): {trace.passes} passes, {trace.positions} positions")
    for step in trace.steps[:3]:
        print(f"  pass {step.index + 1}: {step.reason}")
html.write(out, traces, title="Prefix or scattered")
print("wrote", out)
