"""Whether a privacy claim holds: empirical lower bounds on ε, and tests of sampler, noise and sensitivity."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
