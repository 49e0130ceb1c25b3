"""Convex learners with pure or approximate DP: logistic and linear regression on vectors of a public norm."""

from sordino.training.convex.linear_regression import LinearPlan, fit_linear, predict_linear
from sordino.training.convex.logistic import fit_logistic, fit_many, predict_logistic, scores
from sordino.training.convex.perturbations import GaussianObjective, GaussianOutput, PureObjective
from sordino.training.convex.plan import LogisticPlan, data_norm

__all__ = [
    "GaussianObjective",
    "GaussianOutput",
    "LinearPlan",
    "LogisticPlan",
    "PureObjective",
    "data_norm",
    "fit_linear",
    "fit_logistic",
    "fit_many",
    "predict_linear",
    "predict_logistic",
    "scores",
]
