"""Architecture search under privacy (PAW Section VIII-A): spaces, methods, and where trials run."""

from sordino.selection.search.candidates import Finding, Material, TrialTraining, train_candidate
from sordino.selection.search.convolutional import Convolutional, ConvolutionalSpace
from sordino.selection.search.dense import Activation, Dense, DenseLayer, DenseSpace
from sordino.selection.search.executors import InProcess, OnRay, Processes
from sordino.selection.search.genetic import GeneticSearch
from sordino.selection.search.grid import Grid
from sordino.selection.search.randomised import GenerationalSearch, RandomSearch
from sordino.selection.search.searching import Question, search

__all__ = [
    "Activation",
    "Convolutional",
    "ConvolutionalSpace",
    "Dense",
    "DenseLayer",
    "DenseSpace",
    "Finding",
    "GenerationalSearch",
    "GeneticSearch",
    "Grid",
    "InProcess",
    "Material",
    "OnRay",
    "Processes",
    "Question",
    "RandomSearch",
    "TrialTraining",
    "search",
    "train_candidate",
]
