"""`sordino advise`: the flowchart of privacy-aware learning, the numbers behind each answer, and on demand the deed."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.crossover import progress_of
from sordino.cli.table_arguments import (
    Delta,
    Epsilon,
    File,
    Json,
    PublicFile,
    SchemaFile,
    TableFile,
    Target,
    table_file,
)

if TYPE_CHECKING:
    from sordino.data import Split
    from sordino.selection.advice import Answer
    from sordino.selection.situation import Situation
    from sordino.selection.stand_ins import StandIn

_MEASURED_MODELS = "logistic-numeric,logistic,network-small"
_POINTS, _REPEATS = 5, 4
_MOST_NAMED = 12


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
    out: Annotated[
        Path | None, typer.Option(help="Of --carry-out: folder for model and ledger; an unfinished one goes on.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say which columns, which model and which settings suit a private dataset at this ε, and why (free)."""
    from sordino.selection.advice import advise as answers_to

    if carry_out != (out is not None):
        raise typer.BadParameter("--carry-out and --out FOLDER go together: the folder keeps the model and the ledger")
    images = _image_facts(file)
    if images is not None:
        if measure or carry_out or public is not None or schema is not None:
            raise typer.BadParameter("--measure, --carry-out, --public and --schema are for tables")
        situation = _situation(images, images.n_train, epsilon, delta)
        _print({"answers": answers_to(situation)}, situation, as_json)
        return
    table = table_file(file, target, schema, public)
    rows = None if public is None else _read(public, table)
    facts = table.schema.facts(table.n, table.name)
    situation = _situation(facts, table.n, epsilon, delta, 0 if rows is None else len(rows))
    if measure:
        situation = _measured(situation, table, rows)
    answers = answers_to(situation)
    found: dict[str, Any] = {"answers": answers}
    if carry_out and out is not None:
        found |= _carried_out(situation, table, _model_in(answers), rows, out)
    _print(found, situation, as_json)


def _image_facts(file: str) -> Any:
    """Of a named dataset without columns."""
    from sordino.data import load, names

    if file not in names() or Path(file).exists():
        return None
    facts = load(file).facts
    return facts if facts.columns is None else None


def _situation(facts: Any, n: int, epsilon: float, delta: float, public_records: int = 0) -> "Situation":
    from sordino.selection.situation import Situation

    return Situation(facts, n, epsilon, delta, public_records)


def _read(path: Path, table: TableFile) -> "Split":
    from sordino.data.schema import read_table

    return read_table(path, table.schema)


def _stand_in(table: TableFile, rows: "Split | None", n: int) -> "StandIn":
    from sordino.selection.stand_ins import PlantedRows, PublicRows

    return PlantedRows(table.schema, n) if rows is None else PublicRows(rows, n)


def _measured(situation: "Situation", table: TableFile, rows: "Split | None") -> "Situation":
    """With the best model at this ε as measured on a stand-in."""
    from dataclasses import replace

    from sordino.selection.crossover import crossovers, curve, winning_ranges
    from sordino.selection.measuring import default_grid, rehearsed
    from sordino.selection.table_models import models_named

    models = models_named(_MEASURED_MODELS)
    if not any(column.bounds is not None for column in table.schema.columns):
        models = models[1:]
    n, grid = situation.trained, default_grid(situation.epsilon, _POINTS)
    with progress_of("on stand-ins") as show:
        stand_in = _stand_in(table, rows, n)
        measured = rehearsed(models, table.schema, stand_in, n, grid, situation.delta, _REPEATS, show)
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
    situation: "Situation", table: TableFile, model: str, rows: "Split | None", out: Path
) -> dict[str, Any]:
    from sordino.budget import Ledger
    from sordino.selection.carrying_out import Steps, carry_out

    steps = Steps.advised(situation, table.schema, model)
    private = table.read()
    out.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(situation.epsilon, situation.delta, path=out / "ledger.json", planned=steps.announcements())
    result = carry_out(steps, private, _stand_in(table, rows, situation.trained), ledger, out)
    spent = ledger.cost()
    return {"result": {"model": model, **result.to_json()}, "epsilon": spent.epsilon, "accountant": spent.accountant}


def _print(found: dict[str, Any], situation: "Situation", as_json: bool) -> None:
    answers: list[Answer] = found["answers"]
    answer = {
        "n": situation.n,
        "target_epsilon": situation.epsilon,
        "delta": situation.delta,
        "epsilon": 0.0,
        **found,
        "answers": [asdict(each) for each in answers],
    }
    typer.echo(json.dumps(answer, ensure_ascii=False, allow_nan=False) if as_json else _in_words(answer))


def _in_words(answer: dict[str, Any]) -> str:
    from sordino.budget.statement import printed

    lines = [f"n={answer['n']:,}, ε={answer['target_epsilon']:g}, δ={answer['delta']:g}", ""]
    for number, each in enumerate(answer["answers"], 1):
        price = f"costs ε={each['cost']:.3g} on its own" if each["cost"] else "free"
        lines += [f"{number}. {each['question']} [{price}]", f"   {each['answer']}", ""]
    result = answer.get("result")
    if result is None:
        return "\n".join([*lines, "ε of the whole workflow: 0. This advice is from public facts alone."])
    named = result["features"][:_MOST_NAMED]
    features = ", ".join([*named, "…"] if len(named) < len(result["features"]) else named)
    lines += [
        f"Done: {result['model']} on {len(result['features'])} features ({features}).",
        f"Features by {result['why_these']}",
        f"accuracy {100 * result['accuracy']:.2f} % (noise ±{100 * result['noise_of_score']:.2g} %)",
        f"ε of the whole workflow: {printed(answer['epsilon'])} at δ={answer['delta']:g} ({answer['accountant']})",
    ]
    return "\n".join(lines)
