from .records import in_words as in_words
from .reproducing import items_of as items_of
from .reproducing import reproduce as reproduce
from .trials import Experiment as Experiment
from .trials import TrialStore as TrialStore
