"""Features: fixed functions from an example to a vector, which cost no privacy; and private statistics for them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
