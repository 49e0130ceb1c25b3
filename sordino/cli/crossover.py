"""`sordino crossover`: which model is the better one at which ε, measured free of charge or on the private table."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from sordino.cli.table_arguments import (
    Delta,
    Epsilon,
    File,
    Json,
    LedgerFile,
    PublicFile,
    SchemaFile,
    TableFile,
    Target,
    table_file,
)

if TYPE_CHECKING:
    from sordino.runs import TableLedger
    from sordino.selection import Measured, StandIn, TableModel


def crossover(
    file: File,
    epsilon: Epsilon,
    delta: Delta,
    target: Target = None,
    schema: SchemaFile = None,
    public: PublicFile = None,
    private: Annotated[
        bool, typer.Option("--private", help="Measure on the private table itself: this spends the budget.")
    ] = False,
    models: Annotated[
        str | None,
        typer.Option(
            help="Two or more of logistic (also -numeric: words dropped, -binned: numbers in bins), linear (DP-SGD; "
            "also -numeric), network-small, network-large. Default: the three logistic ones and network-small.",
            show_default=False,
        ),
    ] = None,
    points: Annotated[int, typer.Option(min=2, max=50, help="At how many ε.")] = 5,
    repeats: Annotated[int, typer.Option(min=2, max=1000, help="Trainings at each ε, for the intervals.")] = 5,
    confidence: Annotated[float, typer.Option(help="Of the crossover's interval.")] = 0.95,
    ledger: LedgerFile = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for figure, measurements and ledger; an unfinished one goes on.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the ε below which a simpler model is the better choice (free, unless --private)."""
    from sordino.budget import check_delta_against_n
    from sordino.data import number_set_aside, source_fingerprint
    from sordino.runs import TableLedger
    from sordino.selection import classes_of, default_grid, models_named, rehearsed, usual_models

    if not 0 < confidence < 1:
        raise typer.BadParameter(f"--confidence must lie strictly between 0 and 1, not {confidence:g}")
    if ledger is not None and not private:
        raise typer.BadParameter("--ledger goes with --private: without it nothing is spent")
    grid = default_grid(epsilon, points)
    table = table_file(file, target, schema, public)
    chosen = usual_models(table.schema) if models is None else models_named(models)
    check_delta_against_n(delta, table.n)
    classes_of(table.schema)
    if private:
        if out is None:
            raise typer.BadParameter("--private needs --out FOLDER, where the ledger and the trials are kept")
        account = TableLedger(file, source_fingerprint(file), epsilon, delta, ledger, out, schema)
        answer = _privately(table, chosen, public, account, out, points, repeats, confidence)
    else:
        n = table.n - number_set_aside(table.n)  # as many as train where it is done privately
        with progress_of("on stand-ins") as show:
            measured = rehearsed(chosen, table.schema, stand_in(table, public, n), n, grid, delta, repeats, show)
        answer = _answer(measured, table, chosen, (epsilon, delta), confidence, None)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            _keep(answer, measured, out, confidence)
    typer.echo(json.dumps(answer, ensure_ascii=False) if as_json else _in_words(answer))


def _privately(
    table: TableFile,
    models: tuple["TableModel", ...],
    public: Path | None,
    account: "TableLedger",
    out: Path,
    points: int,
    repeats: int,
    confidence: float,
) -> dict[str, Any]:
    from sordino.data import set_aside
    from sordino.runs import Run, spending
    from sordino.selection import PrivatePlan, measured_privately, rehearsed

    parts = set_aside(table.read())
    n, budget = len(parts[0]), (account.epsilon, account.delta)
    kept, schema = out / "measurement.json", table.schema.to_json()
    if kept.exists():
        document, rates = _read(kept)
        plan = PrivatePlan.from_json(document, table.schema, account.delta)
        sizes = {name: len(each) for name, each in rates.items()}
        if plan.n != n or sizes != {model.name: len(plan.epsilons) for model in plan.models}:
            raise _unreadable(kept)
        settings = (plan.models, len(plan.epsilons), plan.repeats, document.get("schema"))
        if settings != (models, points, repeats, schema):
            raise ValueError(f"{out} holds a measurement with other settings: give the same, or another --out")
    else:
        plan = PrivatePlan.calibrated(models, table.schema, n, points, repeats, account.now(), account.epsilon)
        with progress_of("learning rates, on stand-ins") as show:
            rates = rehearsed(
                *(models, table.schema, stand_in(table, public, n), n, plan.epsilons, account.delta, 2, show)
            ).learning_rates
        account.bind(out)
        # Before the ledger knows of it: a plan that was announced and then forgotten would count all the same.
        settled = {"learning_rates": {name: list(each) for name, each in rates.items()}, "schema": schema}
        document = plan.to_json() | settled
        Run(out).write_json(kept.name, document)
    ledger = account.opened(out, plan.announcements())
    with progress_of("on the private table") as show:
        measured = measured_privately(plan, table.schema, parts, rates, ledger, out, show)
    tuning = "models were compared on the private records: counted above; learning rates come from other rows: free"
    Run(out).write_statement(ledger.statement(unit="one row of the table", tuning=tuning))
    answer = _answer(measured, table, plan.models, budget, confidence, spending(ledger))
    _keep(answer, measured, out, confidence)
    return answer


