"""Record and replay: run a workflow on D, then on a neighbour D′ with every noisy output replayed from the first run.

What a differentially private program shows may depend on its records through the outputs of its mechanisms alone. With
those outputs replayed, two runs on neighbouring data must therefore agree in everything that can be seen: the order of
releases and their public parameters, messages, exit codes, and all files outside of private/. And what goes *into* a
mechanism may differ by no more than the sensitivity that its noise was calibrated for. Reference: Cebere, Erb,
Desfontaines, Bellet & Fitzsimons 2026, "Privacy in Theory, Bugs in Practice", whose tool is dp-recorder.

Each probe below measures what a mechanism is about to add noise to, by arithmetic of its own and not by the library's.
"""

import importlib
import inspect
import itertools
import math
import os
import pkgutil
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

import sordino
from sordino.budget import Composed, Event, Gaussian, Ledger, Pure, RepeatAndSelect, Repeated
from sordino.budget.entries import Entry
from sordino.budget.events import Except

Array = NDArray[np.float64]
_SLACK = 1e-4
"""Sums in single precision round: by so much of the sensitivity, and of the sum itself a hundredth of that."""
_CHANCE = 1e-7
"""Noise that is this unlikely under the law that was charged for is another noise."""


class Reading(NamedTuple):
    """A statistic that a mechanism adds noise to, and how far one record present or absent may move it."""

    value: Array
    sensitivity: float
    order: float = 2
    """Of the norm that the sensitivity is in."""
    noise: Array | None = None
    """What was added to it, in units of the standard deviation that was charged for; None where that is not seen."""


class Measured(NamedTuple):
    public: Any
    """Whatever else decides about the output: it must be the same for both datasets."""
    readings: list[Reading]
    event: Event


@dataclass
class Release:
    name: str
    measured: Measured
    output: Any
    noise: list[Array]
    """What was really added in this run, whatever was replayed, in units of what was charged for."""


Measure = Callable[[Mapping[str, Any], Any], Measured | None]
"""From the arguments of a call by name and its output; None where nothing private is released."""
Account = Callable[[], Iterable[Entry]]


