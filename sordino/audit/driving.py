"""The real `fit` under an audit: its run folder, ledger, blocks, checkpoints and the weights that it writes."""

import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from sordino.audit.findings import Finding
from sordino.budget import Ledger
from sordino.mechanisms import Stream, Streams
from sordino.runs import Run
from sordino.training import Plan, Standing, State, Trainee, Weights, fit

_BLOCKS = 3

See = Callable[[Weights, Weights, int, float], None]
"""Is shown the parameters, their noisy gradient, the step and the noise's deviation."""


class Watching:
    """An optimiser that shows every noisy gradient, and takes it off the parameters, times a rate."""

    def __init__(self, see: See, rate: float = 1.0) -> None:
        self._see, self._rate = see, rate
        self.expected: Weights = {}
        """What the parameters are if nothing but these gradients moved them."""

    def to_json(self) -> dict[str, Any]:
        return {"optimiser": "watching"}

    def start(self, parameters: Weights) -> State:
        return {}

    @torch.no_grad()
    def step(self, parameters: Weights, state: State, gradient: Weights, step: int, noise_deviation: float) -> None:
        self._see(parameters, gradient, step, noise_deviation)
        for name, value in parameters.items():
            before = self.expected.get(name)
            self.expected[name] = (value if before is None else before) - self._rate * gradient[name]
            value.sub_(self._rate * gradient[name])


class Driven(NamedTuple):
    """Where the run stood at its end, and what its folder shows."""

    standing: Standing
    findings: tuple[Finding, Finding]


def driven(plan: Plan, trainee: Trainee, see: See, streams: Streams, rate: float = 1.0) -> Driven:
    """Fit the plan in a folder that is deleted afterwards.

    The weights in the folder must be those that the gradients seen lead to, so that whoever has them knows no more than
    whoever saw all gradients; and the ledger in the folder must hold the plan's event.
    """
    optimiser, ends = Watching(see, rate), list[Standing]()
    seed = int(streams.generator(Stream.AUGMENTATION).integers(2**31))  # synthetic records: nothing to protect
    with TemporaryDirectory(prefix="sordino-audit-") as folder:
        run = Run.create(Path(folder) / "run", "audit")
        fit(
            run,
            plan,
            trainee,
            optimiser,
            Ledger(path=run.ledger),
            seed=seed,
            checkpoint_every=math.ceil(plan.steps / _BLOCKS),
            on_trained=ends.append,
        )
        weights, _ = run.read_tensors(run.model)
        entries = Ledger.open(run.ledger).entries
    same = {*weights} >= {*optimiser.expected} and all(
        torch.equal(weights[name], value) for name, value in optimiser.expected.items()
    )
    paid = [(entry.reserved, entry.count) for entry in entries] == [(plan.event, plan.steps)]
    kept = "are" if same else "are not"
    held = "holds" if paid else "does not hold"
    weights_seen = f"the weights in the audit's own folder {kept} what the noisy gradients lead to"
    charge_seen = f"the ledger in the audit's own folder {held} the plan's {plan.steps:,} steps, once"
    findings = Finding("weights", float(same), weights_seen), Finding("charge", float(paid), charge_seen)
    return Driven(ends[0], findings)


def keys_differ(plan: Plan, trainee: Trainee) -> Finding:
    """Two runs of `fit` with keys of their own, as everybody starts them: the same noise in both would cancel."""
    seen: list[Weights] = []
    for _ in range(2):
        with TemporaryDirectory(prefix="sordino-audit-") as folder:
            run = Run.create(Path(folder) / "run", "audit")
            watching = Watching(lambda parameters, gradient, step, deviation: None)
            fit(run, plan, trainee, watching, Ledger(path=run.ledger))
            seen.append(run.read_tensors(run.model)[0])
    alike = any(torch.equal(seen[0][name], value) for name, value in seen[1].items())
    return Finding("keys", float(not alike), f"two runs have {'the same noise' if alike else 'noise of their own'}")
