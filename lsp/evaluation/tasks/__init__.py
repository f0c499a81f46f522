"""Tasks for lm-evaluation-harness: GSM8K, Sudoku, Countdown, HumanEval, MBPP, and the embedded model's own four.

`FOLDER` is what lm-eval calls an include path. A task is a YAML file; `judges` says which answers are right. All of
them are zero-shot. Their prompts are this project's own: no paper publishes those of its tables.
"""

from pathlib import Path

FOLDER = Path(__file__).parent

__all__ = ["FOLDER"]
