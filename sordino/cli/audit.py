"""`sordino audit`: whether the ε of a run or a recipe holds, as far as attacks and tests can tell."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sordino.audit import Audit

_RUNS, _PAPER_RUNS = 20_000, 1875
_PAPER = "si-mnist"


def audit(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="RUN|RECIPE",
            help=f"A run's folder, the name of a recipe, or {_PAPER}: SI-DPSGD as its paper trains MNIST.",
            show_default=False,
        ),
    ],
    runs: Annotated[
        int | None,
        typer.Option(
            help=f"Trials of the mechanism, half with the canary and half without; {_RUNS:,} if not given, "
            f"for {_PAPER} {_PAPER_RUNS:,}.",
            show_default=False,
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the lower bound.")] = 0.95,
    epsilon: Annotated[
        float | None, typer.Option(help="Target ε of a recipe; 3 if not given.", show_default=False)
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Target δ of a recipe; 1e-5 if not given.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Attack a run's or a recipe's mechanism, and test its sampler, noise and sensitivity.

    Exit code 0: the sound ε is consistent with all that was seen. 1: it is violated, by a bound or by a test of what it
    rests on; a claimed ε that is violated while the sound one holds leaves it at 0.
    """
    import torch

    from sordino.audit import SI_MNIST, audit_recipe, audit_run
    from sordino.training.recipes import NAMES

    torch.set_num_threads(1)  # canaries are tiny: several threads would only wait for each other
    trials: dict[str, Any] = {"runs": _RUNS if runs is None else runs, "confidence": confidence}
    if subject in NAMES and not Path(subject).is_dir():
        budget = 3.0 if epsilon is None else epsilon, 1e-5 if delta is None else delta
        found = audit_recipe(subject, *budget, **trials)
    elif epsilon is not None or delta is not None:
        raise typer.BadParameter(f"--epsilon and --delta are for recipes: a run and {_PAPER} have their own")
    elif Path(subject).exists():
        found = audit_run(subject, **trials)
    elif subject == _PAPER:
        trials["runs"] = _PAPER_RUNS if runs is None else runs
        found = audit_recipe("weight-distributions", plan=SI_MNIST, **trials)
    else:
        raise ValueError(
            f"there is no run folder {subject!r}, and no such recipe; recipes: {', '.join(NAMES)}; or {_PAPER}"
        )
    typer.echo(json.dumps(found.to_json(), ensure_ascii=False, allow_nan=False) if as_json else _in_words(found))
    if found.sound_verdict != "consistent":
        raise typer.Exit(1)


def _in_words(found: "Audit") -> str:
    from sordino.budget.statement import printed

    sure = f"{100 * found.confidence:g} %"
    lines = [
        f"lower bound   ε ≥ {found.lower_bound:.3f} with {sure} confidence, from {found.runs:,} trials",
        f"sound         ε = {printed(found.sound_epsilon)} at δ={found.delta:g}",
        f"claimed       ε = {printed(found.claimed_epsilon)}",
    ]
    if found.last_weights_at_least is not None:
        lines.append(f"last weights  ε ≥ {found.last_weights_at_least:.4g} for some record, by calculation")
    if found.one_run_lower_bound is not None:
        surer = f"{100 * found.side_confidence:g} %"
        bound = f"ε ≥ {found.one_run_lower_bound:.3f} with {surer} confidence, from {found.canaries:,} canaries"
        lines.append(f"this training {bound}")
    for part in found.parts:
        told = f"sound {printed(part.sound_epsilon)}, claimed {printed(part.claimed_epsilon)} at δ={part.delta:g}"
        lines.append(f"  {part.name}: ε ≥ {part.lower_bound:.3f}, {told}")
    failed = found.failed()
    for finding in found.findings:
        missed = f"FAILED, p={finding.p_value:.2g} is below {found.test_level:.2g}"
        lines.append(f"  {finding.name}: {missed if finding in failed else 'passed'} ({finding.seen})")
    lines += [f"  note: {note}" for note in found.notes]
    return "\n".join(
        [*lines, f"verdict       sound ε: {found.sound_verdict}", f"verdict       claimed ε: {found.verdict}"]
    )
