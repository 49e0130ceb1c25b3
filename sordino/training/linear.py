"""A linear classifier on stored vectors, whose clipped gradients cost no more than plain ones.

The gradient of the cross-entropy of one example is the outer product of its residual p − y and its input [x; 1], so
its norm is ‖[x; 1]‖·‖p − y‖: no per-example gradient is ever formed, and ‖[x; 1]‖ does not change between epochs.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from sordino.data import Records, in_memory
from sordino.features import without_warning
from sordino.gradients import full_precision
from sordino.mechanisms import Streams
from sordino.training.dpsgd import ClippedSum

_LARGEST_NORM, _LEAST_FACTOR = 1e18, 1e-20
_BLOCK = 4096
_PIECE_BYTES = 2**22


class LinearClassifier:
    """Multinomial logistic regression from vectors of this width to so many classes, with integer labels.

    In single precision, or with `double` in double precision, as an exact plan needs it. It starts at zero: the loss is
    convex, so no symmetry needs breaking.

    >>> LinearClassifier(4, 3).weights()["weight"].shape
    torch.Size([3, 4])
    """

    def __init__(self, width: int, classes: int, *, double: bool = False) -> None:
        self.width, self.classes = width, classes
        self._dtype = torch.float64 if double else torch.float32
        self._known: Prepared | None = None
        self.parameters = self._zeros()

    def facts(self) -> dict[str, Any]:
        """What the model is, for binding a run to it."""
        double = {"double": True} if self._dtype == torch.float64 else {}
        return {"model": "linear", "classes": self.classes, "width": self.width, **double}

    def initialise(self, streams: Streams) -> None:
        self.parameters = self._zeros()

    def _zeros(self) -> dict[str, Tensor]:
        shapes = {"weight": (self.classes, self.width), "bias": (self.classes,)}
        return {name: torch.zeros(shape, dtype=self._dtype) for name, shape in shapes.items()}

    def weights(self) -> dict[str, Tensor]:
        return self.parameters

    def load(self, weights: dict[str, Tensor]) -> None:
        self.parameters = weights

    def choose(self, records: Records, known: dict[str, Any] | None, expected_batch_size: int) -> dict[str, Any]:
        """Nothing to choose: the closed form is the only way. Records of another shape are refused."""
        self.prepared(records)
        return {}

    def prepared(self, records: Records) -> "Prepared":
        """The records as the closed form takes them; refused if their shapes or labels are not the model's."""
        if self._known is None or self._known.records is not records:
            self._known = self._prepare(records)
        return self._known

    @without_warning
    def _prepare(self, records: Records) -> "Prepared":
        x, y = in_memory(records)
        vectors = torch.from_numpy(np.ascontiguousarray(x, dtype=str(self._dtype).removeprefix("torch.")))
        labels = np.asarray(y)
        if vectors.shape != (len(records), self.width) or labels.shape != (len(records),):
            shapes = f"{tuple(vectors.shape)} and {labels.shape}"
            raise ValueError(f"expected vectors (n, {self.width}) and n labels, not {shapes}")
        check_labels(labels, self.classes)
        # One that is not finite, or too large for float32 to clip exactly, has a norm of infinity and adds zero.
        # Block by block: in double precision all of them would take twice their own memory again.
        parts = [torch.linalg.vector_norm(each, dim=1, dtype=torch.float64) for each in vectors.split(_BLOCK)]
        norms = torch.cat(parts).square().add(1).sqrt()
        norms = torch.where(norms < _LARGEST_NORM, norms, torch.inf)
        rows = max(1, _PIECE_BYTES // (vectors.element_size() * max(1, self.width)))
        own_labels = torch.from_numpy(np.ascontiguousarray(labels, dtype=np.int64))
        return Prepared(records, vectors, own_labels, norms, vectors.new_empty(rows, self.width))

    def clipped_sum(
        self, records: Records, indices: NDArray[np.int64], l2_clip: float, augmentation: Generator | None = None
    ) -> ClippedSum:
        """Σ over these examples of g·min(1, l2_clip/‖g‖); zeros for an empty batch.

        Guarantee: one example more or less moves the sum by at most l2_clip, but for rounding.
        """
        weight, bias = (torch.zeros_like(self.parameters[name]) for name in ("weight", "bias"))
        known = self.prepared(records)
        parts = torch.from_numpy(indices).split(len(known.held))
        pieces = [self._piece(known, rows, l2_clip, weight, bias) for rows in parts]
        return ClippedSum({"weight": weight, "bias": bias}, torch.cat(pieces))

    def _piece(self, known: "Prepared", rows: Tensor, l2_clip: float, weight: Tensor, bias: Tensor) -> Tensor:
        """Adds these examples' part to the sums, and gives their gradients' norms."""
        # Into memory that is kept, and so little that it stays in the cache: fresh pages cost more than the products.
        inputs = torch.index_select(known.vectors, 0, rows, out=known.held[: len(rows)])
        residuals = torch.softmax(linear_scores(self.parameters, inputs), dim=1)
        # p − 1 would lose all digits where p is nearly 1: the residuals of an example sum to zero.
        own = torch.arange(len(rows)), known.labels[rows]
        residuals[own] = 0
        residuals[own] = -residuals.sum(dim=1)
        # In double precision: squares of small residuals vanish in float32, and with them the clip of a large input.
        norms: Tensor = known.norms[rows] * torch.linalg.vector_norm(residuals, dim=1, dtype=torch.float64)
        norms = norms.to(inputs.dtype)
        factors = (l2_clip / norms).clamp(max=1)
        # A factor near the end of float32 would be rounded beyond use, and the clip with it.
        usable = torch.isfinite(norms) & (factors > _LEAST_FACTOR)
        if not bool(usable.all()):
            # Zero times infinity is not zero: take unusable examples out of both factors of the product.
            inputs = torch.where(usable[:, None], inputs, 0)
            residuals = torch.where(usable[:, None], residuals, 0)
            factors = torch.where(usable, factors, 0)
        residuals *= factors[:, None]
        with full_precision():
            weight.addmm_(residuals.T, inputs)
        bias += residuals.sum(dim=0)
        return norms


class Prepared(NamedTuple):
    """What the closed form needs of records, worked out once."""

    records: Records
    vectors: Tensor
    labels: Tensor
    norms: Tensor
    """‖[x; 1]‖ of each."""
    held: Tensor
    """Memory for the rows of a piece."""


def linear_scores(parameters: dict[str, Tensor], vectors: Tensor) -> Tensor:
    """Scores of each class for each vector."""
    return torch.addmm(parameters["bias"], vectors, parameters["weight"].T)


def check_labels(labels: NDArray[Any], classes: int) -> None:
    """Refuse a label that is none of the classes by its row: torch would do so when it is drawn, and quote it."""
    # Said this way round, a label that is not a number at all is outside too.
    outside = np.flatnonzero(~((labels >= 0) & (labels < classes) & (labels == np.floor(labels))))
    if len(outside):
        raise ValueError(f"the label of row {outside[0] + 1} is not among the {classes} classes")
