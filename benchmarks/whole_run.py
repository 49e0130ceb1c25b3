"""Whole trainings beside plain PyTorch's: draw, gather, gradients, keyed noise, update, ledger and checkpoints.

`make bench-whole`: each row trains the same network on the same records by a plain loop (shuffled batches, gathered by
index; nothing private), by `sordino.fit` in a run folder with its ledger in a file, by a loop of
`sordino.make_private`, and by Opacus' own loop (its Poisson loader and accountant) in its faster modes, in interleaved
rounds. What comes before the first step and after the last is measured apart.
"""

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sordino
from benchmarks.report import WHOLE, Record, machine, rendered
from benchmarks.rows import ROWS, Row
from sordino.data import PoissonSampler

PAGE = Path("docs/benchmarks.md")
MEASURED = ("mnist-cnn", "small-fcn")
PLAIN = "plain loop"
LOSS = nn.CrossEntropyLoss(reduction="none")
LEARNING_RATE, DELTA = 0.01, 1e-5
_EPOCH = 30
"""Steps of an epoch."""


class Stopwatch:
    """Seconds before the first step, of the steps, and after the last."""

    def __init__(self) -> None:
        self._times = [time.perf_counter()]

    def lap(self) -> None:
        self._times.append(time.perf_counter())

    def laps(self) -> dict[str, float]:
        begun, first, last, end = self._times
        return {"before": first - begun, "steps": last - first, "after": end - last}


def plain_loop(
    row: Row, data: TensorDataset, epochs: int, watch: Stopwatch, memory_format: torch.memory_format
) -> None:
    x, y = data.tensors
    model = row.model().to(memory_format=memory_format)
    x = x.contiguous(memory_format=memory_format)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    watch.lap()
    for _ in range(epochs):
        for indices in torch.randperm(len(y)).split(row.batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[indices]), y[indices]).backward()
            optimizer.step()
    watch.lap()


def by_fit(row: Row, data: TensorDataset, epochs: int, watch: Stopwatch) -> None:
    plan = sordino.Plan(PoissonSampler(len(data), row.batch_size), 1.0, 2.0, epochs * _EPOCH)

    def on_progress(done: int, total: int) -> None:
        if done in (0, total):
            watch.lap()

    with tempfile.TemporaryDirectory() as folder:
        ledger = sordino.Ledger(target_delta=DELTA, path=f"{folder}/ledger.json")
        optimiser = sordino.SGD(LEARNING_RATE)
        sordino.fit(
            plan, row.model(), data, optimiser=optimiser, ledger=ledger, run=folder, loss=LOSS, on_progress=on_progress
        )


def by_private_loop(row: Row, data: TensorDataset, epochs: int, watch: Stopwatch) -> None:
    model = row.model()
    with tempfile.TemporaryDirectory() as folder:
        private = sordino.make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
            LOSS,
            data,
            epochs=epochs,
            expected_batch_size=row.batch_size,
            l2_clip=1.0,
            target_epsilon=3.0,
            target_delta=DELTA,
            run=folder,
        )
        watch.lap()
        for x, y in private.batches():
            private.step(x, y)
        watch.lap()


def by_opacus(row: Row, data: TensorDataset, epochs: int, watch: Stopwatch, mode: str) -> None:
    from opacus import PrivacyEngine

    warnings.filterwarnings("ignore", module="opacus")
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    model = row.model()
    for module in model.modules():
        if getattr(module, "inplace", False):
            module.inplace = False
    engine = PrivacyEngine(accountant="prv")
    made = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(data, batch_size=row.batch_size),
        noise_multiplier=2.0,
        max_grad_norm=1.0,
        grad_sample_mode=mode,
    )
    module, optimizer, *criterion, loader = made
    loss = criterion[0] if criterion else nn.CrossEntropyLoss()
    watch.lap()
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss(module(x), y).backward()
            optimizer.step()
    watch.lap()
    engine.get_epsilon(DELTA)


Contender = Callable[[Row, TensorDataset, int, Stopwatch], None]
CONTENDERS: dict[str, Contender] = {
    PLAIN: partial(plain_loop, memory_format=torch.contiguous_format),
    "plain loop, channels-last": partial(plain_loop, memory_format=torch.channels_last),
    "sordino fit": by_fit,
    "sordino make_private": by_private_loop,
    "opacus ghost": partial(by_opacus, mode="ghost"),
    "opacus hooks": partial(by_opacus, mode="hooks"),
}


def runs(row: Row, names: list[str], epochs: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    data = TensorDataset(*row.batch(_EPOCH * row.batch_size))
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            watch = Stopwatch()
            CONTENDERS[name](row, data, epochs, watch)
            watch.lap()
            found[name].append(watch.laps())
    return found


def measure(name: str, names: list[str], epochs: int, rounds: int) -> Record:
    """A row; ratios are to the faster plain loop, each taken within a round."""
    row = ROWS[name]
    names = [each for each in names if len(row.shape) == 3 or "channels-last" not in each]
    found = runs(row, names, epochs, rounds)
    plain = [each for each in names if each.startswith(PLAIN)]
    base = min(plain, key=lambda each: statistics.median(laps["steps"] for laps in found[each]))
    contenders: dict[str, Any] = {}
    for each, laps in found.items():
        pairs = list(zip(laps, found[base], strict=True))
        contenders[each] = {
            "ratio_of_steps": statistics.median(ours["steps"] / theirs["steps"] for ours, theirs in pairs),
            "ratio_of_whole": statistics.median(sum(ours.values()) / sum(theirs.values()) for ours, theirs in pairs),
            "seconds": {part: statistics.median(lap[part] for lap in laps) for part in ("before", "steps", "after")},
        }
    steps = epochs * _EPOCH
    made = {"title": row.title, "batch_size": row.batch_size, "steps": steps, "rounds": rounds, "base": base}
    return made | {"contenders": contenders}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one row, one epoch, two rounds; writes no record")
    parser.add_argument("--rows", nargs="+", choices=sorted(ROWS), default=MEASURED)
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    names = arguments.only if PLAIN in arguments.only else [PLAIN, *arguments.only]
    epochs, rounds = (1, 2) if arguments.quick else (arguments.epochs, arguments.rounds)
    rows = []
    for row in ("small-fcn",) if arguments.quick else arguments.rows:
        rows.append(measure(row, names, epochs, rounds))
        print(json.dumps(rows[-1], indent=1), flush=True)
    if not arguments.quick and arguments.rows == MEASURED:
        record = machine(torch.get_num_threads()) | {"rows": rows}
        WHOLE.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        PAGE.write_text(rendered(), encoding="utf-8")


if __name__ == "__main__":
    main()
