"""Fully connected networks on stored vectors, whose clipped gradients cost little more than plain ones.

The gradient of one example's loss by a dense layer is the outer product of δ, the loss's derivative by the layer's
outputs, and [h; 1], the layer's inputs: its squared norm is ‖δ‖²·(‖h‖² + 1), and no per-example gradient is formed. It
is for small batches, where the hooks by which the general engine (`ModuleTrainee`) finds its rules take most of a step.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.gradients.precision import unshortened
from sordino.mechanisms.streams import Streams
from sordino.training.building import built, load_into, seed_of, tensors, words
from sordino.training.dpsgd import ClippedSum
from sordino.training.optimisers import Weights

_LARGEST_NORM, _LEAST_FACTOR = 1e18, 1e-20
_PIECE = 2048
"""Rows at a time: a batch of any size takes bounded memory."""

Slope = Callable[[Tensor, Tensor], Tensor]
"""The derivative of each example's loss by its scores (B, k), given its target."""

_FORWARD: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.ReLU: torch.relu_,
    nn.Tanh: torch.tanh_,
    nn.Sigmoid: torch.sigmoid_,
}
_BACKWARD: dict[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {
    nn.ReLU: lambda slope, output: torch.ops.aten.threshold_backward(slope, output, 0),
    nn.Tanh: torch.ops.aten.tanh_backward,
    nn.Sigmoid: torch.ops.aten.sigmoid_backward,
}
"""From the derivative by an activation's outputs, and these outputs, to that by its inputs."""


def softmax_slope(scores: Tensor, labels: Tensor) -> Tensor:
    """Of the cross-entropy of integer labels."""
    slopes = torch.softmax(scores, dim=1)
    # p − 1 would lose all digits where p is nearly 1: the slopes of an example sum to zero.
    own = labels[:, None]
    slopes.scatter_(1, own, 0)
    return slopes.scatter_(1, own, -slopes.sum(dim=1, keepdim=True))


def logistic_slope(scores: Tensor, labels: Tensor) -> Tensor:
    """Of the logistic loss of one score and labels 0 and 1."""
    signs = torch.where(labels == 1, -1.0, 1.0)[:, None]
    return signs * torch.sigmoid(signs * scores)


def squared_slope(scores: Tensor, targets: Tensor) -> Tensor:
    """Of the squared error of one score."""
    return 2 * (scores - targets[:, None])


class DenseTrainee:
    """The network that `build()` makes and inputs (n, …) with a target each; in place of a `ModuleTrainee`.

    The network is an nn.Sequential that ends in dense layers with ReLU, Tanh, Sigmoid or nothing between them. What
    comes before the first layer that is trained (reshaping, frozen layers of any kind) looks at one example at a time
    and does not change in a run, so it is computed once for each example and kept in memory.
    """

    def __init__(self, build: Callable[[], nn.Sequential], slope: Slope, x: NDArray[Any], y: NDArray[Any]) -> None:
        if len(x) != len(y) or len(x) == 0:
            raise ValueError(f"inputs and targets must have one row for each record, not {len(x)} and {len(y)}")
        self._build, self._slope = build, slope
        self._x, self._y = _tensor(x), _tensor(y)
        self.model = built(build, 0)
        self._fixed, layers = _divided(self.model)
        # Without their requires_grad, which every operation would look at; they share the model's memory.
        self.parameters: Weights = {
            name: value.detach() for name, value in self.model.named_parameters() if value.requires_grad
        }
        self._names = [_names(self.model, linear) for linear, _ in layers]
        self._activations = [None if activation is None else type(activation) for _, activation in layers]
        self._kept: tuple[Tensor, Tensor] | None = None
        shape = tuple(self._before(self._x[:1]).shape[1:])
        if len(shape) != 1:
            raise ValueError(f"the first trained layer takes vectors, not {shape}: flatten before it")

    def weights(self) -> Weights:
        return tensors(self.model)

    def load(self, weights: Weights) -> None:
        load_into(self.weights(), weights)
        self._kept = None

    def initialise(self, streams: Streams) -> None:
        self.load(tensors(built(self._build, seed_of(streams))))

    def facts(self) -> dict[str, Any]:
        return {
            "dense": words(self.model),
            "weights": {name: list(value.shape) for name, value in self.weights().items()},
            "trained": sorted(self.parameters),
            "slope": words(self._slope),
        }

    def data(self) -> tuple[NDArray[Any], ...]:
        return self._x.numpy(), self._y.numpy()

    def choose(self, known: dict[str, Any] | None, expected_batch_size: int) -> dict[str, Any]:
        """Nothing to choose: the closed form is the only way."""
        return {}

    @torch.no_grad()
    def clipped_sum(
        self, indices: NDArray[np.int64], l2_clip: float, augmentation: np.random.Generator | None = None
    ) -> ClippedSum:
        """Σ over these examples of g·min(1, l2_clip/‖g‖), g over all trained layers; zeros for an empty batch.

        Guarantee: one example more or less moves the sums by at most l2_clip, but for rounding. Norm and sums are made
        of the same δ and h, so this holds whatever rounding did to them; where they are not finite, or too large for
        float32 to clip exactly, the example adds zero.
        """
        first, *others = (self._piece(rows, l2_clip) for rows in torch.from_numpy(indices).split(_PIECE))
        for other in others:
            for name, value in other.sums.items():
                first.sums[name].add_(value)
        return ClippedSum(first.sums, torch.cat([first.norms, *(other.norms for other in others)]))

    def _piece(self, rows: Tensor, l2_clip: float) -> ClippedSum:
        inputs, slopes = self._passes(rows)
        squares = torch.zeros(len(rows), dtype=torch.float64)
        for place, (hidden, slope, (_, bias)) in enumerate(zip(inputs, slopes, self._names, strict=True)):
            # In double precision: squares of small slopes vanish in float32, and with them the clip of large inputs.
            size = self._prepared()[1][rows] if place == 0 else _size(hidden, biased=bias is not None)
            square = torch.linalg.vector_norm(slope, dim=1, dtype=torch.float64).square_()
            squares.addcmul_(size, square)
        norms = squares.sqrt_()
        factors = (l2_clip / norms).clamp_(max=1)
        # A factor near the end of float32 would be rounded beyond use, and the clip with it.
        usable = factors > _LEAST_FACTOR  # nor does a norm that is infinite, or no number, give such a factor
        if not bool(usable.all()):
            # Zero times infinity is not zero: take unusable examples out of both factors of the products.
            inputs = [torch.where(usable[:, None], hidden, 0) for hidden in inputs]
            slopes = [torch.where(usable[:, None], slope, 0) for slope in slopes]
            factors = torch.where(usable, factors, 0)
        scale = factors.float()[:, None]
        sums: Weights = {}
        with unshortened():
            for (weight, bias), hidden, slope in zip(self._names, inputs, slopes, strict=True):
                clipped = slope * scale
                sums[weight] = clipped.T @ hidden
                if bias is not None:
                    sums[bias] = clipped.sum(dim=0)
        return ClippedSum(sums, norms.float())

    def _passes(self, rows: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The inputs of each layer, and the derivatives of each example's loss by its outputs."""
        inputs = [self._prepared()[0].index_select(0, rows)]
        matrices = [self.parameters[weight] for weight, _ in self._names]
        for matrix, (_, bias), activation in zip(matrices, self._names, self._activations, strict=True):
            scores = nn.functional.linear(inputs[-1], matrix, None if bias is None else self.parameters[bias])
            inputs.append(scores if activation is None else _FORWARD[activation](scores))
        slope = self._slope(inputs.pop(), self._y[rows])
        slopes = [slope]
        for place in range(len(matrices) - 1, 0, -1):
            slope, activation = slope @ matrices[place], self._activations[place - 1]
            slope = slope if activation is None else _BACKWARD[activation](slope, inputs[place])
            slopes.append(slope)
        return inputs, slopes[::-1]

    @torch.no_grad()
    def _before(self, rows: Tensor) -> Tensor:
        """What the first trained layer sees of these rows."""
        return rows if self._fixed is None else torch.cat([self._fixed(block) for block in rows.split(_PIECE)])

    def _prepared(self) -> tuple[Tensor, Tensor]:
        """What the first trained layer sees of every example, and its size; kept until other weights are loaded."""
        if self._kept is None:
            vectors = self._before(self._x)
            self._kept = vectors, _size(vectors, biased=self._names[0][1] is not None)
        return self._kept


def _tensor(rows: NDArray[Any]) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(rows))
    return tensor.float() if tensor.is_floating_point() else tensor


def _size(hidden: Tensor, *, biased: bool) -> Tensor:
    """‖[h; 1]‖², or ‖h‖² without a bias, in double precision; infinite where float32 could not clip exactly."""
    norms = torch.linalg.vector_norm(hidden, dim=1, dtype=torch.float64)
    return torch.where(norms < _LARGEST_NORM, norms.square().add_(biased), torch.inf)


_Layers = list[tuple[nn.Linear, nn.Module | None]]


def _divided(model: nn.Module) -> tuple[nn.Sequential | None, _Layers]:
    """What is fixed, and the dense layers after it, each with its activation."""
    modules = list(_in_order(model))
    trained = [place for place, module in enumerate(modules) if any(p.requires_grad for p in module.parameters())]
    if not trained:
        raise ValueError("the network has nothing to train")
    layers: _Layers = []
    for module in modules[trained[0] :]:
        if isinstance(module, nn.Linear) and all(p.requires_grad for p in module.parameters()):
            layers.append((module, None))
        elif type(module) in _BACKWARD and layers[-1][1] is None:
            layers[-1] = (layers[-1][0], module)
        else:
            raise ValueError(f"{module} is not a trained dense layer or its ReLU, Tanh or Sigmoid: use a ModuleTrainee")
    if layers[-1][1] is not None:
        raise ValueError("the network must end in a dense layer: losses are of its scores")
    if any(p.dtype != torch.float32 for p in model.parameters()):
        raise ValueError("the network must be of float32: use a ModuleTrainee for other precisions")
    fixed = modules[: trained[0]]
    return (nn.Sequential(*fixed).eval() if fixed else None), layers


def _in_order(model: nn.Module) -> Iterator[nn.Module]:
    if not isinstance(model, nn.Sequential):
        raise ValueError(f"expected an nn.Sequential, not a {type(model).__name__}: use a ModuleTrainee")
    for child in model:
        if isinstance(child, nn.Sequential):
            yield from _in_order(child)
        else:
            yield child


def _names(model: nn.Module, linear: nn.Linear) -> tuple[str, str | None]:
    of = {id(value): name for name, value in model.named_parameters()}
    return of[id(linear.weight)], None if linear.bias is None else of[id(linear.bias)]
