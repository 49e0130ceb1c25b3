"""`sordino select`: which columns of a private table to train on, chosen within a share of the budget."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from sordino.cli.table_ledger import SELECTION, TableLedger, in_words, is_unspent, state, told

if TYPE_CHECKING:
    from sordino.budget import Ledger
    from sordino.data import Schema, Split
    from sordino.selection import Selection


_SCHEMA = "schema.json"


class Method(StrEnum):
    CFS_GREEDY = "cfs-greedy"
    CFS_GA = "cfs-ga"
    PAFS = "pafs"
    RANDOM = "random"


def select(
    file: File,
    epsilon: Epsilon,
    delta: Delta,
    target: Target = None,
    schema: SchemaFile = None,
    public: PublicFile = None,
    method: Annotated[
        Method,
        typer.Option(help="By noisy tables of all pairs of columns (cfs), by private trainings (pafs), or blindly."),
    ] = Method.CFS_GREEDY,
    size: Annotated[
        int | None, typer.Option(help="Of cfs-greedy and random: how many features. Default: until merit falls.")
    ] = None,
    share: Annotated[float, typer.Option(help="How much of what is left of ε the selection may spend.")] = 0.25,
    trials: Annotated[int, typer.Option(help="Of pafs: how many subsets may be tried.")] = 100,
    private_bounds: Annotated[
        float | None, typer.Option(help="Of cfs: ε to narrow the bounds of numbers with, before they are binned.")
    ] = None,
    ledger: LedgerFile = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the ledger and the selection.")] = None,
    as_json: Json = False,
) -> None:
    """Choose the features of a private table that are worth their noise, and say what the choice cost."""
    from sordino.budget import check_delta_against_n
    from sordino.data import Schema, set_aside
    from sordino.runs import Run

    if size is not None and method in (Method.CFS_GA, Method.PAFS):
        raise typer.BadParameter(f"--size goes with cfs-greedy and random: {method.value} finds its own")
    if method is Method.RANDOM and size is None:
        raise typer.BadParameter("a random subset needs --size")
    if private_bounds is not None and method in (Method.PAFS, Method.RANDOM):
        raise typer.BadParameter("--private-bounds goes with cfs-greedy and cfs-ga")
    if private_bounds is not None and not private_bounds > 0:
        raise typer.BadParameter(f"--private-bounds is the ε of the bounds, above 0, not {private_bounds:g}")
    table = table_file(file, target, schema, public)
    check_delta_against_n(delta, table.n)
    _check(method, table.schema, size, share, trials)
    account = TableLedger(file, epsilon, delta, ledger, out, schema)
    _check_room(method, table, account.now(), share, trials, private_bounds)
    parts = set_aside(table.read())
    # Last, so that what is refused leaves no folder behind.
    run = Run.at(out) if out is not None and is_unspent(out) else Run.create(out, "select")
    spent = account.opened(run.folder)
    chosen = _chosen(method, table.schema, parts, spent, size, share, trials, private_bounds)
    answer = _answer(method, chosen, spent, run.folder)
    run.write_json(_SCHEMA, Schema(chosen.columns, table.schema.target).to_json())
    run.write_json(SELECTION, answer)
    how = chosen.words if method is Method.RANDOM else "On the private records: counted above."
    state(spent, run.folder, f"features were chosen by {method.value}. {how}")
    typer.echo(json.dumps(answer, ensure_ascii=False) if as_json else _in_words(answer))


def _check(method: Method, schema: "Schema", size: int | None, share: float, trials: int) -> None:
    from sordino.selection import check_size, check_trials

    if not 0 < share <= 1:
        raise typer.BadParameter(f"--share lies above 0 and at most at 1, not {share:g}")
    check_size(schema, size)
    if method is Method.PAFS:
        check_trials(schema, trials)


def _check_room(
    method: Method, table: TableFile, ledger: "Ledger", share: float, trials: int, private_bounds: float | None
) -> None:
    """Plan on the ledger as it stands, so that what does not fit is refused before there is a folder."""
    from sordino.budget import Composed
    from sordino.data import number_set_aside
    from sordino.mechanisms import bounds_event
    from sordino.selection import Attributes, LogisticTrials, goal, planned_tables

    columns, attributes = table.schema.columns, Attributes(table.schema)
    if method is Method.PAFS:
        n = table.n - number_set_aside(table.n)
        LogisticTrials.calibrated(trials, n, len(columns), len(attributes.names), ledger, goal(ledger, share))
    elif method is not Method.RANDOM:
        numbers = sum(column.bounds is not None for column in columns)
        before = bounds_event(numbers, private_bounds) if private_bounds is not None and numbers else Composed(())
        planned_tables(attributes, ledger, goal(ledger, share), before)


def _chosen(
    method: Method,
    schema: "Schema",
    parts: tuple["Split", "Split"],
    ledger: "Ledger",
    size: int | None,
    share: float,
    trials: int,
    private_bounds: float | None,
) -> "Selection":
    import numpy as np

    from sordino.selection import Attributes, Selection, goal, random_subset, select_by_cfs, select_by_pafs

    if method is Method.RANDOM:
        attributes = Attributes(schema)
        mask = random_subset(len(attributes.names), size or 0, np.random.default_rng())
        return Selection.of(attributes, mask, "Drawn blindly: no record was looked at.")
    if method is Method.PAFS:
        return select_by_pafs(schema, parts, ledger, goal(ledger, share), trials)
    genetic = method is Method.CFS_GA
    within = goal(ledger, share)
    return select_by_cfs(schema, parts[0], ledger, within, genetic=genetic, size=size, bounds_epsilon=private_bounds)


def _answer(method: Method, chosen: "Selection", ledger: "Ledger", folder: Path) -> dict[str, Any]:
    from sordino.budget import Composed

    target = ledger.terms.target_epsilon or 0.0
    # As the next command will be priced: by the filter, since what it does is chosen after this.
    spent = ledger.epsilon_if(Composed(()))
    return {
        "method": method.value,
        "features": list(chosen.names),
        "columns": [column.name for column in chosen.columns],
        "schema": str((folder / _SCHEMA).resolve()),
        "of_features": len(chosen.mask),
        "mask": chosen.mask.astype(int).tolist(),
        "merit": chosen.merit,
        "score": None if chosen.score is None else min(1.0, max(0.0, chosen.score)),
        "trials": chosen.trials,
        "words": chosen.words,
        **told(ledger),
        "target_epsilon": target,
        "remaining": max(0.0, target - spent),
    }


def _in_words(answer: dict[str, Any]) -> str:
    named = "\n".join(f"  {place:3}. {name}" for place, name in enumerate(answer["features"], start=1))
    lines = [f"{len(answer['features'])} of {answer['of_features']} features, by {answer['method']}:", named, ""]
    if answer["merit"] is not None:
        lines.append(f"merit {answer['merit']:.4f}, by the noisy tables")
    if answer["score"] is not None:
        lines.append(f"validation accuracy {100 * answer['score']:.1f} %, with noise, of the best of those tried")
    lines += [answer["words"], ""]
    left = f"left of the target {answer['target_epsilon']:g} for what is chosen from here on: {answer['remaining']:.4g}"
    ends = [f"their columns, to go on with: --schema {answer['schema']} --ledger {answer['ledger']}"]
    return "\n".join([*lines, f"{in_words(answer)}; {left}", *ends])
