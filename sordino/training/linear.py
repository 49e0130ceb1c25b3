"""A linear classifier on stored vectors, whose clipped gradients cost no more than plain ones.

The gradient of the cross-entropy of one example is the outer product of its residual p − y and its input [x; 1], so
its norm is ‖[x; 1]‖·‖p − y‖: no per-example gradient is ever formed, and ‖[x; 1]‖ does not change between epochs.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.features import without_warning
from sordino.gradients import full_precision
from sordino.mechanisms import Streams
from sordino.training.dpsgd import ClippedSum

_LARGEST_NORM, _LEAST_FACTOR = 1e18, 1e-20
_PIECE_BYTES = 2**22


class LinearClassifier:
    """Multinomial logistic regression on (n, d) vectors with integer labels below `classes`.

    In single precision, or with `double` in double precision, as an exact plan wants it.
    """

    @without_warning
    def __init__(
        self, vectors: NDArray[np.floating], labels: NDArray[np.int64], classes: int, *, double: bool = False
    ) -> None:
        if vectors.ndim != 2 or labels.shape != (len(vectors),):
            raise ValueError(f"expected vectors (n, d) and n labels, not {vectors.shape} and {labels.shape}")
        check_labels(labels, classes)
        self._vectors = torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float64 if double else np.float32))
        self._labels = torch.from_numpy(np.ascontiguousarray(labels, dtype=np.int64))
        # A vector that is not finite, or too large for float32 to clip exactly, has a norm of infinity and adds zero.
        norms = torch.linalg.vector_norm(self._vectors, dim=1, dtype=torch.float64).square().add(1).sqrt()
        self._norms = torch.where(norms < _LARGEST_NORM, norms, torch.inf)
        rows = max(1, _PIECE_BYTES // (self._vectors.element_size() * max(1, vectors.shape[1])))
        self._held = self._vectors.new_empty(rows, vectors.shape[1])
        self._classes = classes
        self.parameters = self._zeros()

    def facts(self) -> dict[str, Any]:
        """What the model is, for binding a run to it."""
        double = {"double": True} if self._vectors.dtype == torch.float64 else {}
        return {"model": "linear", "classes": self._classes, "width": self._vectors.shape[1], **double}

    def initialise(self, streams: Streams) -> None:
        """Start at zero: the loss is convex, so no symmetry needs breaking."""
        self.parameters = self._zeros()

    def _zeros(self) -> dict[str, Tensor]:
        width = self._vectors.shape[1]
        return {"weight": self._vectors.new_zeros(self._classes, width), "bias": self._vectors.new_zeros(self._classes)}

    def data(self) -> tuple[NDArray[np.floating], NDArray[np.int64]]:
        """The private arrays, for binding a run to them."""
        return self._vectors.numpy(), self._labels.numpy()

    def weights(self) -> dict[str, Tensor]:
        return self.parameters

    def load(self, weights: dict[str, Tensor]) -> None:
        self.parameters = weights

    def choose(self, known: dict[str, Any] | None, expected_batch_size: int) -> dict[str, Any]:
        """Nothing to choose: the closed form is the only way."""
        return {}

    def clipped_sum(
        self, indices: NDArray[np.int64], l2_clip: float, augmentation: np.random.Generator | None = None
    ) -> ClippedSum:
        """Σ over these examples of g·min(1, l2_clip/‖g‖); zeros for an empty batch.

        Guarantee: one example more or less moves the sum by at most l2_clip, but for rounding.
        """
        weight, bias = (torch.zeros_like(self.parameters[name]) for name in ("weight", "bias"))
        pieces = [self._piece(rows, l2_clip, weight, bias) for rows in torch.from_numpy(indices).split(len(self._held))]
        return ClippedSum({"weight": weight, "bias": bias}, torch.cat(pieces))

    def _piece(self, rows: Tensor, l2_clip: float, weight: Tensor, bias: Tensor) -> Tensor:
        """Adds these examples' part to the sums, and gives their gradients' norms."""
        # Into memory that is kept, and so little that it stays in the cache: fresh pages cost more than the products.
        inputs = torch.index_select(self._vectors, 0, rows, out=self._held[: len(rows)])
        residuals = torch.softmax(linear_scores(self.parameters, inputs), dim=1)
        # p − 1 would lose all digits where p is nearly 1: the residuals of an example sum to zero.
        own = torch.arange(len(rows)), self._labels[rows]
        residuals[own] = 0
        residuals[own] = -residuals.sum(dim=1)
        # In double precision: squares of small residuals vanish in float32, and with them the clip of a large input.
        norms: Tensor = self._norms[rows] * torch.linalg.vector_norm(residuals, dim=1, dtype=torch.float64)
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


def linear_scores(parameters: dict[str, Tensor], vectors: Tensor) -> Tensor:
    """Scores of each class for each vector."""
    return torch.addmm(parameters["bias"], vectors, parameters["weight"].T)


def check_labels(labels: NDArray[Any], classes: int) -> None:
    """Refuse a label that is none of the classes by its row: torch would do so when it is drawn, and quote it."""
    # Said this way round, a label that is not a number at all is outside too.
    outside = np.flatnonzero(~((labels >= 0) & (labels < classes) & (labels == np.floor(labels))))
    if len(outside):
        raise ValueError(f"the label of row {outside[0] + 1} is not among the {classes} classes")
