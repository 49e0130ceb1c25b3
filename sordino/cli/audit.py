"""`sordino audit`: whether the ε of a run or a recipe holds, as far as attacks and tests can tell."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sordino.cli.arguments import Json, show

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
            help=f"Trials of the mechanism, half with the canary and half without; by default {_RUNS:,}, "
            f"for {_PAPER} {_PAPER_RUNS:,}.",
            show_default=False,
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the lower bound.")] = 0.95,
    epsilon: Annotated[
        float | None, typer.Option(help="Target ε of a recipe; by default 3.", show_default=False)
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Target δ of a recipe; by default 1e-5.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Attack the mechanism of a run or a recipe, and test its sampler, noise and sensitivity.

    Exit code 0: the sound ε is consistent with all observations. 1: it is violated, by a bound or by a test of what it
    rests on. If only a claimed ε is violated, the exit code is 0.
    """
    import torch

    from sordino.audit import SI_MNIST, audit_recipe, audit_run
    from sordino.training import NAMES

    torch.set_num_threads(1)  # canaries are tiny: several threads would only wait for each other
    trials: dict[str, Any] = {"runs": _RUNS if runs is None else runs, "confidence": confidence}
    if subject in NAMES and not Path(subject).is_dir():
        epsilon, delta = 3.0 if epsilon is None else epsilon, 1e-5 if delta is None else delta
        found = audit_recipe(subject, epsilon, delta, **trials)
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
    show(found.to_json(), as_json, found.report)
    if found.sound_verdict != "consistent":
        raise typer.Exit(1)
