"""`sordino crossover`: which model is better at which ε, measured free on other rows or on the private table."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from sordino.cli.arguments import Delta, Epsilon, File, Json, LedgerFile, PublicFile, SchemaFile, Target, show


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
    from sordino.data import source_fingerprint
    from sordino.runs import TableLedger, spending
    from sordino.selection import (
        PrivateTable,
        classes_of,
        epsilon_grid,
        measure_on_proxy,
        measure_within_budget,
        models_named,
        usual_models,
    )

    if not 0 < confidence < 1:
        raise typer.BadParameter(f"--confidence must lie strictly between 0 and 1, not {confidence:g}")
    if ledger is not None and not private:
        raise typer.BadParameter("--ledger goes with --private: without it nothing is spent")
    grid = epsilon_grid(epsilon, points)
    table = PrivateTable.open(file, target, schema, public)
    chosen = usual_models(table.schema) if models is None else models_named(models)
    check_delta_against_n(delta, table.n)
    classes_of(table.schema)
    spent: dict[str, Any] = {"spent": False, "epsilon": 0.0, "delta": delta, "accountant": None}
    with progress_of("measuring") as progress:
        if private:
            if out is None:
                raise typer.BadParameter("--private needs --out FOLDER, where the ledger and the trials are kept")
            account = TableLedger(file, source_fingerprint(file), epsilon, delta, ledger, out, schema, "crossover")
            measured, opened = measure_within_budget(table, chosen, account, out, points, repeats, progress)
            spent = {"spent": True, **spending(opened)}
        else:
            proxy = table.proxy_rows()
            measured = measure_on_proxy(chosen, table.schema, proxy, table.trained, grid, delta, repeats, progress)
    report = measured.report(chosen, table.schema, epsilon, confidence)
    answer = {"n": table.n, "target_epsilon": epsilon, **spent, **report}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        measured.draw(out / "crossover.png", f"n = {table.n:,}, δ = {delta:g}", confidence)
        (out / "crossover.json").write_text(json.dumps(answer, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    show(answer, as_json, lambda: _in_words(answer))


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
    beyond = "; this ε is beyond those measured" if answer["best_beyond_measured"] else ""
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