def stand_in(table: TableFile, public: Path | None, n: int) -> "StandIn":
    """Rows to try things out on in place of n private ones: public ones, or made up."""
    from sordino.data import read_table
    from sordino.selection import PlantedRows, PublicRows

    return PlantedRows(table.schema, n) if public is None else PublicRows(read_table(public, table.schema), n)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, tuple[float, ...]]]:
    """The document of a measurement, and its learning rates."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        rates = {name: tuple(map(float, each)) for name, each in document["learning_rates"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _unreadable(path) from None
    return document, rates


def _unreadable(path: Path) -> ValueError:
    return ValueError(f"{path} cannot be read: it is damaged or not a file of sordino")


def _answer(
    measured: "Measured",
    table: TableFile,
    models: tuple["TableModel", ...],
    budget: tuple[float, float],
    confidence: float,
    spent: dict[str, Any] | None,
) -> dict[str, Any]:
    from sordino.selection import crossovers, curve, winning_ranges
    from sordino.selection import in_words as crossing_in_words

    curves = [curve(name, measured.epsilons, values) for name, values in measured.accuracies.items()]
    ranges = winning_ranges(curves)
    pairs = crossovers(measured.epsilons, measured.accuracies, confidence)
    best = next((each for each in ranges if budget[0] <= each.high), ranges[-1])
    return {
        "n": table.n,
        "target_epsilon": budget[0],
        "spent": spent is not None,
        **(spent or {"epsilon": 0.0, "delta": budget[1], "accountant": None}),
        "parameters": {model.name: model.parameters(table.schema) for model in models},
        "best": best.model,
        "best_beyond_measured": budget[0] > measured.epsilons[-1],
        "clear": best.clear,
        "ranges": [vars(each) for each in ranges],
        "crossovers": [
            {"simple": simple, "complex": other, **found.to_json(), "words": crossing_in_words(found)}
            for (simple, other), found in pairs.items()
        ],
        **measured.to_json(),
    }


def _keep(answer: dict[str, Any], measured: "Measured", out: Path, confidence: float) -> None:
    from sordino.selection import crossovers, curve, draw_crossover

    curves = [curve(name, measured.epsilons, values) for name, values in measured.accuracies.items()]
    pairs = crossovers(measured.epsilons, measured.accuracies, confidence)
    draw_crossover(curves, pairs, out / "crossover.png", f"n = {answer['n']:,}, δ = {answer['delta']:g}")
    (out / "crossover.json").write_text(json.dumps(answer, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _in_words(answer: dict[str, Any]) -> str:
    from sordino.runs import spending_in_words

    lines = [f"measured on {answer['measured_on']}", ""]
    width = max(len(name) for name in answer["accuracies"])
    lines.append(f"{'mean accuracy at ε':{width + 14}} " + " ".join(f"{each:>8.3g}" for each in answer["epsilons"]))
    for name, rows in answer["accuracies"].items():
        weights = f"{answer['parameters'][name]:,} weights"
        means = " ".join(f"{100 * sum(row) / len(row):7.2f}%" for row in rows)
        lines.append(f"{name:{width}} {weights:>14} {means}")
    lines.append("")
    for each in answer["crossovers"]:
        lines.append(f"crossover {each['simple']} → {each['complex']}: {each['words']}")
    lines.append("")
    for each in answer["ranges"]:
        clear = "clearly" if each["clear"] else "not clearly (99.9 % intervals overlap)"
        lines.append(f"best from ε={each['low']:.3g} to {each['high']:.3g}: {each['model']}, {clear}")
    beyond = "; ε lies beyond what was measured" if answer["best_beyond_measured"] else ""
    lines += [f"at ε={answer['target_epsilon']:g}: {answer['best']}{beyond}", ""]
    if answer["spent"]:
        return "\n".join([*lines, spending_in_words(answer)])
    return "\n".join([*lines, "ε of the whole workflow: 0. Of the private table only its records were counted."])


@contextmanager
def progress_of(what: str) -> Iterator[Callable[[int, int], None]]:
    progress = Progress(console=Console(stderr=True), transient=True)
    task = progress.add_task(what, total=None)

    def show(done: int, total: int) -> None:
        progress.start()  # only now: until then there may be an error to show instead
        progress.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        if progress.live.is_started:
            progress.stop()
