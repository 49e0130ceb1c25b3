"""Descriptions of what was done to private data, a file a family; `sordino.events` for users.

>>> from sordino import events
>>> training = events.Repeated(events.PoissonGaussian(sample_rate=0.01, noise_multiplier=1.1), 1000)
>>> events.to_json(training)["type"]
'repeated'

Each event knows its JSON name, its words in the privacy statement, and how accountants price it. A new family is one
file with subclasses of `Event`; see there.
"""

from sordino.budget.events.base import ADJACENCIES as ADJACENCIES
from sordino.budget.events.base import Adjacency as Adjacency
from sordino.budget.events.base import Event as Event
from sordino.budget.events.base import UnsupportedEvent as UnsupportedEvent
from sordino.budget.events.base import from_json as from_json
from sordino.budget.events.base import leaves as leaves
from sordino.budget.events.base import to_json as to_json
from sordino.budget.events.composition import Composed as Composed
from sordino.budget.events.composition import Except as Except
from sordino.budget.events.composition import NonPrivate as NonPrivate
from sordino.budget.events.composition import RepeatAndSelect as RepeatAndSelect
from sordino.budget.events.composition import Repeated as Repeated
from sordino.budget.events.composition import composed as composed
from sordino.budget.events.gaussian import FixedSizeGaussian as FixedSizeGaussian
from sordino.budget.events.gaussian import Gaussian as Gaussian
from sordino.budget.events.gaussian import PoissonGaussian as PoissonGaussian
from sordino.budget.events.gaussian import ShuffledGaussian as ShuffledGaussian
from sordino.budget.events.iteration import Iteration as Iteration
from sordino.budget.events.objective_perturbation import LogisticPerturbation as LogisticPerturbation
from sordino.budget.events.pure import Laplace as Laplace
from sordino.budget.events.pure import Pure as Pure
