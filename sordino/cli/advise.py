"""`sordino advise`: the flowchart of privacy-aware learning, the numbers behind each answer, and on demand the deed."""

import hashlib
import json
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.crossover import progress_of, stand_in
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
    from sordino.selection import Answer, Situation, Steps

_POINTS, _REPEATS = 5, 4
_MOST_NAMED = 12
_HALVINGS = 8


def advise(
    file: File,
    epsilon: Epsilon,
    delta: Delta,
    target: Target = None,
    schema: SchemaFile = None,
    public: PublicFile = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also measure models on --public or made-up rows: free, takes minutes.")
    ] = False,
    carry_out: Annotated[
        bool, typer.Option("--carry-out", help="Do what is advised: select, train and score. This spends the budget.")
    ] = False,
    ledger: LedgerFile = None,
    out: Annotated[
        Path | None, typer.Option(help="Of --carry-out: folder for model and ledger; an unfinished one goes on.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say which columns, which model and which settings suit a private dataset at this ε, and why (free)."""
    from sordino.data import source_fingerprint
    from sordino.runs import TableLedger
    from sordino.selection import advise as answers_to

    if carry_out != (out is not None):
        raise typer.BadParameter("--carry-out and --out FOLDER go together: the folder keeps the model and the ledger")
    if ledger is not None and not carry_out:
        raise typer.BadParameter("--ledger goes with --carry-out: advice alone spends nothing")
    images = _image_facts(file)
    if images is not None:
        if measure or carry_out or public is not None or schema is not None:
            raise typer.BadParameter("--measure, --carry-out, --public and --schema are for tables")
        situation = _situation(images, images.n_train, epsilon, delta)
        _print({"answers": answers_to(situation)}, situation, as_json)
        return
    table = table_file(file, target, schema, public)
    account = None if out is None else TableLedger(file, source_fingerprint(file), epsilon, delta, ledger, out, schema)
    facts = table.schema.facts(table.n, table.name)
    situation = _situation(facts, table.n, epsilon, delta, 0 if public is None else _records_in(public, table))
    if measure:
        situation = _measured(situation, table, public)
    found: dict[str, Any] = {}
    if account is not None and out is not None:
        situation, found = _carried_out(situation, table, public, account, out)
    _print({"answers": answers_to(situation), **found}, situation, as_json)


def _image_facts(file: str) -> Any:
    """Of a named dataset without columns."""
    from sordino.data import is_named, load

    if not is_named(file):
        return None
    facts = load(file).facts
    return facts if facts.columns is None else None


def _situation(facts: Any, n: int, epsilon: float, delta: float, public_records: int = 0) -> "Situation":
    from sordino.selection import Situation

    return Situation(facts, n, epsilon, delta, public_records)


def _records_in(public: Path, table: TableFile) -> int:
    from sordino.data import read_table

    return len(read_table(public, table.schema))


def _measured(situation: "Situation", table: TableFile, public: Path | None) -> "Situation":
    """With the best model at this ε as measured on a stand-in."""
    from sordino.selection import crossovers, curve, default_grid, rehearsed, usual_models, winning_ranges

    models = usual_models(table.schema)
    n, grid = situation.trained, default_grid(situation.epsilon, _POINTS)
    with progress_of("on stand-ins") as show:
        measured = rehearsed(models, table.schema, stand_in(table, public, n), n, grid, situation.delta, _REPEATS, show)
    ranges = winning_ranges([curve(name, grid, values) for name, values in measured.accuracies.items()])
    pairs = crossovers(grid, measured.accuracies)
    numbers = {
        "measured_on": measured.where,
        "ranges": [vars(each) for each in ranges],
        "crossovers": [{"simple": a, "complex": b, **found.to_json()} for (a, b), found in pairs.items()],
        "learning_rates": {name: list(each) for name, each in measured.learning_rates.items()},
    }
    best = next(each.model for each in ranges if situation.epsilon <= each.high)
    return replace(situation, best_measured=best, measured=numbers)


def _model_in(answers: list["Answer"]) -> str:
    return str(next(answer.numbers["model"] for answer in answers if "model" in answer.numbers))


def _carried_out(
    situation: "Situation", table: TableFile, public: Path | None, account: "TableLedger", out: Path
) -> tuple["Situation", dict[str, Any]]:
    """The situation with the ε that the ledger leaves for it, and what came of the advice."""
    from sordino.runs import Run, spending
    from sordino.selection import ADVICE, Steps, carry_out

    kept = out / ADVICE
    private = table.read()
    others = None if public is None else hashlib.sha256(public.read_bytes()).hexdigest()
    if kept.exists():
        left, model, known = _read(kept)
        if known != others:
            raise ValueError(
                f"{out} was begun with another --public file, or without one: give the same, or another --out"
            )
    else:
        left, model = _affordable(situation, table, account.now())
        account.bind(out)
        # Before the ledger knows of it: what was announced and then forgotten would count all the same.
        Run(out).write_json(kept.name, {"epsilon": left, "model": model, "public": others})
    situation = _at(situation, left)
    steps = Steps.advised(situation, table.schema, model)
    ledger = account.opened(out, steps.announcements())
    result = carry_out(steps, private, stand_in(table, public, situation.trained), ledger, out)
    Run(out).write_statement(ledger.statement(unit="one row of the table", tuning=_tuning(steps)))
    return situation, {"result": {"model": model, **result.to_json()}, **spending(ledger), "run": str(out)}


def _tuning(steps: "Steps") -> str:
    """For the statement; the model and its learning rate come from public facts, stand-ins and what was selected."""
    if steps.selects_privately:
        return "features were selected on the private records, which is counted above; nothing else was chosen on them"
    chosen = "features were selected on rows taken to be public; " * steps.selects_freely
    return f"{chosen}nothing was chosen on the private records besides what is listed above"


def _affordable(situation: "Situation", table: TableFile, ledger: "Ledger") -> tuple[float, str]:
    """The largest ε, to a hundredth or so, whose advice the ledger has room for, and the model of that advice."""
    from sordino.budget import BudgetExceeded, Planned, calibration
    from sordino.runs import check_budget
    from sordino.selection import Steps
    from sordino.selection import advise as answers_to

    low, high, found = 0.0, situation.epsilon, None
    aim = high
    for _ in range(_HALVINGS):
        asked = _at(situation, aim)
        model = _model_in(answers_to(asked))
        try:
            steps = Steps.advised(asked, table.schema, model)
            check_budget(ledger, [Planned(*item) for item in steps.announcements()])
        except BudgetExceeded:
            high = aim
        else:
            low, found = aim, (aim, model)
            if aim == situation.epsilon:
                break
        aim = (low + high) / 2
    if found is None:
        raise calibration.OutOfReach(f"the ledger leaves too little of ε={situation.epsilon:g} to carry out anything")
    return found


def _at(situation: "Situation", epsilon: float) -> "Situation":
    """The same at another ε."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # δ and n are as they were, and were warned of then
        return replace(situation, epsilon=epsilon)


def _read(path: Path) -> tuple[float, str, str | None]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return float(document["epsilon"]), str(document["model"]), document["public"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"{path} cannot be read: it is damaged or not a file of sordino") from None


def _print(found: dict[str, Any], situation: "Situation", as_json: bool) -> None:
    answers: list[Answer] = found["answers"]
    answer = {
        "n": situation.n,
        "public_records": situation.public_records,
        "target_epsilon": situation.epsilon,
        "delta": situation.delta,
        "epsilon": 0.0,
        **found,
        "answers": [asdict(each) | {"numbers": _finite(each.numbers)} for each in answers],
    }
    typer.echo(json.dumps(answer, ensure_ascii=False, allow_nan=False) if as_json else _in_words(answer))


def _finite(value: Any) -> Any:
    """As JSON has it: what has no bounds in words."""
    from sordino.budget import finite

    match value:
        case dict():
            return {name: _finite(each) for name, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
        case float():
            return finite(value)
    return value


def _in_words(answer: dict[str, Any]) -> str:
    from sordino.runs import spending_in_words

    lines = [f"n={answer['n']:,}, ε={answer['target_epsilon']:g}, δ={answer['delta']:g}", ""]
    for number, each in enumerate(answer["answers"], 1):
        price = f"costs ε={each['cost']:.3g} on its own" if each["cost"] else "free"
        lines += [f"{number}. {each['question']} [{price}]", f"   {each['answer']}", ""]
    result = answer.get("result")
    if result is None:
        rows = " and rows" * bool(answer["public_records"])
        return "\n".join([*lines, f"ε of the whole workflow: 0. This advice is from public facts{rows} alone."])
    named = result["features"][:_MOST_NAMED]
    features = ", ".join([*named, "…"] if len(named) < len(result["features"]) else named)
    lines += [
        f"Done: {result['model']} on {len(result['features'])} features ({features}).",
        f"Features by {result['why_these']}",
        f"accuracy {100 * result['accuracy']:.2f} % (noise ±{100 * result['noise_of_score']:.2g} %)",
        spending_in_words(answer),
        f"model and statement: {answer['run']}; ledger: {answer['ledger']}",
    ]
    return "\n".join(lines)
