"""Arguments that the commands for private tables share."""

from pathlib import Path
from typing import Annotated

import typer

File = Annotated[
    str,
    typer.Argument(help="The private table (.csv, .parquet), or the name of one, such as adult.", show_default=False),
]
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
