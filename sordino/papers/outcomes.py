"""The columns that say how our trainings came out, the same for every paper."""

from statistics import mean
from typing import Any

from sordino.papers.records import Cell, percent

OURS = ("ours", "σ", "ε spent", "accountant", "seeds", "minutes")


def ours(results: list[dict[str, Any]]) -> list[Cell]:
    """Accuracy, noise, price and time of one trial under several seeds: the columns `OURS`."""
    sound, seconds = results[0]["sound"], [sum(result["seconds"].values()) for result in results]
    accuracy = percent(result["accuracy"] for result in results)
    noise = float(results[0]["noise_multiplier"])
    return [accuracy, noise, sound["epsilon"], sound["accountant"], len(results), f"{mean(seconds) / 60:.1f}"]
