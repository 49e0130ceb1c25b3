"""`sordino reproduce`: the papers' tables and figures, theirs beside ours."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from sordino.cli.arguments import Json, show


def reproduce(
    paper: Annotated[
        str,
        typer.Argument(
            help="better-features, sampling-rates, weight-distributions, privacy-aware or imagenet-scale.",
            show_default=False,
        ),
    ],
    item: Annotated[
        str, typer.Argument(help="A table or figure, as in table-1 or figure-3; list: which there are.")
    ] = "list",
    seeds: Annotated[int | None, typer.Option(min=1, help="Repeats of each training.", show_default=False)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Try it out on a few records, in seconds.")] = False,
    full: Annotated[bool, typer.Option("--full", help="As much as the paper did: for a large machine.")] = False,
    more: Annotated[
        Path | None,
        typer.Option(help="An .npz with further training examples x and labels y (figure-4).", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("results"),
    as_json: Json = False,
) -> None:
    """Reproduce a table or figure of a paper; trainings that are in the store are not repeated."""
    from sordino.papers import Experiment, TrialStore, in_words, items_of, reproduce

    if item == "list":
        typer.echo("\n".join(items_of(paper)))
        return
    if quick and full:
        raise typer.BadParameter("give --quick or --full, not both")
    folder = out / "quick" if quick else out
    store = TrialStore(records=None if quick else folder / paper)
    with Console(stderr=True).status(item) as status:
        record = reproduce(paper, item, Experiment(seeds, full, quick, more, status.update, store), folder)
    show(asdict(record), as_json, lambda: in_words(record))
    typer.echo(f"record: {folder / paper / item}.json", err=True)
