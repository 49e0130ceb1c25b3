"""Trainings by recipes on named datasets: the trials of most tables and figures about images."""

import hashlib
import math
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Composed, Event, Ledger, NonPrivate, Repeated, cost, leaves, steps_for
from sordino.data import (
    DataError,
    Dataset,
    PoissonSampler,
    Sampler,
    ShuffledSampler,
    Split,
    check_labels,
    load,
    reading,
)
from sordino.features import Standardised, as_array, stored
from sordino.papers.trials import Result, Say, Trial, as_json, resumed_or_restarted, scored_along
from sordino.runs import Run
from sordino.training import (
    Checkpoint,
    DatasetRecipe,
    LastIteratePlan,
    LinearClassifier,
    Plan,
    Progress,
    Weights,
    cached_plan,
    fit,
    largest_learning_rate,
    normalising,
    recipe,
)

_CHECKPOINTS = 10
_FEW = 1000
"""Examples whose features are not worth keeping."""


@dataclass(frozen=True)
class RecipeTrial(Trial):
    """A recipe on a dataset at a budget, with whatever is varied; a seed fixes all its randomness."""

    kind: ClassVar[str] = "recipe"
    revision: ClassVar[int] = 2

    dataset: str
    recipe: str
    seed: int = 0
    epsilon: float | None = 3.0
    """None: without noise, for comparison."""
    delta: float = 1e-5
    settings: tuple[tuple[str, Any], ...] = ()
    """Changes to the recipe's settings."""
    shuffled: bool = False
    """Batches of shuffled epochs with the noise that Poisson sampling would need: a claim, as T&B have it."""
    records: int | None = None
    """Train on so many records, drawn at random; δ and settings stay as they are."""
    more: str | None = None
    """An .npz file with further training examples x and labels y, as the dataset's."""
    validation: int = 0
    """Hold out so many training records and measure the accuracy on them: to choose settings, which is not counted."""
    test: int | None = None
    marks: int = 1
    """How many times the accuracy is measured along the run, at equal distances."""
    simulated: int | None = None
    """Draw so many examples a step in place of the batch, with the noise that the whole batch's mean would have: cheap,
    and alike where noise outweighs sampling (Sander et al. 2023), but not private at this ε. To choose settings."""

    def compute(self, folder: Path, say: Say) -> Result:
        return resumed_or_restarted(folder, lambda run: self._result(run, say))

    def description(self) -> dict[str, Any]:
        """The fields, the numbers that the recipe makes of them, and the size of the data."""
        dataset, chosen = self._chosen()
        made = chosen.settings
        found = super().description() | {
            "rows": [len(dataset.train), len(dataset.test)],
            "tuned_for": made.n,
            "batch": made.batch,
            "learning_rate": made.learning_rate,
            "momentum": chosen.momentum,
            "epochs": made.epochs,
            "l2_clip": chosen.l2_clip,
            "groups": made.groups,
            "moments": as_json(chosen.moments),
            "averaged": made.averaged,
        }
        if self.more is not None:
            found["more"] = hashlib.blake2b(Path(self.more).read_bytes()).hexdigest()
        return found

    def listed(self, result: Result) -> Result:
        return {"delta": self.delta, **super().listed(result)}

    @property
    def made(self) -> DatasetRecipe:
        """The recipe with its changes."""
        return self._chosen()[1]

    @property
    def steps(self) -> tuple[float, int, Event | None]:
        """The sample rate, how many steps, and the normalisation before them, if any: what the noise depends on."""
        dataset, chosen = self._chosen()
        n = (self.records or len(dataset.train)) - self.validation
        batch = chosen.expected_batch_size(n)
        return batch / n, steps_for(chosen.settings.epochs, n, batch), normalising.spent_before(chosen.moments)

    def quick(self) -> Self:
        few = dict(self.settings) | {"epochs": 0.8, "batch": 4096, "n": 50_000}  # alike, so that they share one plan
        return replace(
            self,
            settings=settings(**few),
            epsilon=None if self.epsilon is None else 3.0,
            delta=1e-4,
            records=96,
            test=50,
            validation=min(self.validation, 50),
            simulated=self.simulated and 16,
            marks=min(self.marks, 2),
        )

    def _chosen(self) -> tuple[Dataset, DatasetRecipe]:
        dataset = _loaded(self.dataset)
        return dataset, recipe(self.recipe, self.dataset, dataset.facts, **dict(self.settings))

    def _result(self, run: Run, say: Say) -> Result:
        dataset, chosen = self._chosen()
        say(f"{self}: features")
        began = time.perf_counter()
        material = _Material.of(self, chosen, dataset)
        described = time.perf_counter()
        found = self._train(chosen, material, run, lambda done, total: say(f"{self}: step {done:,} of {total:,}"))
        seconds = {"features": described - began, "training": time.perf_counter() - described}
        return found | {"trial": str(self), "n": len(material.train_y), "seconds": seconds}

    def _train(self, chosen: DatasetRecipe, material: "_Material", run: Run, on_progress: Progress) -> dict[str, Any]:
        n, batch = len(material.train_y), chosen.expected_batch_size(len(material.train_y))
        sampler: Sampler = ShuffledSampler(n, batch) if self.shuffled else PoissonSampler(n, batch)
        if self.epsilon is None:
            plan = Plan.without_noise(sampler, chosen.l2_clip, chosen.settings.epochs)
        else:
            plan = cached_plan(
                n=n,
                expected_batch_size=batch,
                epochs=chosen.settings.epochs,
                target_epsilon=self.epsilon,
                target_delta=self.delta,
                l2_clip=chosen.l2_clip,
                before=material.before,
            )
            plan = replace(plan, sampler=sampler)  # shuffled too: with the noise that Poisson sampling needs
        if self.simulated is not None and self.shuffled:
            raise ValueError("a simulated batch is a Poisson draw: leave out shuffled")
        if self.simulated is not None:
            share, few = self.simulated / batch, PoissonSampler(n, self.simulated)
            plan = replace(plan, sampler=few, noise_multiplier=share * plan.noise_multiplier)
        ledger = material.ledger(self, plan.event, run)
        material = material.standardised(self, chosen, run, ledger)
        model = chosen.head.model(material.train_x[0].size, material.classes)
        blocks = math.ceil(_CHECKPOINTS / self.marks)
        block = math.ceil(plan.steps / (self.marks * blocks))

        def score() -> float:
            now = Checkpoint.read(run)
            return material.accuracy(
                chosen, model.weights() if now is None else now.weights | (now.state.average or {})
            )

        curve, measure = scored_along(run, block * blocks, score, on_progress)
        optimiser, averaging = chosen.optimiser(n, self.epsilon or 3.0), chosen.averaging(plan.steps)
        done = fit(
            plan,
            model,
            chosen.head.records(material.train_x, material.train_y),
            optimiser=optimiser,
            ledger=ledger,
            run=run,
            averaging=averaging,
            seed=self.seed,
            checkpoint_every=block,
            on_progress=measure,
        ).steps
        if str(done) not in curve:  # stopped between the last step and its measurement
            measure(done, done)

        def price(step: Event | None, steps: int) -> dict[str, Any]:
            return _price(material.before, None if step is None else Repeated(step, steps), self.delta)

        return {
            "accuracy": curve[str(done)],
            "sound": price(plan.step_event, plan.steps),
            "claimed": price(plan.claimed_step, plan.steps),
            "noise_multiplier": plan.noise_multiplier,
            "steps": done,
            "batch": plan.sampler.expected_batch_size,
            "learning_rate": optimiser.learning_rate,
            "curve": [
                {"epoch": int(step) * plan.sampler.sample_rate, "accuracy": share, **price(plan.step_event, int(step))}
                for step, share in curve.items()
            ],
        }

    def __str__(self) -> str:
        changed = [f"{name}={value}" for name, value in self.settings]
        changed += ["shuffled"] if self.shuffled else []
        changed += [f"{self.records:,} records"] if self.records else []
        changed += [f"and {self.more}"] if self.more else []
        changed += [f"{self.validation:,} held out"] if self.validation else []
        changed += [f"simulated by {self.simulated:,} a step"] if self.simulated else []
        budget = "without noise" if self.epsilon is None else f"ε={self.epsilon:g}"
        return " ".join([self.recipe, "on", self.dataset, budget, *changed, f"seed {self.seed}"])


