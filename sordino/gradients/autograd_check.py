"""Checks that a strategy gives the same gradients as plain autograd, before it is trusted with a model."""

import copy
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.gradients import batches, fallback
from sordino.gradients.batches import Setup
from sordino.gradients.dry_runs import keep_buffers, sample_examples, without_side_effects
from sordino.gradients.layer_rules import Strategy
from sordino.gradients.per_example_gradients import MeasuredGradient

_NEGLIGIBLE = 1e-3
_PERTURBATION = 0.05


def agrees(strategy: Strategy, setup: Setup, x: Any, y: Any, *, tolerance: float, examples: int = 3) -> bool:
    """Whether the strategy gives the losses, norms and sums that plain autograd gives, example by example.

    Examples come in several orders: a model may sort them, which moves rows.
    Models with randomness (dropout) are compared in evaluation mode, and must run in the mode they are in.
    """
    x, y = sample_examples(x, y, setup.views, examples)
    forwards = list(range(examples))
    orders = forwards, forwards[::-1], [*forwards[1:], 0]
    modes = {layer: layer.training for layer in setup.model.modules()}
    with without_side_effects(setup.model):
        if _is_random(setup, x, y, examples):
            strategy(x, y)
            setup.model.eval()
        try:
            losses, gradients = fallback.by_loop(setup, x, y)
            for order in orders:
                with keep_buffers(setup.model):
                    found = strategy(*batches.take(x, y, torch.tensor(order), setup.views))
                expected = losses[order], {name: value[order] for name, value in gradients.items()}
                if not _same(*found, *expected, tolerance):
                    return False
        finally:
            for layer, training in modes.items():
                layer.training = training
    return True


def in_double_precision(setup: Setup, x: Any, y: Any, *, examples: int = 7) -> tuple[Setup, Any, Any]:
    """A few examples and a copy of the model, in double precision."""
    model = copy.deepcopy(setup.model).double()
    parameters: dict[str, Tensor] = {
        name: value for name, value in model.named_parameters() if name in setup.parameters
    }

    def double(leaf: Tensor) -> Tensor:
        return leaf.double() if leaf.dtype.is_floating_point else leaf

    x, y = batches.map_tensors(double, sample_examples(x, y, setup.views, examples))
    return Setup(model, setup.loss, parameters, setup.views), x, y


def perturb(model: nn.Module) -> None:
    """Move all parameters a little, always in the same way: what starts at 0 hides the terms it is a factor of.

    No sign changes: a scale that must be positive stays so.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in model.parameters():
            change = _PERTURBATION * (0.5 + torch.rand(value.shape, generator=generator)).to(value.device)
            value.copy_(torch.where(value == 0, change, value * (1 + change)))


def _same(
    losses: Tensor,
    found: dict[str, MeasuredGradient],
    expected_losses: Tensor,
    expected: dict[str, Tensor],
    tolerance: float,
) -> bool:
    rows = {name: value.reshape(len(value), -1).double() for name, value in expected.items()}
    # A parameter whose gradient is mere rounding (a bias before a norm) is compared on the scale of the others.
    least = _NEGLIGIBLE * max(float(torch.linalg.vector_norm(value, dim=1).max()) for value in rows.values())
    close = torch.allclose(losses.double(), expected_losses.double(), rtol=tolerance, atol=tolerance)
    return close and all(_same_gradient(found.get(name), value, tolerance, least) for name, value in rows.items())


def _same_gradient(gradient: MeasuredGradient | None, expected: Tensor, tolerance: float, least: float) -> bool:
    norms = torch.linalg.vector_norm(expected, dim=1)
    allowed = tolerance * max(float(norms.max()), least)
    if gradient is None:
        return float(norms.max()) <= allowed
    found = torch.where(gradient.squares.isnan(), norms, gradient.squares.sqrt())  # NaN: formed alone anyway
    cycle = torch.tensor([0.5, 1.0, -2.0], dtype=torch.float64, device=expected.device)
    factors = cycle[torch.arange(len(expected), device=expected.device) % 3]
    difference = torch.linalg.vector_norm(gradient.weighted_sum(factors).double().flatten() - factors @ expected)
    return float((found - norms).abs().max()) <= allowed and float(difference) <= allowed


def _is_random(setup: Setup, x: Any, y: Any, examples: int) -> bool:
    """Whether a run advances a random state or a second one gives other losses.

    Losses alone would not do: in a narrow model two draws of dropout may well give the same.
    """
    device = next(iter(setup.parameters.values())).device
    before, losses = _random_states(device), []
    for _ in range(2):
        with keep_buffers(setup.model):
            losses.append(batches.losses_of(setup.model, setup.loss, x, y, examples, setup.views))
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
