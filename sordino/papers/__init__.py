"""A file a paper: its tables and figures as small functions of the public API."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
