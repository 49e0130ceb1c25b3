"""Clipped sums of per-example gradients for any nn.Module: layer rules, and a fallback."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
