"""Training under a plan: DP-SGD, run folders that survive a kill, recipes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
