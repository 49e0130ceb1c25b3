"""Canaries in a real training: synthetic records, each in or out by a fair coin, from which one run can be audited.

A canary's gradient is the clip along one parameter of its own, drawn at random (Steinke, Nasr & Jagielski 2023 call it
a Dirac canary): the largest that the mechanism allows, orthogonal to every other canary's, the same for any model, and
free to compute, where input canaries would be clipped to whatever the model makes of them. Who sees the noisy gradients
scores it by what they sum to there. Canaries have no person behind them, and count as records of the plan.
"""

import json
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.data import ArrayRecords, Records, array_fingerprint
from sordino.mechanisms import Stream, Streams, bound_streams, new_secret, secret_from_seed
from sordino.runs import Run, RunError
from sordino.training.dpsgd import ClippedSum, Trainable, TrainingState
from sordino.training.optimisers import Optimiser, State, Weights

# The secret is no `Key`: nothing is charged or replayed under it, and it outlives the run, as a lost end needs the same
# coins again. The run's own key is bound to it, by the fingerprint of `CanaryRecords`.
_FILE = "canaries.json"
_STATE = "canaries"


@dataclass(frozen=True)
class Canaries:
    """So many canaries, with coins and places that follow from a secret."""

    count: int
    secret: str = field(repr=False)

    @cached_property
    def coins(self) -> NDArray[np.bool_]:
        return self.streams.generator(Stream.SAMPLING).random(self.count) < 0.5

    def places(self, parameters: Weights) -> dict[str, tuple[Tensor, Tensor]]:
        """By parameter, which canaries live in it, and where in it when it is flattened."""
        return _places(self, tuple((name, parameters[name].numel()) for name in sorted(parameters)))

    @property
    def streams(self) -> Streams:
        # Nothing is charged by these, so nobody has to vouch for the secret.
        return bound_streams(bytes.fromhex(self.secret), {"for": "canaries"}, predictable=True)


@lru_cache(maxsize=2)
def _places(canaries: Canaries, sizes: tuple[tuple[str, int], ...]) -> dict[str, tuple[Tensor, Tensor]]:
    # Kept: every step asks for them.
    total = sum(size for _, size in sizes)
    _check_room(canaries.count, total)
    flat = canaries.streams.generator(Stream.INITIALISATION).choice(total, canaries.count, replace=False)
    found, start = {}, 0
    for name, size in sizes:
        here = np.flatnonzero((flat >= start) & (flat < start + size))
        found[name] = torch.from_numpy(here), torch.from_numpy(flat[here] - start)
        start += size
    return found


def check_count(count: int, parameters: Weights) -> None:
    """Refuse more canaries than a model with these parameters has room for."""
    _check_room(count, sum(value.numel() for value in parameters.values()))


def _check_room(count: int, total: int) -> None:
    if count > total:
        raise ValueError(f"each canary needs a parameter of its own, and the model has {total:,}: ask for fewer")


def begin_or_resume(run: Run, count: int, seed: int | None) -> Canaries:
    """The run's canaries: those that it has, or new ones that are kept before anything is drawn."""
    if (run.private / _FILE).exists():
        return Canaries(count, str(_read(run)["secret"]))
    secret = new_secret() if seed is None else secret_from_seed(seed)
    run.write_private(_FILE, {"secret": secret.hex()})
    return Canaries(count, secret.hex())


def keep_outcome(run: Run, canaries: Canaries, state: TrainingState) -> None:
    """What the audit needs, beside the run in its private part: coins and scores."""
    scores = state.optimiser[_STATE]["score"].tolist()
    run.write_private(_FILE, {"secret": canaries.secret, "coins": canaries.coins.tolist(), "scores": scores})


