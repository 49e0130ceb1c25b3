"""Norms from Gram matrices: nothing where nothing is, and no number where they cannot tell."""

import math

import torch

from sordino.gradients.pieces import gram_norm


def gram(rows: list[list[float]]) -> torch.Tensor:
    values = torch.tensor(rows, dtype=torch.float64)
    return (values @ values.T)[None]


def test_an_infinite_input_under_a_gradient_of_zero_is_not_taken_for_nothing() -> None:
    """Its product is no number, and would be so in the sum over the whole batch."""
    assert math.isnan(gram_norm(gram([[0.0], [0.0]]), gram([[math.inf], [1.0]])).item())
    assert gram_norm(gram([[0.0], [0.0]]), gram([[3.0], [1.0]])).item() == 0
    assert gram_norm(gram([[2.0], [0.0]]), gram([[3.0], [1.0]])).item() == 36