@dataclass
class Recorder:
    """Takes down the releases of a run or, given those of an earlier run, replays them and compares."""

    earlier: list[Release] | None = None
    apart: int = 1
    """How many records come or go between the datasets: 1 for one zeroed out, 2 for one replaced."""
    same_noise: bool = True
    """Both runs draw the same noise, so it must come out the same; not where the fastest way is measured anew."""
    account: Account | None = None
    """The ledger that must have been charged for a release before it happens."""
    releases: list[Release] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _busy: bool = False
    _used: Counter[Event] = field(default_factory=Counter)

    def through(self, name: str, call: Callable[..., Any], measure: Measure) -> Callable[..., Any]:
        """The same function, watched; what it calls inside is not watched once more."""
        names = inspect.signature(call)

        def watched(*arguments: Any, **named: Any) -> Any:
            if self._busy:
                return call(*arguments, **named)
            bound = names.bind(*arguments, **named)
            bound.apply_defaults()
            with self._within():
                given = _copied(bound.arguments)
                output = call(*arguments, **named)
                return self._released(name, given, output, measure)

        return watched

    @contextmanager
    def _within(self) -> Iterator[None]:
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def unwatched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A function that works on public rows: whatever it draws concerns nobody."""

        def silent(*arguments: Any, **named: Any) -> Any:
            if self._busy:
                return call(*arguments, **named)
            with self._within():
                return call(*arguments, **named)

        return silent

    def _released(self, name: str, given: Mapping[str, Any], output: Any, measure: Measure) -> Any:
        number, before = len(self.releases), None
        if self.earlier is not None:
            if number >= len(self.earlier):
                self.problems.append(f"release {number + 1}, {name}, did not happen in the first run")
                return output
            before = self.earlier[number]
            if before.name != name:
                self.problems.append(f"release {number + 1} is {name} and was {before.name} in the first run")
                return output
        own = measure(given, output)
        if own is None:
            return output
        measured, noise = own, [each.noise for each in own.readings if each.noise is not None]
        if before is not None:
            output = _copied(before.output)
            measured = measure(given, output) or own
            if self.same_noise and not _alike(before.noise, noise):
                self.problems.append(f"{name}: what it adds to its statistic depends on the records")
        self._check_charged(name, measured.event)
        if before is not None:
            self._compare(name, before.measured, measured)
        self.releases.append(Release(name, measured, _copied(output), noise))
        return output

    def _check_charged(self, name: str, event: Event) -> None:
        if self.account is None:
            return
        self._used.update(dict(_leaves(event)))
        paid: Counter[Event] = Counter()
        for entry in self.account():
            for leaf, count in _leaves(entry.spent):
                paid[leaf] += count
        short = [leaf for leaf, count in self._used.items() if count > paid[leaf]]
        if short:
            times = self._used[short[0]]
            self.problems.append(f"{name}: {short[0]} has happened {times} times, charged {paid[short[0]]} times")

    def _compare(self, name: str, before: Measured, now: Measured) -> None:
        if repr(before.public) != repr(now.public):
            self.problems.append(f"{name}: public parameters differ: {before.public!r} and {now.public!r}")
        if len(before.readings) != len(now.readings):
            self.problems.append(f"{name}: other statistics are released")
        for one, other in zip(before.readings, now.readings, strict=False):
            if one.value.shape != other.value.shape or one.sensitivity != other.sensitivity:
                self.problems.append(f"{name}: shape or declared sensitivity depend on the records")
                continue
            distance = float(np.linalg.norm((one.value - other.value).ravel(), one.order))
            rounding = 1e-2 * _SLACK * float(np.abs(one.value).max(initial=0.0))
            if not distance <= self.apart * one.sensitivity * (1 + _SLACK) + rounding:
                self.problems.append(
                    f"{name}: the records move the statistic by {distance:.4g}, and its sensitivity is "
                    f"{one.sensitivity:.4g}, {self.apart} records apart"
                )

    def finish(self) -> list[str]:
        """All that was found, once the run is over."""
        if self.earlier is not None and len(self.releases) < len(self.earlier):
            self.problems.append(f"{len(self.releases)} releases, and {len(self.earlier)} in the first run")
        for name in dict.fromkeys(release.name for release in self.releases):
            self._check_noise(name)
        return list(dict.fromkeys(self.problems))

    def _check_noise(self, name: str) -> None:
        """The size of the noise of all releases of one kind, against the law that was charged for."""
        seen = [each.ravel() for release in self.releases if release.name == name for each in release.noise]
        if not seen:
            return
        noise = np.concatenate(seen)
        tail = stats.chi2(len(noise)).cdf(float((noise**2).sum()))
        if not _CHANCE < tail < 1 - _CHANCE:
            size = math.sqrt(float((noise**2).mean()))
            self.problems.append(f"{name}: the noise is {size:.3g} times what was charged for")


def _alike(one: list[Array], other: list[Array]) -> bool:
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(np.allclose(a, b, rtol=0, atol=1e-3) for a, b in pairs)


def _copied(value: Any) -> Any:
    """Arrays as they are now: training writes on its own."""
    match value:
        case torch.Tensor():
            return value.detach().clone()
        case np.ndarray():
            return value.copy()
        case tuple() if hasattr(value, "_fields"):
            return type(value)(*(_copied(each) for each in value))
        case list() | tuple():
            return type(value)(_copied(each) for each in value)
        case dict():
            return {name: _copied(each) for name, each in value.items()}
    return value


def _leaves(event: Event, often: float = 1) -> Iterator[tuple[Event, float]]:
    """Elementary events and how often a charge allows them: as often as one likes inside of a secret selection."""
    match event:
        case Composed():
            for part in event.events:
                yield from _leaves(part, often)
        case Repeated():
            yield from _leaves(event.event, often * event.count if event.count else 0)
        case RepeatAndSelect():
            yield from _leaves(event.event, math.inf if often else 0)
        case Except():
            yield from _leaves(event.event, often)
        case _:
            yield event, often


# What each mechanism adds noise to


def _flat(parts: Mapping[str, torch.Tensor]) -> Array:
    return np.concatenate([parts[name].detach().double().numpy().ravel() for name in sorted(parts)])


def _clipped(rows: Any, clip: float) -> Array:
    """Rows of norm at most clip, those with anything non-finite as zeros."""
    rows = np.asarray(rows, dtype=np.float64)
    rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)
    norms = np.array([math.hypot(*row) for row in rows])
    return rows * np.minimum(1.0, clip / np.where(norms > 0, norms, 1.0))[:, None]


def gradient_step(given: Mapping[str, Any], output: Any) -> Measured | None:
    plan, clip, clipped = given["plan"], given["l2_clip"], given["clipped"]
    if not plan.private:
        return None
    sums, mean = _flat(clipped.sums), _flat(output[0])
    noise = (mean * plan.sampler.expected_batch_size - sums) / (plan.noise_multiplier * clip)
    readings = [Reading(sums, clip, noise=noise)]
    if plan.quantile_clip is not None:
        readings.append(Reading(np.array([plan.quantile_clip.count(clipped.norms, clip)]), 0.5))
    shapes = [(name, tuple(clipped.sums[name].shape)) for name in sorted(clipped.sums)]
    return Measured((plan, clip, given["step"], shapes), readings, plan.step_event)


def pair_tables(given: Mapping[str, Any], output: Any) -> Measured:
    plan, codes = given["self"], given["codes"]
    last = len(plan.sizes) - 1
    weights, counts, told = [], [], []
    for a, b in itertools.combinations(range(last + 1), 2):
        table = np.zeros((plan.sizes[a], plan.sizes[b]))
        inside = (codes[:, a] >= 0) & (codes[:, a] < plan.sizes[a]) & (codes[:, b] >= 0) & (codes[:, b] < plan.sizes[b])
        np.add.at(table, (codes[inside, a], codes[inside, b]), 1)
        weights.append(plan.target_weight if b == last else 1.0)
        counts.append(weights[-1] * table.ravel())
        told.append(weights[-1] * output[a, b].ravel())
    sensitivity = math.hypot(*weights)
    value = np.concatenate(counts)
    noise = (np.concatenate(told) - value) / (plan.noise_multiplier * sensitivity)
    return Measured((plan, len(codes)), [Reading(value, sensitivity, noise=noise)], Gaussian(plan.noise_multiplier))


def channel_moments(given: Mapping[str, Any], output: Any) -> Measured:
    plan, n = given["self"], len(given["means"])
    sums = [_clipped(given[rows], clip).sum(axis=0) for rows, clip in _moments(plan)]
    mean, square = output[0], output[1] + output[0] ** 2
    readings = []
    for value, told, (_, clip) in zip(sums, (mean, square), _moments(plan), strict=True):
        noise = (told * n - value) / (plan.noise_multiplier * clip) if plan.sample_rate == 1 else None
        readings.append(Reading(value, clip, noise=noise))
    return Measured((plan, n), readings, plan.event)


def _moments(plan: Any) -> list[tuple[str, float]]:
    return [("means", plan.mean_clip), ("squares", plan.square_clip)]


def second_moments(given: Mapping[str, Any], output: Any) -> Measured:
    plan, rows = given["self"], _clipped(given["rows"], given["self"].l2_clip)
    readings = [Reading(rows.T @ rows, plan.l2_clip**2)]
    if plan.with_mean:
        readings.append(Reading(rows.sum(axis=0), plan.l2_clip))
    return Measured((plan, rows.shape), readings, plan.event)


def quantile(given: Mapping[str, Any], output: Any) -> Measured:
    """How far each possible answer is from the quantile, on a grid: what the exponential mechanism weighs."""
    share, (low, high) = given["quantile"], given["bounds"]
    values = np.asarray(given["values"], dtype=np.float64)
    present = np.clip(values[~np.isnan(values)], low, high)
    answers = np.linspace(low, high, 1001)
    below, up_to = ((compare(present, answers[:, None])).sum(axis=1) for compare in (np.less, np.less_equal))
    wanted = share * len(present)
    distance = np.maximum(0.0, np.maximum(below - wanted, wanted - up_to))
    reading = Reading(distance, max(share, 1 - share), math.inf)
    public = (share, given["bounds"], given["epsilon"], given["adjacency"])
    return Measured(public, [reading], Pure(given["epsilon"]))


def clipped_sum(given: Mapping[str, Any], output: Any) -> Measured:
    clip, sigma = given["l2_clip"], given["noise_multiplier"]
    value = _clipped(given["rows"], clip).sum(axis=0)
    reading = Reading(value, clip, noise=(output - value) / (sigma * clip))
    return Measured((clip, sigma, given["rows"].shape), [reading], Gaussian(sigma))


def accuracy(given: Mapping[str, Any], output: Any) -> Measured:
    correct, sigma = np.asarray(given["correct"], dtype=bool), given["noise_multiplier"]
    count = np.array([float(correct.sum())])
    noise = (output * len(correct) - count) / sigma if 0 < output < 1 else None
    return Measured((sigma, len(correct)), [Reading(count, 1.0, noise=noise)], Gaussian(sigma))


def trial_score(given: Mapping[str, Any], output: Any) -> Measured:
    correct, law = np.asarray(given["correct"], dtype=bool), given["noise"]
    count = np.array([float(correct.sum())])
    scale = law.noise_multiplier * (1 if isinstance(law, Gaussian) else math.sqrt(2))
    return Measured((law, len(correct)), [Reading(count, 1.0, noise=(output * len(correct) - count) / scale)], law)


def logistic(given: Mapping[str, Any], output: Any) -> Measured:
    """At the weights that are released, the gradient of all records' losses; noise is what balances it."""
    plan = given["plan"]
    x = np.asarray(given["x"], dtype=np.float64)
    rows = _clipped(np.concatenate([x, np.ones((len(x), 1))], axis=1), plan.data_norm) / plan.data_norm
    every = np.atleast_2d(output) * plan.data_norm
    wanted = [1] if plan.classes == 2 else range(plan.classes)
    readings = []
    for weights, label in zip(every, wanted, strict=True):
        slopes = 1 / (1 + np.exp(-rows @ weights)) - (np.asarray(given["y"]) == label)
        value = slopes @ rows
        sigma = getattr(plan.perturbation, "noise_multiplier", None)
        noise = None if sigma is None else (-value - plan.ridge * weights) / sigma
        readings.append(Reading(value, 1.0, noise=noise))
    return Measured((plan, x.shape), readings, plan.event)


