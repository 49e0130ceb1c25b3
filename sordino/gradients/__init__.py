"""Clipped sums of per-example gradients for any nn.Module: layer rules, and a fallback."""

from sordino.gradients.clipping import Automatic, Clipping, Flat, PerLayer
from sordino.gradients.engine import Clipped, ClippedGradients
from sordino.gradients.mixing import ExamplesMixError
from sordino.gradients.repair import repair

__all__ = ["Automatic", "Clipped", "ClippedGradients", "Clipping", "ExamplesMixError", "Flat", "PerLayer", "repair"]
