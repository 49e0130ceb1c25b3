"""Choosing with the cost of privacy in mind: architectures, features, settings, and ε itself."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