def subset_trainings(given: Mapping[str, Any], output: Any) -> Measured:
    """`fit_many` of a private selection: each subset of the features is one logistic regression of its own."""
    plan, norms = given["plan"], given["data_norms"]
    x = np.asarray(given["x"], dtype=np.float64)
    rows = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    readings = []
    for mask, norm, weights in zip(given["masks"], norms, output[:, 0], strict=True):
        unit = _clipped(rows * [*mask, True], norm) / norm
        slopes = 1 / (1 + np.exp(-unit @ (weights * norm))) - (np.asarray(given["y"]) == 1)
        value = slopes @ unit
        here = np.array([*mask, True])
        noise = (-value - plan.ridge * weights * norm)[here] / plan.perturbation.noise_multiplier
        readings.append(Reading(value, 1.0, noise=noise))
    return Measured((plan, given["masks"].tolist(), x.shape), readings, Repeated(plan.event, len(readings)))


def linear(given: Mapping[str, Any], output: Any) -> Measured:
    plan = given["plan"]
    low, high = plan.target_range
    x, y = (np.asarray(given[name], dtype=np.float64) for name in "xy")
    rows = _clipped(np.concatenate([x, np.ones((len(x), 1))], axis=1), plan.data_norm) / plan.data_norm
    rows = np.where(np.isfinite(y)[:, None], rows, 0.0)
    targets = 2 * (np.clip(np.nan_to_num(y), low, high) - low) / (high - low) - 1
    gram = rows.T @ rows
    least = np.linalg.eigvalsh(gram)[:1]
    readings = [Reading(value, 1.0) for value in (gram, least, rows.T @ targets)]
    return Measured((plan, x.shape), readings, plan.event)


