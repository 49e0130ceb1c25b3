"""What every paper's tables share: the columns that say how our trainings came out, and noise as papers price it."""

from collections.abc import Sequence
from math import exp, log
from statistics import mean
from typing import Any

from scipy.optimize import brentq

from sordino.budget import PoissonGaussian, Repeated, rdp
from sordino.papers.records import Cell, percent

OURS = ("ours", "σ", "ε spent", "accountant", "seeds", "minutes")


def ours(results: list[dict[str, Any]]) -> list[Cell]:
    """Accuracy, noise, price and time of one trial under several seeds: the columns `OURS`."""
    sound, seconds = results[0]["sound"], [sum(result["seconds"].values()) for result in results]
    accuracy = percent(result["accuracy"] for result in results)
    noise = float(results[0]["noise_multiplier"])
    return [accuracy, noise, sound["epsilon"], sound["accountant"], len(results), f"{mean(seconds) / 60:.1f}"]


def classic_noise(
    sample_rate: float, steps: int, epsilon: float, delta: float, orders: Sequence[float] = rdp.CLASSIC_ORDERS
) -> float | None:
    """σ for which RDP at these orders with the old conversion gives DP-SGD this ε; None where no noise is enough."""

    def excess(log_sigma: float) -> float:
        values = rdp.rdp(Repeated(PoissonGaussian(sample_rate, exp(log_sigma)), steps), "zero-out", orders)
        return min(float(v) - log(delta) / (order - 1) for v, order in zip(values, orders, strict=True)) - epsilon

    most = log(1e4)
    return None if excess(most) > 0 else exp(float(brentq(excess, log(0.2), most, xtol=1e-4)))
