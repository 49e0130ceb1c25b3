"""`sordino plan --weight-distributions`: what SI-DPSGD claims to cost beside what it costs."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from sordino.training import Price


def print_prices(
    n: int,
    batch: int,
    steps: int,
    delta: float,
    noise_multiplier: float | None,
    epsilon: float | None,
    as_json: bool,
    **rates: float,
) -> None:
    """Print a row for each way to sample; with ε in place of noise, each with the noise that is sound at that ε."""
    from sordino.training import weight_distribution_prices

    found = weight_distribution_prices(
        n, batch, steps, delta, noise_multiplier=noise_multiplier, epsilon=epsilon, **rates
    )
    rows = [asdict(price) for price in found]
    answer = {"n": n, "batch": batch, "steps": steps, "delta": delta, "prices": rows}
    typer.echo(json.dumps(answer, ensure_ascii=False) if as_json else _in_words(found, steps, delta))


def _in_words(found: "list[Price]", steps: int, delta: float) -> str:
    from sordino.budget import Composed, printed, rdp

    least = rdp.classic_epsilon(Composed(()), delta, "zero-out", "old")
    lines = [
        f"weight distributions, {steps:,} steps, ε at δ={delta:g}",
        f"{'sampling':12}{'noise':>10}{'claimed':>12}{'sound':>12}{'last weights':>15}",
    ]
    for price in found:
        last = f"≥ {printed(price.last_weights_at_least, 4)}"
        sound, claimed = printed(price.sound, 4), printed(price.claimed, 4)
        lines.append(f"{price.sampling:12}{price.noise_multiplier:10.4g}{claimed:>12}{sound:>12}{last:>15}")
    return "\n".join(
        [
            *lines,
            "",
            "claimed: as the paper prices it, as if each step's means were told: not sound (RDP, the old conversion, "
            f"whose orders give no less than {printed(least, 4)})",
            "sound: all weights drawn on the way, and so the last ones: what the ledger charges",
            "last weights: what they alone tell at least of some record; no bound from above",
        ]
    )
