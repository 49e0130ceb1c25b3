"""`sordino train`, `resume` and `predict`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from sordino.training import Request

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, all else beside it.")]
RunFolder = Annotated[Path, typer.Argument(help="A run's folder.", show_default=False)]


def train(
    dataset: Annotated[str, typer.Argument(help="A named dataset; see `sordino data list`.", show_default=False)],
    epsilon: Annotated[float, typer.Option(help="Target ε: never exceeded.", show_default=False)],
    delta: Annotated[float, typer.Option(help="Target δ, below 1/n.", show_default=False)],
    recipe: Annotated[
        str,
        typer.Option(
            help="best, or one of scatter-linear, scatter-cnn, cnn, cnn-small, transfer-linear, linear, "
            "weight-distributions, or of LSR's for one dataset each: lsr-m1 to -m3 (mnist), lsr-f1 to -f3 "
            "(fashion-mnist), lsr-c1 to -c3 (cifar-10)."
        ),
    ] = "best",
    seed: Annotated[
        int | None, typer.Option(help="Fix all randomness: for experiments only, it voids the privacy.")
    ] = None,
    canaries: Annotated[
        int, typer.Option(min=0, help="Synthetic records that take part, so that `sordino audit` can audit this run.")
    ] = 0,
    exact: Annotated[
        bool, typer.Option("--exact", help="Draw training's noise exactly, proof against floating-point leaks; slower.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; an unfinished run in it goes on. Default: under runs/.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a private model on a named dataset, within the budget."""
    from sordino.training import Request

    if Path(dataset).suffix.lower() in (".csv", ".parquet"):
        raise typer.BadParameter(
            f"{dataset} is a table of your own: `sordino advise --carry-out`, `sordino tune` and `sordino search` "
            "are for those"
        )
    _train(Request(dataset, recipe, epsilon, delta, seed, canaries, exact), out, as_json)


def resume(run: RunFolder, as_json: Json = False) -> None:
    """Go on with a run that was interrupted."""
    from sordino.runs import holds_account
    from sordino.selection import holds_advice, holds_search
    from sordino.training import request_of

    if holds_search(run) or holds_advice(run) or holds_account(run):
        raise typer.BadParameter(
            f"{run} is of a command for tables: repeat that with --out {run}, and it goes on (`select` begins anew, in "
            "another folder)"
        )
    _train(request_of(run), run, as_json)


def predict(
    run: RunFolder,
    file: Annotated[
        Path, typer.Argument(help="Examples: .npy, .npz, IDX, .csv, .parquet, an image or a folder of images.")
    ],
    as_json: Json = False,
) -> None:
    """Print the class of each example in a file, one a line."""
    from sordino.data import read_examples
    from sordino.selection import classify_by_advice, classify_by_search, holds_advice, holds_search
    from sordino.training import classify, request_of

    if holds_search(run):
        classes = classify_by_search(run, file)
    elif holds_advice(run):
        classes = classify_by_advice(run, file)
    else:
        request_of(run)  # a wrong folder is the likelier mistake: say it before a large file is read
        classes = classify(run, read_examples(file))
    typer.echo(
        json.dumps({"run": str(run), "predictions": classes}, ensure_ascii=False) if as_json else "\n".join(classes)
    )


def _train(request: "Request", out: Path | None, as_json: bool) -> None:
    from sordino.budget import printed
    from sordino.training import train as train_run

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[spent]}"),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=console)
    features = progress.add_task("features", total=None, spent="", visible=False)
    task = progress.add_task("training", total=None, spent="")

    def described(done: int, total: int) -> None:
        progress.start()
        progress.update(features, completed=done, total=total, spent=f"{done:,}/{total:,}", visible=True)

    def show(done: int, total: int, epsilon: float) -> None:
        progress.start()  # only now: until the first step there may be an error to show instead
        spent = f"step {done:,}/{total:,}  ε ≤ {printed(epsilon)} of {request.epsilon:g}"
        progress.update(task, completed=done, total=total, spent=spent)

    try:
        result = train_run(request, out, on_progress=show, say=console.print, on_features=described)
    finally:
        if progress.live.is_started:
            progress.stop()
    typer.echo(json.dumps(result, ensure_ascii=False) if as_json else _in_words(result))


def _in_words(result: dict[str, Any]) -> str:
    from sordino.budget import printed

    statement = (Path(result["run"]) / "statement.txt").read_text(encoding="utf-8")
    return (
        f"test accuracy {100 * result['test_accuracy']:.2f} % on {result['dataset']} "
        f"at ε={printed(result['epsilon'])}, δ={result['delta']:g} ({result['accountant']})\n\n"
        f"{statement}\nrun: {result['run']}"
    )
