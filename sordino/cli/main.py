"""The command line: parse, call, print. Bad input ends in one line on standard error and exit code 2."""

import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

import sordino
from sordino import budget, runs, training
from sordino.cli import advise, audit, crossover, data, plan, reproduce, search, select, train, tune
from sordino.cli.arguments import Json, show

_INTERRUPTED = 130  # what typer makes of Ctrl-C
_TOGETHER = ("train", "resume")
"""What several processes do together; each would do all else by itself, and charge for it."""

app = typer.Typer(
    name="sordino",
    help="Train models on private data under differential privacy, and prove what was spent.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(data.app, name="data")
for _command in (
    plan.plan,
    train.train,
    train.resume,
    train.predict,
    select.select,
    audit.audit,
    advise.advise,
    crossover.crossover,
    reproduce.reproduce,
    search.search,
    tune.tune,
):
    app.command()(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sordino {sordino.__version__}")
        raise typer.Exit


@app.callback()
def main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train models on private data under differential privacy, and prove what was spent."""
    asked = context.invoked_subcommand
    if asked not in _TOGETHER and "RANK" in os.environ and training.are_several():
        raise ValueError(f"`sordino {asked}` runs in one process: start it without torchrun")


@app.command("ledger")
def ledger(
    run: Annotated[Path, typer.Argument(help="A run's folder, or a ledger file.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Show what a run has spent: the privacy statement of its ledger."""
    statement = runs.statement_of(run)
    show(statement, as_json, lambda: budget.as_text(statement).rstrip("\n"))


def run(arguments: list[str] | None = None) -> None:
    """Entry point of the `sordino` command."""
    logging.getLogger("absl").setLevel(logging.ERROR)  # dp_accounting reports Rényi orders it leaves out
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = _show_warning
            code = app(args=arguments, standalone_mode=False) or 0
        if code == _INTERRUPTED:
            _fail(f"stopped; {_how_to_resume(sys.argv[1:] if arguments is None else arguments)}", code)
        sys.exit(code)
    except TyperException as problem:
        _fail(problem.format_message())
    except OSError as problem:
        _fail(f"{problem.filename}: {problem.strerror}" if problem.filename and problem.strerror else str(problem))
    except (ValueError, ArithmeticError) as problem:
        _fail(str(problem))
    except MemoryError:
        state = _how_to_resume(sys.argv[1:] if arguments is None else arguments)
        _fail(f"memory is exhausted: use fewer columns, categories or records; {state}")


def _how_to_resume(arguments: list[str]) -> str:
    match arguments:
        case ["train" | "resume", *_]:
            return "a run that was training is safe: `sordino resume RUN` continues it"
        case ["predict" | "plan" | "ledger" | "data", *_]:
            return "nothing was spent"
        case ["advise" | "crossover", *rest] if not {"--carry-out", "--private"} & set(rest):
            return "nothing was spent"
        case ["search" | "tune" | "advise" | "crossover" as command, *_]:
            return f"what was paid for is kept: rerun `sordino {command}` with --out and its folder to resume"
        case _:
            return "what was paid for is in the ledger"


def _fail(message: str, code: int = 2) -> None:
    if not message.strip():  # no arguments were given, and help is on the screen already
        sys.exit(code)
    typer.echo(f"sordino: {' '.join(message.split())}", err=True)
    sys.exit(code)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    typer.echo(f"sordino: warning: {message}", err=True)
