from .items import items_of as items_of
from .items import reproduce as reproduce
from .records import in_words as in_words
from .trials import Experiment as Experiment
from .trials import TrialStore as TrialStore
