"""`sordino advise`: the flowchart of privacy-aware learning with its numbers, and on request its execution."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.arguments import Delta, Epsilon, File, Json, LedgerFile, PublicFile, SchemaFile, Target, show
from sordino.cli.crossover import progress_of

if TYPE_CHECKING:
    from sordino.selection import AdviceRequest

_MOST_NAMED = 12


def advise(
    file: File,
    epsilon: Epsilon,
    delta: Delta,
    target: Target = None,
    schema: SchemaFile = None,
    public: PublicFile = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also measure models on --public or synthetic rows: free, takes minutes.")
    ] = False,
    carry_out: Annotated[
        bool, typer.Option("--carry-out", help="Do what is advised: select, train and score. Spends the budget.")
    ] = False,
    ledger: LedgerFile = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for --carry-out's model and ledger; an unfinished one is resumed.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Advise on columns, model and settings for a private dataset at this ε, with reasons (free)."""
    from sordino.data import read_table, source_fingerprint
    from sordino.runs import TableLedger, spending
    from sordino.selection import AdviceRequest, PrivateTable, carry_out_advice, measured_request

    if carry_out != (out is not None):
        raise typer.BadParameter("--carry-out and --out FOLDER go together: the folder keeps the model and the ledger")
    if ledger is not None and not carry_out:
        raise typer.BadParameter("--ledger goes with --carry-out: advice alone spends nothing")
    images = _image_facts(file)
    if images is not None:
        if measure or carry_out or public is not None or schema is not None:
            raise typer.BadParameter("--measure, --carry-out, --public and --schema are for tables")
        _print(AdviceRequest(images, images.n_train, epsilon, delta), {}, as_json)
        return
    table = PrivateTable.open(file, target, schema, public)
    account = (
        None
        if out is None
        else TableLedger(file, source_fingerprint(file), epsilon, delta, ledger, out, schema, "advice")
    )
    public_records = 0 if public is None else len(read_table(public, table.schema))
    request = AdviceRequest(table.schema.facts(table.n, table.name), table.n, epsilon, delta, public_records)
    if measure:
        with progress_of("on proxy rows") as progress:
            request = measured_request(request, table.schema, table.proxy_rows(), progress)
    found: dict[str, Any] = {}
    if account is not None and out is not None:
        request, result, spent = carry_out_advice(request, table, account, out)
        found = {"result": result, **spending(spent), "run": str(out)}
    _print(request, found, as_json)


def _image_facts(file: str) -> Any:
    """The facts of a named dataset without columns; None for tables."""
    from sordino.data import is_named, load

    if not is_named(file):
        return None
    facts = load(file).facts
    return facts if facts.columns is None else None


def _print(request: "AdviceRequest", found: dict[str, Any], as_json: bool) -> None:
    from sordino.selection import advise as answers_to

    answer = {
        "n": request.n,
        "public_records": request.public_records,
        "target_epsilon": request.epsilon,
        "delta": request.delta,
        "epsilon": 0.0,
        **found,
        "answers": [asdict(each) | {"numbers": _finite(each.numbers)} for each in answers_to(request)],
    }
    show(answer, as_json, lambda: _in_words(answer))


def _finite(value: Any) -> Any:
    """JSON has no infinity: as a word."""
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
