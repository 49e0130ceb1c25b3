"""Trainings of one dense network side by side against one by one: whole steps, in interleaved rounds.

Run `OMP_NUM_THREADS=1 python -m benchmarks.side_by_side`; it prints a table and writes its record.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from sordino import models
from sordino.data import ArrayRecords
from sordino.data.samplers import PoissonSampler
from sordino.mechanisms.streams import Streams
from sordino.training import SGD, DenseNetwork, Plan, TrainableModule
from sordino.training.dense import side_by_side
from sordino.training.dense_sums import softmax_slope
from sordino.training.dpsgd import Steps, Trainable, Training, TrainingState, release
from sordino.training.heads import cross_entropy

RECORD = Path("results/benchmarks/side-by-side.json")
NETWORKS = ((64, 10), (64, 128, 10), (64, 512, 64, 10))
RECORDS, BATCH = 20_000, 100


def steps_until(training: Training, state: TrainingState, streams: Streams, last: int) -> Steps[None]:
    """Steps that wait for their clipped sums, without a run or a ledger."""
    while state.done < last:
        clipped = yield training.draw(state, streams)
        gradient, next_clip = release(clipped, state.l2_clip, training.plan, streams, state.done)
        training.update(state, training.model.parameters, gradient, next_clip)


def trainings(widths: tuple[int, ...], count: int, steps: int, way: str) -> list[Steps[None]]:
    """So many of them: of the general engine, of the closed form, or of that side by side."""
    generator = np.random.default_rng(0)
    x = generator.random((RECORDS, widths[0]), dtype=np.float32)
    y = generator.integers(0, widths[-1], RECORDS)
    plan = Plan(PoissonSampler(RECORDS, BATCH), l2_clip=1.0, noise_multiplier=2.0, steps=steps)
    made, records = [], ArrayRecords(x, y)
    for number in range(count):
        place = (number, count) if way == "side by side" else (0, 1)
        model: Trainable
        if way == "engine":
            model = TrainableModule(lambda: models.dense(*widths), cross_entropy)
        else:
            model = DenseNetwork(lambda: models.dense(*widths), softmax_slope, place=place)
        streams = Streams(number.to_bytes(16, "little"))
        model.choose(records, None, BATCH)
        model.initialise(streams)
        training = Training(plan, model, records, SGD(0.1))
        made.append(steps_until(training, training.start(), streams, steps))
    return made


def seconds(widths: tuple[int, ...], count: int, steps: int, way: str) -> float:
    """Processor time of one step of one training."""
    made = trainings(widths, count, steps, way)
    begun = time.process_time()
    if way == "side by side":
        side_by_side(made)
    else:
        for training in made:
            side_by_side([training])
    return (time.process_time() - begun) / (count * steps)


def measure(counts: tuple[int, ...], steps: int, rounds: int) -> list[dict[str, object]]:
    rows = []
    for widths in NETWORKS:
        for count in counts:
            found: dict[str, list[float]] = {"engine": [], "one by one": [], "side by side": []}
            for _ in range(rounds):
                for way, taken in found.items():
                    taken.append(seconds(widths, count, steps, way))
            ratios = {
                way: statistics.median(t / s for t, s in zip(found[way], found["side by side"], strict=True))
                for way in ("engine", "one by one")
            }
            milliseconds = {way: 1e3 * statistics.median(taken) for way, taken in found.items()}
            rows.append({"widths": widths, "trainings": count, "milliseconds": milliseconds, "ratios": ratios})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few steps, no record")
    arguments = parser.parse_args()
    rows = measure((2,), 3, 2) if arguments.quick else measure((3, 8), 100, 7)
    for row in rows:
        names = "-".join(map(str, row["widths"]))
        times = ", ".join(f"{way} {taken:.2f} ms" for way, taken in row["milliseconds"].items())
        ratios = ", ".join(f"{way} ÷ side by side {ratio:.2f}" for way, ratio in row["ratios"].items())
        print(f"{names}, {row['trainings']} trainings: {times}; {ratios}")
    if not arguments.quick:
        facts = {"threads": torch.get_num_threads(), "torch": torch.__version__, "batch": BATCH}
        RECORD.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
