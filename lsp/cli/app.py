"""All commands in one app. A new one is a function in a file of its own and a line at the end of this one."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from lsp.cli import compare, demo, generate, growth, info, play, trace, tune
from lsp.cli import eval as evaluation

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def show_version(asked: bool) -> None:
    if asked:
        try:
            typer.echo(f"lsp {version('lsp-kernels')}")
        except PackageNotFoundError:
            typer.echo("lsp, not installed")
        raise typer.Exit


@app.callback(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
def lsp(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where an error comes from, as LSP_DEBUG=1 does.")
    ] = False,
) -> None:
    """Decodes diffusion language models by the longest stable prefix.

    Everything runs with the small embedded model, without a download.

    \b
      lsp generate "Use 3, 5 and 7 to make 15."
      lsp generate --model GSAI-ML/LLaDA-8B-Instruct --chat "Why is the sky blue?"
      lsp trace out.html
      lsp play
      lsp compare --task arithmetic
      lsp demo

    Every command has its own help, e.g. lsp generate --help.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command(short_help="Continue prompts.")(generate.generate)
app.command(short_help="Write down every step of decoding, as a page or as JSON lines.")(trace.trace)
app.command(short_help="A page of this machine on which schedulers decode side by side.")(play.play)
app.command(short_help="The paper's tables: what every scheduler solves and costs.")(compare.compare)
app.command(short_help="Every scheduler on a grid of options: the frontier of accuracy and cost.")(tune.tune)
app.command("growth", short_help="How the cost of an answer grows with its length.")(growth.grow)
app.command("eval", short_help="Run tasks of lm-evaluation-harness.", context_settings=evaluation.PASSES_ON)(
    evaluation.evaluate
)
app.command(short_help="Solve held-out problems under several schedulers and compare them.")(demo.demo)
app.command(short_help="Backends here, the embedded model, schedulers and their settings.")(info.info)
