"""Any nn.Module with its private data, to be trained by `fit`."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from sordino.gradients import (
    Choices,
    ClippedGradients,
    Clipping,
    Loss,
    keep_buffers,
    keep_random_state,
    narrow_operation,
)
from sordino.mechanisms import Streams
from sordino.training import probing
from sordino.training.augmentation import Augment, check_views, views_of
from sordino.training.building import built, load_into, require_memory, seed_of, tensors, words
from sordino.training.dpsgd import ClippedSum
from sordino.training.optimisers import Weights

_PIECE = 8


class ModuleTrainee:
    """The model that `build()` makes, the loss (one number an example), and arrays with a row for each record.

    `build` is called under a seed from the run's initialisation stream, so it may draw its weights, or load public
    ones. Inputs and targets are NumPy arrays, memory-mapped ones too, or tensors, or tuples or dicts of them; a step
    gathers its rows piece by piece, so a batch of any size takes bounded memory. Dropout and `augment` draw from the
    step's augmentation stream. Clipping, penalty, views and physical batch are the engine's (`ClippedGradients`). Its
    choices are measured, so they differ from run to run: to repeat an experiment under its seed, give them as well.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        loss: Loss,
        x: Any,
        y: Any,
        *,
        clipping: Clipping | None = None,
        l2_penalty: float = 0.0,
        augment: Augment | None = None,
        views: int = 1,
        physical_batch: int | None = None,
        choices: Choices | None = None,
    ) -> None:
        self._build, self._loss, self._x, self._y = build, loss, x, y
        lengths = {len(leaf) for leaf in _leaves(x) + _leaves(y)}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"inputs and targets must have one row for each record, not {sorted(lengths)} rows")
        self._n = lengths.pop()
        check_views(augment, views)
        self._augment, self._views, self._physical_batch, self._given = augment, views, physical_batch, choices
        self.model = built(build, 0)
        self._clipped = ClippedGradients(
            *(self.model, loss), clipping=clipping, l2_penalty=l2_penalty, views=views, physical_batch=physical_batch
        )
        self._device = next(iter(self.model.parameters())).device
        self._facts = {
            "model": words(self.model),
            "weights": {name: [str(value.dtype), *value.shape] for name, value in self.weights().items()},
            "trained": sorted(self.parameters),
            "loss": words(loss),
            "clipping": self._clipped.clipping.to_json(),
            "l2_penalty": l2_penalty,
            "augment": words(augment),
            "views": views,
        }

    @property
    def augmented(self) -> bool:
        """Whether it trains on random views of its examples."""
        return self._augment is not None

    @property
    def parameters(self) -> Weights:
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    def weights(self) -> Weights:
        return tensors(self.model)

    def load(self, weights: Weights) -> None:
        load_into(self.weights(), weights)

    def initialise(self, streams: Streams) -> None:
        self._start(seed_of(streams))

    def facts(self) -> dict[str, Any]:
        return self._facts

    def data(self) -> tuple[NDArray[Any], ...]:
        return tuple(_array(leaf) for leaf in _leaves(self._x) + _leaves(self._y))

    def choose(self, known: dict[str, Any] | None, expected_batch_size: int) -> dict[str, Any]:
        """Rules and chunks as before, or else those that are fastest on made-up rows like the records.

        No record is looked at, but where the model does not take made-up rows (`probing.prepare`). It starts the model
        anew, so that the check comes out the same whatever the model has been through.
        """
        require_memory(self.model, "the model")
        self._start(0)
        self._clipped.choices = self._usable(known)
        count = min(self._n, expected_batch_size)
        with self._random_state(0):
            probing.prepare(
                self._clipped, self.model, self._loss, self._rows, count, augment=self._augment, views=self._views
            )
        # Kernels of other devices may not repeat bit for bit: a token keeps any step there from being repeated.
        device = "cpu" if self._device.type == "cpu" else f"{self._device.type} {secrets.token_hex(8)}"
        return {"engine": self.choices.to_json(), "device": device}

    def narrow_operation(self) -> str | None:
        """What first gives less than double precision in a pass: of two records, types are seen."""
        x, y = self._rows(np.arange(min(2, self._n)))
        with self._random_state(0):
            seen = views_of(self._augment, self._views, x, np.random.default_rng(0))
            return narrow_operation(self.model, self._loss, seen, y, self._views)

    def clipped_sum(self, indices: NDArray[np.int64], l2_clip: float, augmentation: np.random.Generator) -> ClippedSum:
        """Σ over these examples of their clipped gradients; zeros for an empty batch.

        Guarantee: the engine's: one example more or less moves the sums by at most l2_clip, but for rounding.
        """
        piece = _PIECE * self.choices.physical_batch
        sums: Weights = {}
        norms = []
        with self._random_state(int(augmentation.integers(2**63))):
            for start in range(0, max(1, len(indices)), piece):
                x, y = self._rows(indices[start : start + piece])
                seen, last = views_of(self._augment, self._views, x, augmentation), start + piece >= len(indices)
                # Buffers that move, do so once a step: how many pieces a draw has must not show in them.
                with nullcontext() if last else keep_buffers(self.model):
                    found = self._clipped(seen, y, l2_clip=l2_clip)
                norms.append(found.norms)
                sums = {name: sums[name] + value if sums else value for name, value in found.sums.items()}
        return ClippedSum(sums, torch.cat(norms))

    @property
    def choices(self) -> Choices:
        """The engine's rules and chunks, once they are chosen."""
        if self._clipped.choices is None:
            raise ValueError("rules and chunks are chosen before the first sum: call choose")
        return self._clipped.choices

    def _usable(self, known: dict[str, Any] | None) -> Choices | None:
        try:
            before = Choices.from_json(known["engine"]) if known is not None else self._given
        except (KeyError, TypeError):
            return self._given
        fits = before is not None and self._physical_batch in (None, before.physical_batch)
        return before if fits else self._given

    def _rows(self, indices: NDArray[np.int64]) -> tuple[Any, Any]:
        def gathered(leaf: Any) -> Tensor:
            rows = leaf[torch.from_numpy(indices)] if isinstance(leaf, Tensor) else torch.from_numpy(leaf[indices])
            return rows.to(self._device)

        return pytree.tree_map(gathered, self._x), pytree.tree_map(gathered, self._y)

    def _start(self, seed: int) -> None:
        self.load(tensors(built(self._build, seed)))

    @contextmanager
    def _random_state(self, seed: int) -> Iterator[None]:
        """Dropout and its like under this seed (no noise of privacy comes from here), and the caller's state after.

        A model that draws from NumPy or Python, too, must draw the same when a step is repeated under its noise.
        """
        with keep_random_state({self._device}, seed):
            yield


def _leaves(data: Any) -> list[Any]:
    return pytree.tree_leaves(data)


def _array(leaf: Any) -> NDArray[Any]:
    if isinstance(leaf, Tensor):
        leaf = leaf.detach().cpu()
        leaf = leaf.view(torch.int16) if leaf.dtype == torch.bfloat16 else leaf  # NumPy has no such type
    return np.asarray(leaf)