@dataclass(frozen=True)
class LastIterateTrial(RecipeTrial):
    """The same features by amplification by iteration: the data is clipped, and only the last iterate is released."""

    kind: ClassVar[str] = "last iterate"

    data_clip: float = 1.0
    passes: int = 10
    batch: int = 512

    def __str__(self) -> str:
        return f"last iterate of {super().__str__()}"

    def _train(self, chosen: DatasetRecipe, material: "_Material", run: Run, on_progress: Progress) -> Result:
        if self.epsilon is None or self.shuffled or self.simulated is not None:
            raise ValueError("iteration has noise and a fixed order: a budget is needed, and no draw of another kind")
        n = len(material.train_y)
        plan = LastIteratePlan.calibrated(
            n=n,
            batch=min(n, self.batch),
            epochs=self.passes,
            data_clip=self.data_clip,
            learning_rate=largest_learning_rate(self.data_clip),
            target_epsilon=self.epsilon,
            target_delta=self.delta,
            before=material.before,
        )
        ledger = material.ledger(self, plan.event, run)
        material = material.standardised(self, chosen, run, ledger)
        x = material.train_x.reshape(n, -1)
        weights = fit(
            plan,
            LinearClassifier(x.shape[1], material.classes),
            (x, material.train_y),
            ledger=ledger,
            run=run,
            seed=self.seed,
            on_progress=on_progress,
        ).weights
        return {
            "accuracy": material.accuracy(chosen, weights),
            "sound": _price(material.before, plan.event, self.delta),
            "claimed": _price(material.before, plan.claimed, self.delta),
            "noise_multiplier": plan.noise_multiplier,
            "steps": plan.steps,
            "batch": plan.batch,
            "learning_rate": plan.learning_rate,
        }


