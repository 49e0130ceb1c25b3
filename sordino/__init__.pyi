from .audit import audit as audit
from .budget import Ledger as Ledger
from .budget import events as events
from .data import Schema as Schema
from .gradients import ClippedGradients as ClippedGradients
from .gradients import register_rule as register_rule
from .gradients import repair as repair
from .runs import Run as Run
from .runs import load as load
from .runs import predict as predict
from .selection import tune as tune
from .training import SGD as SGD
from .training import Adam as Adam
from .training import Plan as Plan
from .training import fit as fit
from .training import make_private as make_private

__version__: str
