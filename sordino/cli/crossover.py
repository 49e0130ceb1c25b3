"""`sordino crossover`: which model is better at which ε, measured free on other rows or on the private table."""

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
    from sordino.budget import Ledger
    from sordino.runs import TableLedger
    from sordino.selection import MeasuredAccuracies, ProxyRows, TableModel


def crossover(
    file: File,
    epsilon: Epsilon,
    delta: Delta,
    target: Target = None,
    schema: SchemaFile = None,
    public: PublicFile = None,
    private: Annotated[
        bool, typer.Option("--private", help="Measure on the private table itself: spends the budget.")
    ] = False,
    models: Annotated[
        str | None,
        typer.Option(
            help="Two or more of logistic (also -numeric: numeric columns only, -binned: numbers in bins), linear "
            "(DP-SGD; also -numeric), network-small, network-large. Default: all logistic and network-small.",
            show_default=False,
        ),
    ] = None,
    points: Annotated[int, typer.Option(min=2, max=50, help="Number of ε to measure at.")] = 5,
    repeats: Annotated[int, typer.Option(min=2, max=1000, help="Trainings at each ε, for the intervals.")] = 5,
    confidence: Annotated[float, typer.Option(help="Confidence of the crossover's interval.")] = 0.95,
    ledger: LedgerFile = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for figure, measurements and ledger; an unfinished one is resumed."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the ε below which a simpler model is the better choice (free, unless --private)."""
    from sordino.budget import check_delta_against_n
    from sordino.data import number_set_aside, source_fingerprint
    from sordino.runs import TableLedger, spending
    from sordino.selection import classes_of, epsilon_grid, measure_on_proxy, models_named, usual_models

    if not 0 < confidence < 1:
        raise typer.BadParameter(f"--confidence must lie strictly between 0 and 1, not {confidence:g}")
    if ledger is not None and not private:
        raise typer.BadParameter("--ledger goes with --private: without it nothing is spent")
    grid = epsilon_grid(epsilon, points)
    table = table_file(file, target, schema, public)
    chosen = usual_models(table.schema) if models is None else models_named(models)
    check_delta_against_n(delta, table.n)
    classes_of(table.schema)
    spent: dict[str, Any] = {"spent": False, "epsilon": 0.0, "delta": delta, "accountant": None}
    if private:
        if out is None:
            raise typer.BadParameter("--private needs --out FOLDER, where the ledger and the trials are kept")
        account = TableLedger(file, source_fingerprint(file), epsilon, delta, ledger, out, schema)
        measured, opened = _privately(table, chosen, public, account, out, points, repeats)
        spent = {"spent": True, **spending(opened)}
    else:
        n = table.n - number_set_aside(table.n)  # as many as train where it is done privately
        with progress_of("on proxy rows") as show:
            measured = measure_on_proxy(
                chosen, table.schema, proxy_rows(table, public, n), n, grid, delta, repeats, show
            )
    report = measured.report(chosen, table.schema, epsilon, confidence)
    answer = {"n": table.n, "target_epsilon": epsilon, **spent, **report}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        measured.draw(out / "crossover.png", f"n = {table.n:,}, δ = {delta:g}", confidence)
        (out / "crossover.json").write_text(json.dumps(answer, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    typer.echo(json.dumps(answer, ensure_ascii=False) if as_json else _in_words(answer))


def _privately(
    table: TableFile,
    models: tuple["TableModel", ...],
    public: Path | None,
    account: "TableLedger",
    out: Path,
    points: int,
    repeats: int,
) -> tuple["MeasuredAccuracies", "Ledger"]:
    from sordino.data import set_aside
    from sordino.runs import Run
    from sordino.selection import CrossoverPlan, measure_on_proxy, measure_privately

    parts = set_aside(table.read())
    n, kept = len(parts[0]), out / "measurement.json"
    if kept.exists():
        plan, rates = CrossoverPlan.read(kept, table.schema, account.delta)
        plan.check_same(models, points, repeats, n, out)
    else:
        plan = CrossoverPlan.calibrated(models, table.schema, n, points, repeats, account.now(), account.epsilon)
        proxy = proxy_rows(table, public, n)
        with progress_of("learning rates, on proxy rows") as show:
            found = measure_on_proxy(models, table.schema, proxy, n, plan.epsilons, account.delta, 2, show)
        rates = found.learning_rates
        account.bind(out)
        # Before the ledger is told: a plan that was announced and then lost would still count.
        plan.keep(kept, table.schema, rates)
    ledger = account.opened(out, plan.announcements())
    with progress_of("on the private table") as show:
        measured = measure_privately(plan, table.schema, parts, rates, ledger, out, show)
    tuning = "models were compared on the private records: counted above; learning rates on other rows: free"
    Run(out).write_statement(ledger.statement(unit="one row of the table", tuning=tuning))
    return measured, ledger


def proxy_rows(table: TableFile, public: Path | None, n: int) -> "ProxyRows":
    """Rows to try things out on in place of n private ones: public, or synthetic."""
    from sordino.data import read_table
    from sordino.selection import PublicRows, SyntheticRows

    return SyntheticRows(table.schema, n) if public is None else PublicRows(read_table(public, table.schema), n)


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
    return "\n".join([*lines, "ε of the whole workflow: 0. Of the private table only the number of rows was used."])


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