@dataclass(frozen=True)
class _Material:
    """What a trial has in hand before it trains."""

    train_x: NDArray[Any]
    train_y: NDArray[np.int64]
    test_x: NDArray[Any]
    test_y: NDArray[np.int64]
    classes: int
    moments: normalising.Moments | None

    @classmethod
    def of(cls, trial: RecipeTrial, chosen: DatasetRecipe, dataset: Dataset) -> "_Material":
        order = np.random.default_rng(0).permutation(len(dataset.train))
        held_out, train = np.sort(order[: trial.validation]), np.sort(order[trial.validation :][: trial.records])
        examined = dataset.train if trial.validation else dataset.test
        rows = held_out if trial.validation else np.arange(len(dataset.test))[: trial.test]
        train_x, train_y = _features(chosen, dataset.train.x, train), dataset.train.y[train]
        if trial.more is not None:
            more = further_examples(trial.more, dataset)
            more_x = _features(chosen, more.x, np.arange(len(more)))
            train_x, train_y = np.concatenate([train_x, more_x]), np.concatenate([train_y, more.y])
        return cls(
            train_x,
            train_y,
            _features(chosen, examined.x, rows),
            examined.y[rows],
            len(dataset.facts.classes or ()),
            chosen.moments,
        )

    @property
    def before(self) -> Event | None:
        return normalising.spent_before(self.moments)

    def standardised(self, trial: RecipeTrial, chosen: DatasetRecipe, run: Run, ledger: Ledger) -> "_Material":
        """By the recipe's private normalisation; without noise, by exact statistics, since ε is infinite anyway."""
        scale = None
        if chosen.moments is not None and trial.epsilon is None:
            ledger.spend(NonPrivate(), normalising.WHAT, seeded=True)
            scale = Standardised.of_public(self.train_x)
        elif chosen.moments is not None:
            scale = normalising.statistics(run, chosen.moments, self.train_x, ledger, trial.seed)
        train_x, test_x = (normalising.standardised(scale, x) for x in (self.train_x, self.test_x))
        return replace(self, train_x=train_x, test_x=test_x)

    def accuracy(self, chosen: DatasetRecipe, weights: Weights) -> float:
        scores = chosen.head.scores(weights, self.test_x, self.classes)
        return float(np.mean(scores.argmax(dim=1).numpy() == self.test_y))

    def ledger(self, trial: RecipeTrial, event: Event, run: Run) -> Ledger:
        """With the target where it can be kept: shuffled or simulated batches cost more, and no noise costs ∞."""
        if trial.epsilon is None or trial.shuffled or trial.simulated is not None:
            return Ledger(path=run.ledger)
        planned = [*normalising.planned(self.moments), (event, "training", "train")]
        return Ledger(trial.epsilon, trial.delta, path=run.ledger, planned=planned)


def settings(**changes: Any) -> tuple[tuple[str, Any], ...]:
    """Changes to a recipe's settings, sorted: equal changes make equal trials."""
    return tuple(sorted(changes.items()))


def further_examples(path: str, dataset: Dataset) -> Split:
    """More of the same kind, from the arrays x and y of an .npz file."""
    file = Path(path)
    with reading(file, ".npz"), np.load(file, allow_pickle=False) as content:
        if not {"x", "y"} <= set(content.files):
            raise DataError(f"{file} must hold the arrays x and y, not {', '.join(content.files) or 'nothing'}")
        x, y = content["x"], content["y"]
    if x.dtype != dataset.train.x.dtype or x.shape[1:] != dataset.facts.shape:
        wanted = f"{dataset.train.x.dtype} of shape {('n', *dataset.facts.shape)}"
        raise DataError(f"{file}: x must be {wanted}, not {x.dtype} of shape {x.shape}")
    return Split(x, check_labels(y, dataset.facts.classes or (), file))


def _features(chosen: DatasetRecipe, examples: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    if not chosen.slow_features or len(rows) <= _FEW:
        return as_array(chosen.features(examples[rows]))
    every = stored(chosen.features, examples)
    return every if len(rows) == len(every) else every[rows]


_loaded = lru_cache(maxsize=3)(load)


@lru_cache(maxsize=256)
def _price(before: Event | None, event: Event | None, delta: float) -> dict[str, Any]:
    """ε of the normalisation and the training together, and whose it is; None where there is none."""
    if event is None or NonPrivate() in leaves(event):
        return {"epsilon": None, "accountant": None}
    found = cost(event if before is None else Composed((before, event)), delta)
    return {"epsilon": found.epsilon, "accountant": found.accountant}
