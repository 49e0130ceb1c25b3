"""`sordino audit`: whether the ε of a run or a recipe holds, as far as attacks and tests can tell."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sordino.audit import Audit


def audit(
    subject: Annotated[
        str, typer.Argument(metavar="RUN|RECIPE", help="A run's folder, or the name of a recipe.", show_default=False)
    ],
    runs: Annotated[int, typer.Option(help="Trials of the mechanism, half with the canary and half without.")] = 20_000,
    confidence: Annotated[float, typer.Option(help="Of the lower bound.")] = 0.95,
    epsilon: Annotated[
        float | None, typer.Option(help="Target ε of a recipe; 3 if not given.", show_default=False)
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Target δ of a recipe; 1e-5 if not given.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Attack a run's or a recipe's mechanism, and test its sampler, noise and sensitivity."""
    from sordino.audit import audit_recipe, audit_run
    from sordino.training.recipes import NAMES

    if subject in NAMES and not Path(subject).is_dir():
        budget = 3.0 if epsilon is None else epsilon, 1e-5 if delta is None else delta
        found = audit_recipe(subject, *budget, runs=runs, confidence=confidence)
    elif epsilon is not None or delta is not None:
        raise typer.BadParameter("--epsilon and --delta are for recipes: a run has its own")
    elif not Path(subject).exists():
        raise ValueError(f"there is no run folder {subject!r}, and no such recipe; recipes: {', '.join(NAMES)}")
    else:
        found = audit_run(subject, runs=runs, confidence=confidence)
    typer.echo(json.dumps(found.to_json(), ensure_ascii=False) if as_json else _in_words(found))


def _in_words(found: "Audit") -> str:
    from sordino.budget.statement import printed

    sure = f"{100 * found.confidence:g} %"
    lines = [
        f"lower bound   ε ≥ {found.lower_bound:.3f} with {sure} confidence, from {found.runs:,} trials",
        f"claimed       ε = {printed(found.claimed_epsilon)} at δ={found.delta:g}",
        f"sound         ε = {printed(found.sound_epsilon)}",
    ]
    if found.one_run_lower_bound is not None:
        bound = f"ε ≥ {found.one_run_lower_bound:.3f} with {sure} confidence, from {found.canaries:,} canaries"
        lines.append(f"this training {bound}")
    for part in found.parts:
        claimed = f"claimed {printed(part.claimed_epsilon)} at δ={part.delta:g}"
        lines.append(f"  {part.name}: ε ≥ {part.lower_bound:.3f}, {claimed}")
    failed = found.failed()
    for finding in found.findings:
        lines.append(f"  {finding.name}: {'FAILED' if finding in failed else 'passed'} ({finding.seen})")
    lines.append(f"verdict       {found.verdict}")
    if found.sound_verdict != found.verdict:
        lines.append(f"              the claimed ε is {found.verdict}, the sound ε is {found.sound_verdict}")
    return "\n".join(lines)
