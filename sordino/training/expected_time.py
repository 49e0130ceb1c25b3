"""How long a training will take on this machine, before it begins, and which recipe was quicker in our records."""

import json
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sordino.data import ArrayRecords, Records
from sordino.training.dpsgd import Trainable
from sordino.training.plan import Plan

REACHED = Path(__file__).with_name("reached.json")
"""Accuracy and minutes of the recipes at ε=3, written by `make results` from the records."""
_MOST = 512
_WORTH = 0.5


def expected_seconds(model: Trainable, records: Records, plan: Plan, steps: int) -> float:
    """Seconds that so many steps of a prepared model take, from one on made-up records of the same shape.

    Guarantee: no record is read; an empty batch says what they are shaped like.
    """
    examples = min(plan.sampler.expected_batch_size, _MOST)
    generator = torch.Generator().manual_seed(0)

    def made_up(leaf: Tensor) -> Tensor:
        shape = (examples, *leaf.shape[1:])
        return torch.randn(shape, generator=generator).to(leaf) if leaf.is_floating_point() else leaf.new_zeros(shape)

    x, y = pytree.tree_map_only(Tensor, made_up, records.batch(np.arange(0)))
    alike, times = ArrayRecords(x, y), []
    for _ in range(2):  # the first one warms up
        begun = time.perf_counter()
        with torch.no_grad():
            model.clipped_sum(alike, np.arange(examples), plan.l2_clip, np.random.default_rng(0))
        times.append(time.perf_counter() - begun)
    return min(times) * steps * plan.sampler.expected_batch_size / examples


def in_words(seconds: float) -> str:
    """About how long, in words.

    >>> in_words(20.0), in_words(1300.0), in_words(9000.0)
    ('under a minute', 'about 22 minutes', 'about 2.5 hours')
    """
    if seconds < 60:
        return "under a minute"
    return f"about {seconds / 60:.0f} minutes" if seconds < 90 * 60 else f"about {seconds / 3600:.1f} hours"


def quicker_recipe(dataset: str, recipe: str) -> str | None:
    """The most accurate recipe that took less than half the time in our records of this dataset, and what it costs."""
    rows = {row["recipe"]: row for row in _reached() if row["dataset"] == dataset}
    if recipe not in rows:
        return None
    own = rows[recipe]
    faster = [row for row in rows.values() if row["minutes"] < _WORTH * own["minutes"]]
    if not faster:
        return None
    best = max(faster, key=lambda row: row["accuracy"])
    return (
        f"at ε={own['epsilon']:g} our records have {own['accuracy']:.1f} % in {own['minutes']:g} minutes for {recipe}; "
        f"--recipe {best['recipe']} has {best['accuracy']:.1f} % in {best['minutes']:g}"
    )


@lru_cache(maxsize=1)
def _reached() -> Sequence[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(REACHED.read_text(encoding="utf-8"))
    return rows
