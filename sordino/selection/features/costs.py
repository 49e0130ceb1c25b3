"""What the paper claims its feature selections cost, beside what they cost when each look is counted."""

from dataclasses import dataclass

from sordino.budget import Cost, Event, Repeated, advanced_composition, cost
from sordino.selection.features.pafs import Trial


@dataclass(frozen=True)
class SelectionCost:
    """ε as claimed (PAW Eq. 8) and ε that holds, for each part of the data."""

    claimed: float
    train: Cost
    validation: Cost | None = None

    @property
    def sound(self) -> float:
        """Parts are disjoint: the largest counts."""
        return max(self.train.epsilon, self.validation.epsilon if self.validation is not None else 0.0)


def claimed_cfs(features: int, epsilon: float = 0.01, slack_delta: float = 1e-5) -> float:
    """PAW's 2.31 for Breast Cancer's 43 features, recovered: Eq. 8 over the joint entropies of all ordered pairs.

    A claim, never charged: each entropy at ε=0.01 needs noise of several bits at n=191, and the paper's selections are
    of exact counts.
    """
    return advanced_composition(epsilon, (features + 1) ** 2, slack_delta)


def claimed_pafs(unique: int, epsilon: float = 0.1, slack_delta: float = 1e-6) -> float:
    """PAW's 49.63, recovered: Eq. 8 over about 2,314 trainings; the scores, taken on test records, are not counted."""
    return advanced_composition(epsilon, unique, slack_delta)


def cfs_cost(features: int, tables: Event, delta: float, adjacency: str = "zero-out") -> SelectionCost:
    """CFS, greedy or genetic: the one event of the tables, however many subsets are tried."""
    return SelectionCost(claimed_cfs(features), cost(tables, delta, adjacency))


def pafs_cost(unique: int, trial: Trial, claimed: float, delta: float, adjacency: str = "zero-out") -> SelectionCost:
    """PAFS: a training and a score for each different subset."""
    validation = None if trial.score is None else cost(Repeated(trial.score, unique), delta, adjacency)
    return SelectionCost(claimed, cost(Repeated(trial.training, unique), delta, adjacency), validation)
