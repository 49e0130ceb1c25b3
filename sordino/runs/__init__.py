"""What is kept: run folders, the secret key of a run's noise, checkpoints, and which ledger pays for which data."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
