"""`sordino train`, `resume` and `predict`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from sordino import budget, data, runs, training
from sordino.cli.arguments import Delta, Epsilon, Json, RunFolder, show


def _list_recipes(wanted: bool) -> None:
    if wanted:
        width = max(len(name) for name in training.RECIPES)
        typer.echo(f"{'best':{width}}  whichever is strongest for the data and the budget")
        for name, entry in training.RECIPES.items():
            typer.echo(f"{name:{width}}  {entry.what}")
        raise typer.Exit


def train(
    dataset: Annotated[
        str,
        typer.Argument(
            help="A named dataset (`sordino data list`), or a folder of images with a folder for each class.",
            show_default=False,
        ),
    ],
    epsilon: Epsilon,
    delta: Delta,
    recipe: Annotated[str, typer.Option(help="best, or the name of a recipe; --recipes lists them.")] = "best",
    seed: Annotated[
        int | None, typer.Option(help="Fix all randomness: for experiments only, it voids the privacy.")
    ] = None,
    canaries: Annotated[
        int,
        typer.Option(min=0, help="Synthetic records to train on as well, for `sordino audit`."),
    ] = 0,
    exact: Annotated[
        bool, typer.Option("--exact", help="Draw training's noise exactly, proof against floating-point leaks; slower.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; resumes an unfinished run in it. Default: under runs/.")
    ] = None,
    side: Annotated[
        int | None, typer.Option(help="Of images in files: their side in pixels. Default: what suits the recipe.")
    ] = None,
    channels: Annotated[
        int | None, typer.Option(help="Of images in files: 1 converts all to grey, 3 to colour.")
    ] = None,
    classes: Annotated[
        Path | None,
        typer.Option(help="A file with a class's name in each line, to train on a table with columns path and label."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Public weights that the recipe starts from: .safetensors, or torch's.")
    ] = None,
    as_json: Json = False,
    recipes: Annotated[
        bool, typer.Option("--recipes", callback=_list_recipes, is_eager=True, help="List the recipes and exit.")
    ] = False,
) -> None:
    """Train a private model on a named dataset or on images of your own, within the budget."""
    if Path(dataset).suffix.lower() in data.TABLES and classes is None:
        raise typer.BadParameter(
            f"{dataset} is a table of your own: `sordino advise --carry-out`, `sordino tune` and `sordino search` "
            "are for those; for one of images' paths and labels, name the classes with --classes FILE"
        )
    request = training.Request(
        dataset,
        recipe,
        epsilon,
        delta,
        seed,
        canaries,
        exact,
        side,
        channels,
        classes=None if classes is None else str(classes),
        weights=None if weights is None else str(weights),
    )
    with training.started_by_torchrun() as leads:
        if leads:
            with _Display(epsilon) as display:
                result = training.train(request, out, display.steps, display.say, display.features)
            show(result, as_json, lambda: _in_words(result))


def resume(run: RunFolder, as_json: Json = False) -> None:
    """Resume a run that was interrupted."""
    with training.started_by_torchrun() as leads:
        if leads:
            runs.check_resumable(run)
            request = training.request_of(run)
            with _Display(request.epsilon) as display:
                result = training.train(request, run, display.steps, display.say, display.features)
            show(result, as_json, lambda: _in_words(result))


def predict(
    run: RunFolder,
    file: Annotated[
        Path, typer.Argument(help="Examples: .npy, .npz, IDX, .csv, .parquet, an image or a folder of images.")
    ],
    as_json: Json = False,
) -> None:
    """Print the class of each example in a file, one a line."""
    classes = runs.predict(run, file)
    show({"run": str(run), "predictions": classes}, as_json, lambda: "\n".join(classes))


class _Display:
    """Progress on standard error; bars appear with the first step, since until then there may be an error to show."""

    def __init__(self, epsilon: float) -> None:
        self._epsilon = epsilon
        self._console = Console(stderr=True)
        text = TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[spent]}")
        self._progress = Progress(*text, TimeRemainingColumn(), console=self._console)
        self._features = self._progress.add_task("features", total=None, spent="", visible=False)
        self._training = self._progress.add_task("training", total=None, spent="")

    def __enter__(self) -> "_Display":
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress.live.is_started:
            self._progress.stop()

    def say(self, line: str) -> None:
        self._console.print(line)

    def features(self, done: int, total: int) -> None:
        self._progress.start()
        speed = None
        if self._console.is_terminal:  # a log is kept, and a speed is none that it should hold
            speed = next(task.speed for task in self._progress.tasks if task.id == self._features)
        spent = f"{done:,}/{total:,}" + (f"  {speed:,.0f}/s" if speed else "")
        self._progress.update(self._features, completed=done, total=total, spent=spent, visible=True)

    def steps(self, done: int, total: int, epsilon: float) -> None:
        self._progress.start()
        spent = f"step {done:,}/{total:,}  ε ≤ {budget.printed(epsilon)} of {self._epsilon:g}"
        self._progress.update(self._training, completed=done, total=total, spent=spent)


def _in_words(result: dict[str, Any]) -> str:
    statement = (Path(result["run"]) / "statement.txt").read_text(encoding="utf-8")
    noise = f" (noise ±{100 * result['test_accuracy_noise']:.2g})" if "test_accuracy_noise" in result else ""
    return (
        f"test accuracy {100 * result['test_accuracy']:.2f} %{noise} on {result['dataset']} "
        f"at ε={budget.printed(result['epsilon'])}, δ={result['delta']:g} ({result['accountant']})\n\n"
        f"{statement}\nrun: {result['run']}"
    )
