"""Our private logistic regression beside diffprivlib's, on the same rows: `make bench-convex`; interleaved rounds.

diffprivlib perturbs the objective with pure ε for a replaced record (Chaudhuri et al. 2011). Ours stands beside it for
the same promise, then for a record present or empty (zero-out), pure and with δ = 1e-5. All take every feature, one-hot
over the categories that the published rows have, on rows of the public norm √(attributes + 1).
"""

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from diffprivlib.models import LogisticRegression
from numpy.typing import NDArray

from sordino.data import Column, load
from sordino.features import OneHot
from sordino.training.convex import LogisticPlan, data_norm, fit_many, scores

RECORD = Path("results/benchmarks/convex.json")
DELTA = 1e-5
EPSILONS = {"adult": (0.05, 0.1, 1.0), "breast-cancer": (0.5, 2.0, 10.0)}


@dataclass(frozen=True, eq=False)
class Table:
    """A benchmark's training and test rows without the constant, its labels, and its number of attributes."""

    x: NDArray[np.float64]
    y: NDArray[np.int64]
    test_x: NDArray[np.float64]
    test_y: NDArray[np.int64]
    attributes: int

    @classmethod
    def of(cls, name: str) -> "Table":
        dataset = load(name)
        parts = dataset.workflow_split(0)
        columns = dataset.facts.columns or ()
        encode = OneHot([replace(c, categories=_present(c)) for c in columns])
        x, test_x = (encode(part.x).astype(np.float64) for part in (parts.train, parts.test))
        return cls(x, parts.train.y, test_x, parts.test.y, len(columns))


def _present(column: Column) -> tuple[str, ...] | None:
    return column.categories and tuple(value for value in column.categories if value not in column.absent)


Fits = Callable[[int, np.random.Generator], list[float]]


def contenders(table: Table, epsilon: float) -> dict[str, Fits]:
    """Functions that fit so many times with fresh noise and give the test accuracy of each fit, in per cent."""
    n, width = table.x.shape
    terms = {"n": n, "width": width, "target_epsilon": epsilon, "data_norm": data_norm(table.attributes)}
    plans = {
        "sordino, pure, replace-one": LogisticPlan.calibrated(**terms, adjacency="replace-one"),
        "sordino, pure, zero-out": LogisticPlan.calibrated(**terms),
        "sordino, δ=1e-5, zero-out": LogisticPlan.calibrated(**terms, target_delta=DELTA),
        "sordino, output, δ=1e-5": LogisticPlan.output_perturbed(**terms, target_delta=DELTA),
    }
    every = np.ones((1, width), dtype=bool)

    def ours(plan: LogisticPlan) -> Fits:
        def fits(count: int, generator: np.random.Generator) -> list[float]:
            weights = fit_many(table.x, table.y, every, plan, count, generator)[0]
            correct = (scores(weights, table.test_x) > 0) == table.test_y[:, None]
            return list(100 * correct.mean(axis=0))

        return fits

    def theirs(count: int, generator: np.random.Generator) -> list[float]:
        found = []
        for _ in range(count):
            # Its norm is that of the rows before it adds the constant.
            seed = int(generator.integers(2**31))
            model = LogisticRegression(epsilon=epsilon, data_norm=np.sqrt(table.attributes), random_state=seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that its solver stopped after 100 iterations
                model.fit(table.x, table.y)
            found.append(100 * model.score(table.test_x, table.test_y))
        return found

    return {"diffprivlib, pure, replace-one": theirs} | {name: ours(plan) for name, plan in plans.items()}


def measure(quick: bool) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name, epsilons in EPSILONS.items():
        table = Table.of(name)
        rounds, ours, theirs = (1, 4, 1) if quick else (5, 20 if name == "adult" else 200, 3 if name == "adult" else 40)
        for epsilon in epsilons[-1:] if quick else epsilons:
            running = contenders(table, epsilon)
            accuracy: dict[str, list[float]] = {who: [] for who in running}
            seconds: dict[str, list[float]] = {who: [] for who in running}
            generator = np.random.default_rng(0)
            for _ in range(rounds):
                for who, fits in running.items():
                    count = theirs if who.startswith("diffprivlib") else ours
                    # Processor time: other work on the machine must not count.
                    begun = time.process_time()
                    accuracy[who] += fits(count, generator)
                    seconds[who].append((time.process_time() - begun) / count)
            for who in running:
                mean, spread = statistics.mean(accuracy[who]), statistics.pstdev(accuracy[who])
                row = {"table": name, "epsilon": epsilon, "who": who, "accuracy": mean, "deviation": spread}
                row |= {"repeats": len(accuracy[who]), "milliseconds a fit": 1000 * statistics.median(seconds[who])}
                rows.append(row)
                cost = row["milliseconds a fit"]
                print(
                    f"{name}, ε={epsilon:g}: {who:<31} {mean:5.2f} ± {spread:.2f} %, {cost:8.2f} ms a fit", flush=True
                )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few fits, no record")
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    rows = measure(arguments.quick)
    if not arguments.quick:
        names = ("torch", "numpy", "scikit-learn", "diffprivlib")
        facts = {"threads": torch.get_num_threads()} | {name: version(name) for name in names}
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        RECORD.write_text(json.dumps({**facts, "rows": rows}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
