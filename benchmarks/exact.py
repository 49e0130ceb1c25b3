"""What an exact plan costs, and what a cryptographic generator does: whole steps of our training, in processor time.

`make bench-exact`: each row trains under a usual plan, under an exact one, and under a usual plan with NumPy's Philox,
which is no cryptographic generator, in the place of AES; in interleaved rounds, on one thread.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.report import EXACT, Record, machine, rendered
from benchmarks.rows import ROWS, Row
from sordino import models
from sordino.data import ArrayRecords
from sordino.data.samplers import PoissonSampler
from sordino.mechanisms.streams import Stream, Streams
from sordino.training.dpsgd import Trainable, Training, train_steps
from sordino.training.linear import LinearClassifier
from sordino.training.modules import TrainableModule
from sordino.training.optimisers import SGD
from sordino.training.plan import Plan

PAGE = Path("docs/benchmarks.md")
SMALL = Row("linear 20×2", lambda: models.linear(20, 2), (20,), 50, classes=2)
MEASURED = (ROWS["mnist-cnn"], ROWS["linear"], ROWS["fcn"], SMALL)
_ROUNDS_OF_SMALL = 20
"""As many times the rounds: a step takes less than a millisecond."""
_NORMALS = 10**6


class PhiloxStreams(Streams):
    """As streams were before: the same key for a generator that is no cipher."""

    def generator(self, stream: Stream, step: int = 0) -> np.random.Generator:
        counter = np.array([0, 0, step, int(stream)], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=self._key, counter=counter))


def model_of(row: Row, double: bool) -> tuple[Trainable, ArrayRecords]:
    dtype = torch.float64 if double else torch.float32
    x, y = row.batch(2 * row.batch_size)
    if row in (ROWS["linear"], SMALL):
        return LinearClassifier(x.shape[1], row.classes, double=double), ArrayRecords(x.numpy(), y.numpy())
    loss = nn.CrossEntropyLoss(reduction="none")
    return TrainableModule(lambda: row.model().to(dtype), loss), ArrayRecords(x.to(dtype), y)


def steps_of(
    row: Row, streams: Streams, exact: bool, known: dict[str, Any] | None = None
) -> tuple[Callable[[], float], dict[str, Any]]:
    """A function that takes the next step and gives its processor time in milliseconds; and the engine's choices.

    Those that are known are used again: ways that differ in the generator alone must not differ in what was chosen.
    """
    plan = Plan(PoissonSampler(2 * row.batch_size, row.batch_size), 1.0, 2.0, 10**6)
    model, records = model_of(row, exact)
    training = Training(replace(plan, exact=exact), model, records, SGD(0.01))
    model.initialise(streams)
    choices = model.choose(records, known, row.batch_size)
    state = training.start()

    def step() -> float:
        begun = time.process_time()
        train_steps(training, state, streams, state.done + 1)
        return 1000 * (time.process_time() - begun)

    return step, choices


def measure(rounds: int) -> list[Record]:
    rows = []
    for row in MEASURED:
        usual, choices = steps_of(row, Streams(bytes(16)), exact=False)
        ways = {
            "usual": usual,
            "exact": steps_of(row, Streams(bytes(16)), exact=True)[0],
            "philox": steps_of(row, PhiloxStreams(bytes(16)), exact=False, known=choices)[0],
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for place in range(rounds * (_ROUNDS_OF_SMALL if row is SMALL else 1) + 1):
            for way, step in ways.items():
                taken = step()
                if place:  # the first step of each warms up
                    times[way].append(taken)
        ratios = {
            way: statistics.median(a / b for a, b in zip(times[way], times["usual"], strict=True)) for way in ways
        }
        milliseconds = {way: statistics.median(found) for way, found in times.items()}
        rows.append({"title": row.title, "batch_size": row.batch_size, "milliseconds": milliseconds, "ratios": ratios})
        print(f"{row.title}: {milliseconds}, ratios {ratios}", flush=True)
    return rows


def nanoseconds_a_normal() -> Record:
    """Of either generator, the least of five rounds."""
    found: dict[str, list[float]] = {"aes": [], "philox": []}
    for place in range(5):
        for name, kind in (("aes", Streams), ("philox", PhiloxStreams)):
            generator = kind(bytes(16)).generator(Stream.NOISE, place)
            begun = time.process_time()
            generator.standard_normal(_NORMALS)
            found[name].append(1e9 * (time.process_time() - begun) / _NORMALS)
    return {name: min(times) for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two rounds, no record")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    record = machine(1) | {"rows": measure(2 if arguments.quick else 25), "normal": nanoseconds_a_normal()}
    if not arguments.quick:
        EXACT.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        PAGE.write_text(rendered(), encoding="utf-8")


if __name__ == "__main__":
    main()
