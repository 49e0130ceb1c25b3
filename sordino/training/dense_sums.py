"""Clipped gradient sums of dense layers in closed form, of several networks of one shape in the same few calls.

The gradient of one example's loss by a dense layer is the outer product of δ, the loss's derivative by the layer's
outputs, and [h; 1], the layer's inputs: its squared norm is ‖δ‖²·(‖h‖² + 1), and no per-example gradient is formed.
Every tensor here begins with a dimension for the networks, which have nothing to do with each other.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sordino.gradients import full_precision

_LARGEST_NORM, _LEAST_FACTOR = 1e18, 1e-20

Slope = Callable[[Tensor, Tensor], Tensor]
"""The derivative of each example's loss by its scores (B, k), given its target: of each example alone."""

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
ACTIVATIONS = tuple(_FORWARD)


def softmax_slope(scores: Tensor, labels: Tensor) -> Tensor:
    """Gradient of the cross-entropy of integer labels by the scores."""
    slopes = torch.softmax(scores, dim=1)
    # p − 1 would lose all digits where p is nearly 1: the slopes of an example sum to zero.
    own = labels[:, None]
    slopes.scatter_(1, own, 0)
    return slopes.scatter_(1, own, -slopes.sum(dim=1, keepdim=True))


def logistic_slope(scores: Tensor, labels: Tensor) -> Tensor:
    """Gradient of the logistic loss by one score, for labels 0 and 1."""
    signs = torch.where(labels == 1, -1.0, 1.0)[:, None]
    return signs * torch.sigmoid(signs * scores)


def squared_slope(scores: Tensor, targets: Tensor) -> Tensor:
    """Gradient of the squared error by one score."""
    return 2 * (scores - targets[:, None])


class Layer(NamedTuple):
    weight: Tensor
    """(K, outputs, inputs)."""
    bias: Tensor | None
    """(K, outputs)."""
    activation: type[nn.Module] | None


class Examples(NamedTuple):
    """What the first layers see of a piece of each network's draw."""

    inputs: Tensor
    """(K, B, width)."""
    sizes: Tensor
    """`size_of` the inputs."""
    targets: Tensor
    """(K, B, …)."""
    present: Tensor | None
    """(K, B), ones, and zeros where a draw has fewer; None where all are there."""


class Sums(NamedTuple):
    weights: list[Tensor]
    biases: list[Tensor | None]
    norms: Tensor
    """(K, B), of each example's gradient before the clip."""


def clipped_sums(layers: Sequence[Layer], slope: Slope, examples: Examples, l2_clips: Tensor) -> Sums:
    """Of each network, Σ over its examples of g·min(1, l2_clip/‖g‖), g over all layers; l2_clips is (K, 1).

    Guarantee: one example more or less moves its network's sums by at most that network's l2_clip, but for rounding,
    and no other's. Norm and sums are made of the same δ and h, so this holds whatever rounding did to them; where they
    are not finite, or too large for float32 to clip exactly, the example adds zero.
    """
    inputs, slopes = _passes(layers, slope, examples)
    squares = torch.zeros_like(examples.sizes)
    for place, (hidden, by_outputs, layer) in enumerate(zip(inputs, slopes, layers, strict=True)):
        # In double precision: squares of small slopes vanish in float32, and with them the clip of large inputs.
        size = examples.sizes if place == 0 else size_of(hidden, biased=layer.bias is not None)
        squares.addcmul_(size, torch.linalg.vector_norm(by_outputs, dim=-1, dtype=torch.float64).square_())
    norms = squares.sqrt_()
    factors = (l2_clips / norms).clamp_(max=1)
    # A factor near the end of float32 would be rounded beyond use, and the clip with it.
    usable = factors > _LEAST_FACTOR  # nor does a norm that is infinite, or no number, give such a factor
    if not bool(usable.all()):
        # Zero times infinity is not zero: take unusable examples out of both factors of the products.
        inputs = [torch.where(usable[..., None], hidden, 0) for hidden in inputs]
        slopes = [torch.where(usable[..., None], by_outputs, 0) for by_outputs in slopes]
        factors = torch.where(usable, factors, 0)
    if examples.present is not None:
        factors.mul_(examples.present)
    scale = factors.float()[..., None]
    weights, biases = [], []
    with full_precision():
        for layer, hidden, by_outputs in zip(layers, inputs, slopes, strict=True):
            clipped = by_outputs * scale
            weights.append(clipped.mT @ hidden)
            biases.append(None if layer.bias is None else clipped.sum(dim=1))
    return Sums(weights, biases, norms.float())


def size_of(hidden: Tensor, *, biased: bool) -> Tensor:
    """‖[h; 1]‖², or ‖h‖² without a bias, in double precision; infinite where float32 could not clip exactly."""
    norms = torch.linalg.vector_norm(hidden, dim=-1, dtype=torch.float64)
    return torch.where(norms < _LARGEST_NORM, norms.square().add_(biased), torch.inf)


def _passes(layers: Sequence[Layer], slope: Slope, examples: Examples) -> tuple[list[Tensor], list[Tensor]]:
    """The inputs of each layer, and the derivatives of each example's loss by its outputs."""
    inputs = [examples.inputs]
    for weight, bias, activation in layers:
        scores = inputs[-1] @ weight.mT if bias is None else torch.baddbmm(bias[:, None], inputs[-1], weight.mT)
        inputs.append(scores if activation is None else _FORWARD[activation](scores))
    scores = inputs.pop()
    by_outputs = slope(scores.flatten(0, 1), examples.targets.flatten(0, 1)).unflatten(0, scores.shape[:2])
    slopes = [by_outputs]
    for place in range(len(layers) - 1, 0, -1):
        by_outputs, activation = by_outputs @ layers[place].weight, layers[place - 1].activation
        if activation is not None:
            by_outputs = _BACKWARD[activation](by_outputs, inputs[place])
        slopes.append(by_outputs)
    return inputs, slopes[::-1]
