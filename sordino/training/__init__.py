"""Training under a plan: DP-SGD, run folders that survive a kill, recipes."""

from sordino.training.averaging import Averaging
from sordino.training.dense import DenseTrainee
from sordino.training.fitting import fit
from sordino.training.linear import LinearClassifier
from sordino.training.module import ModuleTrainee
from sordino.training.optimisers import SGD, Adam
from sordino.training.own_loop import LoopError, PrivateLoop, make_private
from sordino.training.plan import Plan
from sordino.training.quantile_clip import QuantileClip
from sordino.training.run import Run, RunError
from sordino.training.schedules import WarmupCosine

__all__ = [
    "SGD",
    "Adam",
    "Averaging",
    "DenseTrainee",
    "LinearClassifier",
    "LoopError",
    "ModuleTrainee",
    "Plan",
    "PrivateLoop",
    "QuantileClip",
    "Run",
    "RunError",
    "WarmupCosine",
    "fit",
    "make_private",
]
