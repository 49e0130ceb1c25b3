"""The papers' architectures as plain modules, a file a family.

As they are built by default none of them lets one example see another; with batch norm (SI) they do, and say so.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
