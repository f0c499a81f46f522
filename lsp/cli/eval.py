"""``lsp eval``: the command line of lm-evaluation-harness with the model "lsp"."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Annotated, Any

import typer

from lsp.cli import options as o
from lsp.evaluation.likelihood import MC_NUM
from lsp.evaluation.tasks import FOLDER
from lsp.extras import needed_by

PASSES_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""What typer must allow, so that options of lm-eval reach it."""


@o.decodes
def evaluate(
    how: o.Decoding,
    context: typer.Context,
    tasks: Annotated[
        list[str],
        typer.Option(
            metavar="NAME,…",
            help="Tasks of lm-eval, and those of this package: lsp_gsm8k, lsp_sudoku, lsp_countdown, lsp_humaneval, "
            "lsp_mbpp, lsp_tiny_arithmetic, lsp_tiny_sudoku, lsp_tiny_countdown, lsp_tiny_code, lsp_tiny_traces.",
        ),
    ],
    batch_size: Annotated[
        int, typer.Option("--batch-size", "--batch_size", metavar="N", min=1, help="Documents decoded at a time.")
    ] = 8,
    mc_num: Annotated[int, typer.Option(metavar="N", min=1, help="Draws for a likelihood.")] = MC_NUM,
    check_greedy: Annotated[
        bool, typer.Option(help="Whether tasks of likelihoods also decode each continuation token by token.")
    ] = True,
) -> None:
    """Runs tasks of lm-evaluation-harness, and writes down what every document cost. Needs the extra eval.

    All other options go to lm-eval as they are: --limit, --num_fewshot, --output_path, --log_samples, --gen_kwargs,
    --metadata, --include_path, --confirm_run_unsafe_code and so on; lm-eval run --help explains them. --max-new-tokens
    replaces what the tasks say, --chat is lm-eval's --apply_chat_template, --stop adds to the stops of the tasks.

    \b
      lsp eval --tasks lsp_tiny_code --limit 20
      lsp eval --model GSAI-ML/LLaDA-8B-Instruct --device cuda --chat --tasks lsp_gsm8k --output_path out
      torchrun --nproc-per-node 2 -m lsp eval --tasks lsp_tiny_sudoku --scheduler threshold --set p=0.95
    """
    with needed_by("lsp eval"):
        from lm_eval.utils import setup_logging

        import lsp.integrations.lm_eval  # noqa: F401 - it registers the model
    o.check_device(how.device)
    model = model_arguments(how, mc_num=mc_num, check_greedy=check_greedy)
    temperature = how.arguments["temperature"]
    asked = parsed(
        *("--model", "lsp", "--model_args", json.dumps(model), "--device", how.device, "--batch_size", str(batch_size)),
        *(["--apply_chat_template"] if how.chat else []),
        *(["--gen_kwargs", "do_sample=true", f"temperature={temperature}"] if temperature else []),
        *("--tasks", *tasks, *context.args),
    )
    asked.include_path = [str(FOLDER), *([asked.include_path] if asked.include_path else [])]
    setup_logging()
    with documents_for_all():
        asked.func(asked)


@contextmanager
def documents_for_all() -> Iterator[None]:
    """lm-eval cannot run a process that gets no document of a task, and does not say so."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    try:
        yield
    except ValueError as error:
        if processes == 1 or "did not find any docs" not in str(error):
            raise
        raise ValueError(
            f"Invalid number of processes: expected at most as many as every task has documents (--limit counts), "
            f"got {processes}"
        ) from error


def model_arguments(how: o.Decoding, **more: Any) -> dict[str, Any]:
    """The arguments of the model as lm-eval takes them: plain values, which the results repeat."""
    optional = {"max_new_tokens": how.asked.max_new_tokens, "stop": how.arguments["stop"] or None, **how.load}
    return {
        "pretrained": how.model,
        "scheduler": how.name,
        "seed": how.arguments["seed"],
        "delimiters": how.arguments["delimiters"],
        **{name: value for name, value in optional.items() if value is not None},
        **{name: value for name, value in how.asked.loop.items() if name != "temperature"},
        **dict(setting.split("=", 1) for setting in how.asked.settings),
        **more,
    }


def parsed(*arguments: str) -> Any:
    """What lm-eval makes of arguments of its own. It would explain all of its options before it says what is wrong."""
    from lm_eval._cli import HarnessCLI

    before, said = sys.argv, io.StringIO()
    sys.argv = ["lm-eval", "run", *arguments]
    try:
        with redirect_stderr(said):
            return HarnessCLI().parse_args()
    except SystemExit as leaving:
        if not leaving.code:
            raise
        raise ValueError(last_line(said.getvalue().splitlines())) from None
    finally:
        sys.argv = before


def last_line(lines: Sequence[str]) -> str:
    return lines[-1] if lines else "lm-eval refused the arguments"
