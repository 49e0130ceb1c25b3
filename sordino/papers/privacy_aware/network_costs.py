"""What PAW's networks cost: the ε until 85 % by the number of records (Figure 6), and time (Table XVII)."""

import time
from functools import lru_cache
from statistics import mean

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import least_squares
from torch.nn import functional

from sordino.budget import Repeated, cost
from sordino.data import ArrayRecords, PoissonSampler
from sordino.mechanisms import Streams
from sordino.papers.declarations import declared
from sordino.papers.privacy_aware.intervals import Interval, line
from sordino.papers.privacy_aware.network_rows import PAPER
from sordino.papers.privacy_aware.network_trials import NetworkTrial, repeated, some, tuned
from sordino.papers.privacy_aware.networks import NETWORKS, TRAINING_RECORDS, Network, parts_of, size_name
from sordino.papers.records import Cell, Record, Series
from sordino.papers.trials import Experiment
from sordino.training import SGD, Plan, Training, train_steps

_REACHED = 0.85
_SIGMA, _BATCH, _STEPS, _MARKS = 2.0, 100, 4000, 100
_HELD_OUT = 5000
_COMPARED = (
    ("simple", size_name(128), (0.2, 0.5, 1.0)),
    ("complex", size_name(2048, 256, 64), (0.1, 0.2, 0.5)),
)


def figure_6(experiment: Experiment) -> Record:
    """ε until 85 %, by the number of records."""
    sizes = experiment.pick(
        (10_000, 20_000, 50_000, 250_000, 1_000_000),
        (10_000, 20_000, 40_000, 50_000, 125_000, 250_000, 500_000, 1_000_000),
    )
    rows: list[list[Cell]] = []
    series: list[Series] = []
    needed: dict[str, dict[float, Interval]] = {}
    for kind, network, rates in _COMPARED:
        # Sizes share the rate: a step is the same on any number of records.
        usual = NetworkTrial(network, None, 1.0, _BATCH, _STEPS * _BATCH / 60_000, noise_multiplier=_SIGMA)
        rate = tuned(experiment, usual, rates).learning_rate
        needed[kind] = {}
        for n in some(experiment, sizes, 2):
            trial = NetworkTrial(
                network,
                None,
                rate,
                _BATCH,
                _STEPS * _BATCH / n,
                noise_multiplier=_SIGMA,
                records=n,
                validation=_HELD_OUT,
                marks=_MARKS,
            )
            results = repeated(experiment, trial, 3)
            plan = trial.quick().plan(48) if experiment.quick else trial.plan(n)
            reached = [step for result in results if (step := first_step(result["curve"])) is not None]
            spent = [price(plan, steps, trial.delta) for steps in reached]
            found = Interval.of(spent) if spent else None
            if found is not None and len(spent) == len(results):
                needed[kind][float(n)] = found
            row: list[Cell] = [kind, n, mean(reached) if reached else None, None if found is None else found.plain()]
            rows.append([*row, f"{len(spent)} of {len(results)}", rate])
        if needed[kind] or experiment.quick:
            series.append(line(kind, list(needed[kind].items()) or [(48.0, Interval(0.0, None))], scale=1))
    return declared(PAPER)["figure-6"].record(
        experiment,
        rows,
        series=series,
        follows=_fits(needed),
        words={
            "always": experiment.pick("five sizes in place of a dense range, ", "")
            + f"3 seeds in place of 10, {_STEPS:,} steps at most"
        },
    )


@lru_cache(maxsize=256)
def price(plan: Plan, steps: int, delta: float) -> float:
    """ε of so many of a plan's steps."""
    return cost(Repeated(plan.step_event, steps), delta).epsilon


def first_step(curve: dict[str, float]) -> int | None:
    """The first step at which the network was seen to reach the accuracy."""
    return min((int(step) for step, share in curve.items() if share >= _REACHED), default=None)


def fitted(sizes: list[float], epsilons: list[float]) -> tuple[float, float]:
    """α ≥ 1 and β of PAW's ε = ln(α + β/n), by least squares of ε."""
    n, epsilon = np.asarray(sizes), np.asarray(epsilons)

    def missed(terms: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.log(terms[0] + terms[1] / n) - epsilon)

    found = least_squares(missed, (1.01, 1e4), bounds=((1, 0), (np.inf, np.inf)), x_scale=(0.1, 1e4))
    return float(found.x[0]), float(found.x[1])


def _fits(needed: dict[str, dict[float, Interval]]) -> list[str]:
    said = []
    for kind, found in needed.items():
        if len(found) > 2:
            alpha, beta = fitted(list(found), [at.mean for at in found.values()])
            missed = max(abs(np.log(alpha + beta / n) - at.mean) for n, at in found.items())
            said.append(
                f"Refitted, ε = ln(α + β/n) of the {kind} network has α={alpha:.3f}, β={beta:,.0f} and misses by at "
                f"most {missed:.3f}"
            )
        else:
            said.append(f"The {kind} network reached 85 % with every seed at {len(found)} sizes: too few to fit")
    simple, complex_ = needed["simple"], needed["complex"]
    more = [f"{complex_[n].mean / simple[n].mean:.2f} at n={n:,.0f}" for n in simple if n in complex_]
    said += [f"ε of the complex network as a multiple of the simple one's: {', '.join(more)}"] if more else []
    return said


_TIMED_BATCH, _ROUNDS = 100, 5


def table_17(experiment: Experiment) -> Record:
    """Time of an epoch with DP-SGD and with SGD; published are its seconds."""
    rows: list[list[Cell]] = []
    ratios = []
    for name, private, plain in some(experiment, declared(PAPER)["table-17"].published):
        experiment.say(f"{name}: steps with and without privacy")
        network = NETWORKS[name]
        epoch = TRAINING_RECORDS[network.dataset] / _TIMED_BATCH
        steps, rounds = (1, 1) if experiment.quick else experiment.pick((3, _ROUNDS), (int(epoch), 1))
        ours = step_seconds(network, _TIMED_BATCH, steps, rounds)
        ratios.append(ours[0] / ours[1])
        row: list[Cell] = [name, network.counts[1], private, plain, private / plain]
        rows.append([*row, ours[0] * epoch, ours[1] * epoch, ratios[-1]])
    return declared(PAPER)["table-17"].record(
        experiment,
        rows,
        follows=[
            f"DP-SGD takes {min(ratios):.1f} to {max(ratios):.1f} times as long as SGD here, 19 to 37 times in PAW",
        ],
    )


def step_seconds(network: Network, batch: int, steps: int, rounds: int) -> tuple[float, float]:
    """Of a private step and a plain one, measured in turn over so many."""
    parts = parts_of(network.dataset, network.inputs, 0, 4 * batch, 1)
    trained, records = network.trainable(), ArrayRecords(parts.x, parts.y)
    trained.choose(records, None, batch)
    streams = Streams(bytes(16))
    trained.initialise(streams)
    training = Training(Plan(PoissonSampler(4 * batch, batch), 1.0, 1.0, steps), trained, records, SGD(0.1))
    model = network.build()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    x, y = torch.from_numpy(parts.x[:batch]), torch.from_numpy(parts.y[:batch])

    def private() -> None:
        train_steps(training, training.start(), streams, steps)

    def plain() -> None:
        for _ in range(steps):
            optimiser.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimiser.step()

    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):  # the first warms up
        for seconds, work in zip(taken, (private, plain), strict=True):
            begun = time.process_time()
            work()
            seconds.append((time.process_time() - begun) / steps)
    return min(taken[0][1:]), min(taken[1][1:])
