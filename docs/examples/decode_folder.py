"""Decode prompts with a checkpoint: `python decode_folder.py [FOLDER or hub name]`; without one, the embedded model."""

import sys

import lsp

model = lsp.load(sys.argv[1] if len(sys.argv) > 1 else "tiny")
prompts = ["Use 3, 5 and 7 to make 15.\n", "Use 2, 9 and 14 to make 21.\n"]
for prompt, answer in zip(prompts, lsp.generate(model, prompts, max_new_tokens=32), strict=True):
    print(prompt.strip(), "->", answer.text)
    print(f"  {answer.passes} passes over {answer.positions} positions for {len(answer.tokens)} tokens")

for piece in lsp.stream(model, prompts[0], max_new_tokens=32):  # a committed prefix is final, so text is too
    print(piece, end="", flush=True)
print()