# Where they are called


def watch(patch: pytest.MonkeyPatch, recorder: Recorder, extra: Mapping[str, Measure] | None = None) -> None:
    """Send every release of the library, and of `extra` functions by "module:name", through the recorder."""
    functions: dict[str, Measure] = {
        "sordino.training.dpsgd:release": gradient_step,
        "sordino.mechanisms.quantile:draw_quantile": quantile,
        "sordino.mechanisms.gaussian:clipped_gaussian_sum": clipped_sum,
        "sordino.mechanisms.trials:noisy_accuracy": accuracy,
        "sordino.mechanisms.trials:uncharged_accuracy": trial_score,
        "sordino.training.convex.logistic:fit_logistic": logistic,
        "sordino.training.convex.linear_regression:fit_linear": linear,
        **(extra or {}),
    }
    methods: dict[str, Measure] = {
        "sordino.mechanisms.contingency:PairTables": pair_tables,
        "sordino.mechanisms.moments:ChannelMoments": channel_moments,
        "sordino.mechanisms.moments:SecondMoments": second_moments,
    }
    for place, measure in functions.items():
        module, name = place.split(":")
        original = getattr(importlib.import_module(module), name)
        everywhere(patch, original, recorder.through(name, original, measure))
    for place, measure in methods.items():
        module, name = place.split(":")
        kind = getattr(importlib.import_module(module), name)
        patch.setattr(kind, "release", recorder.through(name, kind.release, measure))
    _watch_subsets(patch, recorder)
    _watch_noisy_weights(patch, recorder)
    tables = importlib.import_module("sordino.selection.table_models")
    for kind in (tables.SgdTraining, tables.LogisticTraining):
        patch.setattr(kind, "rehearse", recorder.unwatched(kind.rehearse))


