"""`sordino data`: which named datasets there are, where they are stored, and getting them."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sordino import data
from sordino.cli.arguments import Json, show

app = typer.Typer(
    no_args_is_help=True,
    help="Named datasets, looked for in $SORDINO_DATA, then in the user's cache folder, then fetched.",
)

Name = Annotated[str, typer.Argument(help="A dataset's name; `sordino data list` shows them.", show_default=False)]


def _state(entry: dict[str, Any]) -> str:
    if entry["path"] is None:
        return "not here"
    if entry["package"]:
        return f"in the package {entry['package']}"
    return "here" if entry["complete"] else f"partial: {entry['here']}"


@app.command("list")
def list_datasets(as_json: Json = False) -> None:
    """All named datasets, their published sizes, and what of them is on this machine."""
    entries = [data.description_of(name) for name in data.names()]
    if as_json:
        show({"datasets": entries}, as_json, str)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "what", "train / test", "on this machine"):
        table.add_column(heading, no_wrap=heading in ("name", "train / test"), overflow="fold")
    for entry in entries:
        sizes = f"{entry['n_train']:,} / {entry['n_test']:,}"
        table.add_row(entry["name"], entry["what"], sizes, _state(entry))
    Console().print(table)


@app.command()
def get(name: Name, as_json: Json = False) -> None:
    """Fetch a dataset if it is not here, check it against its checksums, and print its folder."""
    with Console(stderr=True).status(f"getting {name}"):
        folder = data.fetch(name)
        facts = data.load(name).facts
    sizes = {"n_train": facts.n_train, "n_test": facts.n_test}
    answer = {"name": name, "path": str(folder), "complete": facts.complete, **sizes, "note": facts.note}
    show(answer, as_json, lambda: str(folder))
    if not (facts.complete or as_json):
        typer.echo(f"{name} is not complete: {facts.note}", err=True)


@app.command()
def path(name: Name, as_json: Json = False) -> None:
    """Print the folder of a dataset that is on this machine."""
    entry = data.description_of(name)
    if entry["path"] is None:
        raise data.DataError(f"{name} is not on this machine; run `sordino data get {name}`")
    show({key: entry[key] for key in ("name", "path", "complete")}, as_json, lambda: entry["path"])
