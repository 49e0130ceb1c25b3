"""What private computations cost: events, accountants, calibration, and the ledger. No training code in here."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
