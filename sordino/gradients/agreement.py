"""Whether a strategy gives what plain autograd gives, before it is trusted with a model."""

import copy
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from sordino.gradients import batches, fallback
from sordino.gradients.batches import Setup
from sordino.gradients.pieces import Measured
from sordino.gradients.specimens import Held, Untouched, in_order, specimens
from sordino.gradients.strategies import Strategy

_NEGLIGIBLE = 1e-3
_ORDERS = ([0, 1, 2], [2, 1, 0], [1, 2, 0])
"""Examples are given in several orders: a model may sort them, and rows then change places."""


def agrees(strategy: Strategy, setup: Setup, x: Any, y: Any, *, tolerance: float) -> bool:
    """Whether the strategy gives the losses, norms and sums that plain autograd gives, example by example.

    Models with randomness (dropout) are compared in evaluation mode, and must run in the mode that they are in.
    """
    x, y = specimens(x, y, setup.views, 3)
    modes = {layer: layer.training for layer in setup.model.modules()}
    with Untouched(setup.model):
        if _is_random(setup, x, y):
            strategy(x, y)
            setup.model.eval()
        try:
            losses, gradients = fallback.by_loop(setup.model, setup.loss, setup.parameters, x, y, setup.views)
            for order in _ORDERS:
                with Held(setup.model):
                    found = strategy(*in_order(x, y, setup.views, order))
                expected = losses[order], {name: value[order] for name, value in gradients.items()}
                if not _same(*found, *expected, tolerance):
                    return False
        finally:
            for layer, training in modes.items():
                layer.training = training
    return True


def in_double_precision(setup: Setup, x: Any, y: Any) -> tuple[Setup, Any, Any]:
    """The same in double precision, on a copy of the model, with a few examples."""
    model = copy.deepcopy(setup.model).double()
    parameters: dict[str, Tensor] = {
        name: value for name, value in model.named_parameters() if name in setup.parameters
    }

    def double(leaf: Any) -> Any:
        return leaf.double() if isinstance(leaf, Tensor) and leaf.dtype.is_floating_point else leaf

    x, y = specimens(x, y, setup.views, 7)
    return Setup(model, setup.loss, parameters, setup.views), pytree.tree_map(double, x), pytree.tree_map(double, y)


def _same(
    losses: Tensor,
    parts: dict[str, Measured],
    expected_losses: Tensor,
    expected: dict[str, Tensor],
    tolerance: float,
) -> bool:
    rows = {name: value.reshape(len(value), -1).double() for name, value in expected.items()}
    # A parameter whose gradient is nothing but rounding (a bias before a norm) is measured against the others.
    least = _NEGLIGIBLE * max(float(torch.linalg.vector_norm(value, dim=1).max()) for value in rows.values())
    close = torch.allclose(losses.double(), expected_losses.double(), rtol=tolerance, atol=tolerance)
    return close and all(_same_part(parts.get(name), value, tolerance, least) for name, value in rows.items())


def _same_part(part: Measured | None, expected: Tensor, tolerance: float, least: float) -> bool:
    norms = torch.linalg.vector_norm(expected, dim=1)
    allowed = tolerance * max(float(norms.max()), least)
    if part is None:
        return float(norms.max()) <= allowed
    found = torch.where(part.squares.isnan(), norms, part.squares.sqrt())  # NaN: to be formed alone anyway
    factors = torch.tensor([0.5, 1.0, -2.0], dtype=torch.float64, device=expected.device)
    difference = torch.linalg.vector_norm(part.weighted_sum(factors).double().flatten() - factors @ expected)
    return float((found - norms).abs().max()) <= allowed and float(difference) <= allowed


def _is_random(setup: Setup, x: Any, y: Any) -> bool:
    """Whether a run moves a random state, or another gives other losses: in a narrow model two draws of dropout may
    well give the same."""
    device = next(iter(setup.parameters.values())).device
    before, losses = _random_states(device), []
    for _ in range(2):
        with Held(setup.model):
            losses.append(batches.losses_of(setup.model, setup.loss, x, y, 3, setup.views))
    return not torch.equal(*losses) or before != _random_states(device)


def _random_states(device: torch.device) -> list[Any]:
    numpy_state = np.random.get_state(legacy=False)["state"]
    states = [
        random.getstate(),
        numpy_state["key"].tobytes(),
        numpy_state["pos"],
        torch.get_rng_state().numpy().tobytes(),
    ]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device).numpy().tobytes())
    return states