def outcome(run: Run) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Coins and scores of a finished run."""
    content = _read(run)
    try:
        coins, scores = np.array(content["coins"], dtype=bool), np.array(content["scores"], dtype=np.float64)
    except (KeyError, ValueError, TypeError):
        coins, scores = np.empty(0, dtype=bool), np.empty(0)
    if not (coins.shape == scores.shape and coins.ndim == 1 and len(coins) and np.isfinite(scores).all()):
        raise RunError(f"{run.private / _FILE} does not hold the coins and scores of canaries: it is damaged")
    return coins, scores


def _read(run: Run) -> dict[str, Any]:
    try:
        content = json.loads((run.private / _FILE).read_text())
        bytes.fromhex(content["secret"])
        return dict(content)
    except FileNotFoundError:
        raise RunError(
            f"{run.private} has lost its canaries: without their coins this training cannot be audited"
        ) from None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise RunError(f"{run.private / _FILE} cannot be read: it is damaged") from None


class CanaryRecords:
    """Records with canaries behind them; the canaries have no content, only coins."""

    def __init__(self, real: Records, canaries: Canaries) -> None:
        self.real, self.canaries = real, canaries

    def __len__(self) -> int:
        return len(self.real) + self.canaries.count

    def batch(self, indices: NDArray[np.int64]) -> tuple[Any, Any]:
        return self.real.batch(indices[indices < len(self.real)])

    def fingerprint(self, key: bytes) -> str:
        """First which records are canaries, with their secret's coins: a run is resumed with the same ones only."""
        kinds = np.concatenate([np.zeros(len(self.real), np.int8), 1 + self.canaries.coins.astype(np.int8)])
        secret = np.frombuffer(bytes.fromhex(self.canaries.secret), np.uint8)
        real = self.real
        content = (real.x, real.y) if isinstance(real, ArrayRecords) else (real.fingerprint(key),)
        return array_fingerprint(key, (kinds, secret, *content))


class WithCanaries:
    """A model that trains on `CanaryRecords`.

    Guarantee: the model's own: a canary that is in adds a vector of norm l2_clip, one that is out is absent:
    it adds nothing to the sums and has no norm, so that it does not count in a quantile clip either.
    """

    def __init__(self, model: Trainable, canaries: Canaries) -> None:
        self._inner, self._canaries = model, canaries

    @property
    def parameters(self) -> Weights:
        return self._inner.parameters

    def weights(self) -> Weights:
        return self._inner.weights()

    def load(self, weights: Weights) -> None:
        self._inner.load(weights)

    def initialise(self, streams: Streams) -> None:
        self._inner.initialise(streams)

    def facts(self) -> dict[str, Any]:
        return self._inner.facts() | {"canaries": self._canaries.count}

    def choose(self, records: Any, known: dict[str, Any] | None, expected_batch_size: int) -> dict[str, Any]:
        return self._inner.choose(records.real, known, min(expected_batch_size, len(records.real)))

    def narrow_operation(self, records: Any) -> str | None:
        found: str | None = getattr(self._inner, "narrow_operation", lambda records: None)(records.real)
        return found

    def clipped_sum(
        self, records: Any, indices: NDArray[np.int64], l2_clip: float, augmentation: np.random.Generator
    ) -> ClippedSum:
        count = len(records.real)
        real, drawn = indices[indices < count], indices[indices >= count] - count
        present = torch.from_numpy(drawn[self._canaries.coins[drawn]])
        sums, norms = self._inner.clipped_sum(records.real, real, l2_clip, augmentation)
        added = torch.zeros(self._canaries.count, dtype=torch.float64).index_fill_(0, present, l2_clip)
        sums = dict(sums)
        for name, (which, where) in self._canaries.places(self.parameters).items():
            if len(which):
                flat = sums[name].flatten().clone()
                flat[where.to(flat.device)] += added[which].to(flat)
                sums[name] = flat.reshape(sums[name].shape)
        return ClippedSum(sums, torch.cat([norms, added[present].to(norms)]))


@dataclass(frozen=True)
class Scoring:
    """An optimiser that also sums, for each canary, what the noisy gradients are at its place; all from releases."""

    inner: Optimiser
    canaries: Canaries

    def to_json(self) -> dict[str, Any]:
        return self.inner.to_json() | {"canaries": self.canaries.count}

    def start(self, parameters: Weights) -> State:
        return self.inner.start(parameters) | {_STATE: {"score": torch.zeros(self.canaries.count, dtype=torch.float64)}}

    def step(self, parameters: Weights, state: State, gradient: Weights, step: int, noise_deviation: float) -> None:
        own = state.pop(_STATE)  # an optimiser of torch takes all that is left as its own
        score = own["score"]
        for name, (which, where) in self.canaries.places(parameters).items():
            value = gradient[name].flatten()
            score[which] += value[where.to(value.device)].to(score)
        self.inner.step(parameters, state, gradient, step, noise_deviation)
        state[_STATE] = own
