"""Sordino trains models on private data under differential privacy and proves what it spent.

The names below are loaded when they are first used, so `import sordino` is quick and accounting never waits for torch.
"""

import lazy_loader

__version__ = "0.2.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