def _watch_noisy_weights(patch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    """Weights drawn from a distribution: replayed; how far a record moves their means is the white-box audit's."""
    place = importlib.import_module("sordino.training.weight_distributions")
    draw = place.draw_weights

    def draw_weights(plan: Any, standing: Any, streams: Any, parameters: Any) -> None:
        def drawn() -> dict[str, torch.Tensor]:
            draw(plan, standing, streams, parameters)
            return _copied(dict(parameters))

        def public(given: Mapping[str, Any], output: Any) -> Measured:
            return Measured((plan, standing.done), [], Composed(()))

        for name, value in recorder.through("draw_weights", drawn, public)().items():
            parameters[name].copy_(value)

    everywhere(patch, draw, draw_weights)


def _watch_subsets(patch: pytest.MonkeyPatch, recorder: Recorder) -> None:
    """PAFS trains and scores in one closure: its scores are counted again from the weights that were released."""
    place = importlib.import_module("sordino.selection.subset_search")
    trained: list[Array] = []
    fit_many, build = place.fit_many, place.logistic_fitness
    watched = recorder.through("fit_many", fit_many, subset_trainings)

    def training(*arguments: Any, **named: Any) -> Array:
        # Inside of a score that is watched, yet a release of its own.
        recorder._busy = False
        try:
            trained.append(watched(*arguments, **named))
        finally:
            recorder._busy = True
        return trained[-1]

    def logistic_fitness(trials: Any, train: Any, validation: Any, *more: Any, **named: Any) -> Any:
        fitness = build(trials, train, validation, *more, **named)
        held, labels = validation

        def scores(given: Mapping[str, Any], output: Any) -> Measured:
            margins = np.concatenate([held, np.ones((len(held), 1))], axis=1) @ trained[-1][:, 0].T
            correct = ((margins > 0) == labels[:, None]).sum(axis=0).astype(float)
            noise = (output * len(held) - correct) / trials.score_noise
            event = Repeated(Gaussian(trials.score_noise), len(correct))
            public = (trials, given["masks"].tolist(), len(held))
            # Each subset is a release of its own: none may move by more than 1.
            return Measured(public, [Reading(correct, 1.0, math.inf, noise)], event)

        return recorder.through("subset scores", fitness, scores)

    patch.setattr(place, "fit_many", training)
    everywhere(patch, build, logistic_fitness)


def everywhere(patch: pytest.MonkeyPatch, original: object, replacement: object) -> None:
    """Put a function in the place of another in every module that has imported it, those of these tests included."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "sordino" or ".replay." in name:
            for attribute, value in list(vars(module).items()):
                if value is original:
                    patch.setattr(module, attribute, replacement)


def import_all() -> None:
    """A module that is first imported while functions are replaced would keep the replacements for good."""
    for found in pkgutil.walk_packages(sordino.__path__, "sordino."):
        if not found.name.startswith("sordino.papers") and not found.name.endswith("__main__"):
            importlib.import_module(found.name)


@dataclass
class _System:
    """The module os with another source of keys."""

    urandom: Callable[[int], bytes]

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


def fix_everything_else(patch: pytest.MonkeyPatch) -> None:
    """The same keys in every run, bound to no data, and the same time: only the records are left to differ."""
    keys, seeds, default_rng = itertools.count(), itertools.count(), np.random.default_rng
    patch.setattr(np.random, "default_rng", lambda seed=None: default_rng((7, next(seeds)) if seed is None else seed))
    streams = importlib.import_module("sordino.mechanisms.streams")
    # Of this module's alone: others may ask the system for a number when they are first imported.
    patch.setattr(streams, "os", _System(lambda size: default_rng((12, next(keys))).bytes(size)))
    everywhere(patch, streams.data_tag, lambda secret, *arrays: "0" * 64)
    records = importlib.import_module("sordino.data.records")
    everywhere(patch, records.array_fingerprint, lambda key, parts: "0" * 64)
    patch.setattr("sordino.data.image_folders.ImageFiles.fingerprint", lambda files, key: "0" * 64)
    patch.setattr(os, "fsync", lambda handle: None)  # nothing is killed here, and disks are slow
    patch.setattr("sordino.budget.ledger._now", lambda: "2026-01-01T00:00:00+00:00")
    names = itertools.count()
    patch.setattr("sordino.budget.ledger.uuid4", lambda: uuid.UUID(int=next(names)))


@contextmanager
def watching(recorder: Recorder, extra: Mapping[str, Measure] | None = None) -> Iterator[Recorder]:
    """Everything inside is recorded, or replayed."""
    import_all()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as registry:
        patch.setenv("SORDINO_STATE", registry)  # ledgers of several runs share their names, and are not copies
        fix_everything_else(patch)
        watch(patch, recorder, extra)
        yield recorder


def entries_of(path: Any) -> Account:
    """Those of the ledger in a file, as they are when they are asked for."""
    return lambda: Ledger.open(path).entries if path.exists() else ()
