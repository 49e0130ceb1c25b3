"""Arithmetic that plans share and that needs no model: epochs in steps, δ against n."""

import math
import warnings

from sordino.budget.events.base import check_delta

_MOST_STEPS = 2.0**53  # beyond that a float no longer counts one by one


def steps_for(epochs: float, n: int, expected_batch_size: int) -> int:
    """Steps that make so many passes over the data in expectation."""
    if not (isinstance(epochs, int | float) and 0 < epochs < math.inf):
        raise ValueError(f"epochs must be a positive finite number, not {epochs!r}")
    if n < 1 or expected_batch_size < 1:
        raise ValueError(f"n and the batch size must be at least 1, not {n} and {expected_batch_size}")
    # A quotient that is whole but for rounding is whole: 40 epochs of 10 steps are 400, never 401.
    exact = epochs * n / expected_batch_size
    if exact > _MOST_STEPS:
        raise ValueError(f"{epochs:g} epochs are more than 2^53 steps: give fewer")
    return max(1, round(exact) if math.isclose(exact, round(exact), rel_tol=1e-12) else math.ceil(exact))


def check_delta_against_draws(delta: float, sample_rate: float, steps: int) -> None:
    """Refuse a δ that any noise meets: a record that is never drawn changes nothing, so ε=0 at the chance of a draw."""
    drawn = 1.0 if sample_rate >= 1 else -math.expm1(steps * math.log1p(-sample_rate))
    if delta >= drawn:
        raise ValueError(
            f"δ={delta:g} alone permits this, without any noise: a record is drawn at all with probability "
            f"{drawn:.4g} only. Give a δ below that"
        )


def check_delta_against_n(delta: float, n: int) -> None:
    """δ of 1/n or more would allow publishing somebody's record outright, at random: say so."""
    check_delta(delta)
    if n > 0 and delta >= 1 / n:
        warnings.warn(
            f"δ={delta:g} is not below 1/n={1 / n:.3g}: it would permit revealing a record outright", stacklevel=3
        )
