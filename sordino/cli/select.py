"""`sordino select`: which columns of a private table to train on, chosen within a share of the budget."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.arguments import Delta, Epsilon, File, Json, LedgerFile, PublicFile, SchemaFile, Target, show

if TYPE_CHECKING:
    from sordino.budget import Ledger
    from sordino.selection import Selection, SelectionMethod

_SCHEMA = "schema.json"


class SelectionMethodName(StrEnum):
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
        SelectionMethodName,
        typer.Option(help="By noisy tables of all pairs of columns (cfs), private trainings (pafs), or at random."),
    ] = SelectionMethodName.CFS_GREEDY,
    size: Annotated[
        int | None, typer.Option(help="Number of features, for cfs-greedy and random. Default: until merit falls.")
    ] = None,
    share: Annotated[float, typer.Option(help="Share of the remaining ε that the selection may spend.")] = 0.25,
    trials: Annotated[int, typer.Option(help="Subsets that pafs may try.")] = 100,
    private_bounds: Annotated[
        float | None, typer.Option(help="ε to narrow the bounds of numeric columns with, for cfs.")
    ] = None,
    ledger: LedgerFile = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the ledger and the selection.")] = None,
    as_json: Json = False,
) -> None:
    """Choose the features of a private table that are worth their noise."""
    from sordino.budget import check_delta_against_n
    from sordino.data import Schema, set_aside, source_fingerprint
    from sordino.runs import SELECTION, Run, TableLedger, is_unspent
    from sordino.selection import CfsSelection, PafsSelection, PrivateTable, RandomSelection, selection_target

    if size is not None and method in (SelectionMethodName.CFS_GA, SelectionMethodName.PAFS):
        raise typer.BadParameter(f"--size goes with cfs-greedy and random: {method.value} finds its own")
    if method is SelectionMethodName.RANDOM and size is None:
        raise typer.BadParameter("a random subset needs --size")
    if private_bounds is not None and method in (SelectionMethodName.PAFS, SelectionMethodName.RANDOM):
        raise typer.BadParameter("--private-bounds goes with cfs-greedy and cfs-ga")
    if private_bounds is not None and not private_bounds > 0:
        raise typer.BadParameter(f"--private-bounds is the ε of the bounds, above 0, not {private_bounds:g}")
    if not 0 < share <= 1:
        raise typer.BadParameter(f"--share must be above 0 and at most 1, not {share:g}")
    chosen_by: SelectionMethod
    if method is SelectionMethodName.PAFS:
        chosen_by = PafsSelection(trials)
    elif method is SelectionMethodName.RANDOM:
        chosen_by = RandomSelection(size or 0)
    else:
        chosen_by = CfsSelection(method is SelectionMethodName.CFS_GA, size, private_bounds)
    table = PrivateTable.open(file, target, schema, public)
    check_delta_against_n(delta, table.n)
    account = TableLedger(file, source_fingerprint(file), epsilon, delta, ledger, out, schema, "selection")
    now = account.now()
    # Planned on the ledger as it is, so that what does not fit is refused before there is a folder.
    chosen_by.plan(table.schema, table.trained, now, selection_target(now, share))
    train, validation = set_aside(table.read())
    run = Run.at(out) if out is not None and is_unspent(out) else Run.create(out, "select")
    spent = account.opened(run.folder)
    chosen = chosen_by.select(table.schema, train, validation, spent, selection_target(spent, share))
    answer = _answer(method, chosen, spent, run.folder)
    run.write_json(_SCHEMA, Schema(chosen.columns, table.schema.target).to_json())
    run.write_json(SELECTION, answer)
    how = chosen.words if method is SelectionMethodName.RANDOM else "On the private records: counted above."
    tuning = f"features were chosen by {method.value}. {how}"
    run.write_statement(spent.statement(unit="one row of the table", tuning=tuning))
    show(answer, as_json, lambda: _in_words(answer))


def _answer(method: SelectionMethodName, chosen: "Selection", ledger: "Ledger", folder: Path) -> dict[str, Any]:
    from sordino.budget import Composed
    from sordino.runs import spending

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
        **spending(ledger),
        "target_epsilon": target,
        "remaining": max(0.0, target - spent),
    }


def _in_words(answer: dict[str, Any]) -> str:
    from sordino.runs import spending_in_words

    named = "\n".join(f"  {place:3}. {name}" for place, name in enumerate(answer["features"], start=1))
    lines = [f"{len(answer['features'])} of {answer['of_features']} features, by {answer['method']}:", named, ""]
    if answer["merit"] is not None:
        lines.append(f"merit {answer['merit']:.4f}, by the noisy tables")
    if answer["score"] is not None:
        lines.append(f"validation accuracy {100 * answer['score']:.1f} %, with noise, of the best of those tried")
    lines += [answer["words"], ""]
    left = f"remaining budget of the target {answer['target_epsilon']:g}: {answer['remaining']:.4g}"
    ends = [f"to use their columns next: --schema {answer['schema']} --ledger {answer['ledger']}"]
    return "\n".join([*lines, f"{spending_in_words(answer)}; {left}", *ends])
