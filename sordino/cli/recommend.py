"""`sordino plan --recommend`: a whole setting from n and the budget, with its reasons."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from sordino.training import Recommendation

_GIGABYTE = 1e9


def recommend(
    n: int,
    epsilon: float,
    delta: float,
    compute: float | None,
    memory: float | None,
    parameters: int | None,
    public: str | None,
    as_json: bool,
) -> None:
    """Print what to train with; gradients are assumed as long as the clip, or measured on a public dataset."""
    from sordino.training import L2_CLIP, LARGE_RATES, GradientSize, gradient_size_on
    from sordino.training import recommend as recommendation

    if parameters is not None and public is not None:
        raise typer.BadParameter("give --parameters or --public, not both: a measurement has a network of its own")
    if public is not None:
        size = gradient_size_on(public, L2_CLIP)
    else:
        size = GradientSize(LARGE_RATES["lsr-m1"].parameters if parameters is None else parameters)
    found = recommendation(
        n, epsilon, delta, size, compute=compute, memory=None if memory is None else memory * _GIGABYTE
    )
    typer.echo(json.dumps(_answer(found), ensure_ascii=False) if as_json else _in_words(found))


def _answer(found: "Recommendation") -> dict[str, Any]:
    return {
        **asdict(found.chosen),
        "epochs": found.epochs,
        "l2_clip": found.l2_clip,
        "learning_rate": found.learning_rate,
        "momentum": found.momentum,
        "epsilon": found.cost.epsilon,
        "delta": found.delta,
        "accountant": found.cost.accountant,
        "root_law": found.root_law,
        "physical_batch": found.physical_batch,
        "reasons": list(found.reasons),
        "candidates": [asdict(each) for each in found.candidates],
    }


def _in_words(found: "Recommendation") -> str:
    from sordino.budget import printed
    from sordino.training import share_in_words

    chosen = found.chosen
    lines = [
        f"ε                 {printed(found.cost.epsilon, 5)} at δ={found.delta:g} ({found.cost.accountant})",
        f"sample rate       {chosen.sample_rate:.5g}, Poisson: {chosen.expected_batch_size:,} of {found.n:,} a step",
        f"noise multiplier  {chosen.noise_multiplier:.5g}",
        f"steps             {chosen.steps:,} ({found.epochs:.4g} epochs)",
        f"clip              {found.l2_clip:g}",
        f"learning rate     {found.learning_rate:g}, momentum {found.momentum:g}",
        f"accounted noise   {share_in_words(chosen.accounted_share)} of the variance of a step",
        "",
        *(f"- {reason}" for reason in found.reasons),
        "",
        f"along σ ≈ {found.root_law:.3g}·√rate, at the same ε and epochs:",
        "      rate        σ    steps  noise of the run  accounted",
    ]
    for each in found.candidates:
        excess, share = 100 * (each.excess_noise - 1), share_in_words(each.accounted_share)
        numbers = f"{each.sample_rate:10.4g} {each.noise_multiplier:8.4g} {each.steps:8,} {excess:+14.2f} % {share:>11}"
        lines.append(numbers + "  ←" * (each == chosen))
    return "\n".join([*lines, "(noise of the run: relative to full batches)"])
