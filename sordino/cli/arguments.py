"""Arguments that commands share, and how they print.

Typer reads options off a command's own signature: each command lists those it takes, and the lists look alike.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="The private table (.csv, .parquet), or the name of a dataset.", show_default=False
    ),
]
RunFolder = Annotated[Path, typer.Argument(help="A run's folder.", show_default=False)]
Target = Annotated[str | None, typer.Option(help="The column to predict.", show_default=False)]
SchemaFile = Annotated[
    Path | None,
    typer.Option("--schema", help="JSON: the public domain of each column. Default: inferred from --public."),
]
PublicFile = Annotated[Path | None, typer.Option("--public", help="A public table with the same columns.")]
Epsilon = Annotated[float, typer.Option(help="ε of the whole workflow: never exceeded.", show_default=False)]
Delta = Annotated[float, typer.Option(help="δ of the whole workflow, below 1/n.", show_default=False)]
LedgerFile = Annotated[
    Path | None, typer.Option("--ledger", help="Spend from this ledger, or from that of this folder.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object; messages go to standard error.")]
MeanTrials = Annotated[
    float, typer.Option(help="Mean of the random, secret number of trials (mgrs: in each generation).")
]
Epochs = Annotated[float, typer.Option(help="Epochs of each training.")]
Batch = Annotated[int | None, typer.Option(help="Expected batch size; default: a twentieth of the records, or 256.")]
ScoreEpsilon = Annotated[
    float | None, typer.Option(help="ε of each score's Laplace noise (the paper: 0.02); default: as the budget allows.")
]
Workers = Annotated[int, typer.Option(min=1, help="Processes that trials run in.")]
RayAddress = Annotated[str | None, typer.Option("--ray", help="Address of a Ray cluster for the trials, or local.")]
PublicSource = Annotated[str | None, typer.Option(help="Search on this public FILE instead, free; then train on FILE.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Fix all randomness: for experiments only, voids the privacy.")]
SearchFolder = Annotated[Path | None, typer.Option(help="Folder of the search; an unfinished search in it is resumed.")]


def show(answer: dict[str, Any], as_json: bool, in_words: Callable[[], str]) -> None:
    """The answer on standard output, as one JSON object or in words."""
    typer.echo(json.dumps(answer, ensure_ascii=False) if as_json else in_words())
