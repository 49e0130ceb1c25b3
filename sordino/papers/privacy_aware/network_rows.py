"""A row of PAW's tables: a network at a budget, trained as its setting says, beside what the paper prints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from sordino.papers.declarations import Declaration
from sordino.papers.privacy_aware.intervals import Interval, Scored
from sordino.papers.privacy_aware.network_trials import UNCLIPPED, NetworkTrial, repeated, tuned
from sordino.papers.privacy_aware.networks import NETWORKS
from sordino.papers.records import Cell, Record, Series
from sordino.papers.trials import Experiment, Result


@dataclass(frozen=True)
class Setting:
    """How a network is trained privately, and plainly, to compare."""

    batch: int
    epochs: float
    rates: tuple[float, ...]
    plain_epochs: float
    seeds: int = 3
    plain_rate: float = 1e-3
    tuning_seeds: int = 1

    def private(self, network: str, epsilon: float | None, noise_multiplier: float | None = None) -> NetworkTrial:
        """The private trial at the first learning rate, still to be tuned."""
        trial = NetworkTrial(network, epsilon, self.rates[0], self.batch, self.epochs)
        return replace(trial, noise_multiplier=noise_multiplier)

    def plain(self, network: str) -> NetworkTrial:
        """Without noise or clip."""
        trial = NetworkTrial(network, None, self.plain_rate, self.batch, self.plain_epochs)
        return replace(trial, l2_clip=UNCLIPPED, adam=True)

    @property
    def words(self) -> dict[str, str]:
        """What the texts of an item leave open: how long this is, and how its learning rate was found."""
        untuned = f"None: the learning rate is {self.rates[0]:g}, as PAW gives about"
        adam = f"Without noise ours are trained by Adam for {self.plain_epochs:g} epochs of batches of {self.batch}"
        return {
            "setting": f"{self.epochs:g} epochs of batches of {self.batch}",
            "without_noise": adam,
            "how_tuned": "{tuning}" if len(self.rates) > 1 else untuned,
        }


FULL_FCN = Setting(100, 500, (0.1,), 20)
"""At one rate of those that PAW gives (0.1 to 0.2, for CNNs about 0.05): 500 epochs are too long to try several."""
SHORT_FCN = Setting(250, 20, (0.5, 1.0, 2.0), 20)
FULL_CNN = Setting(100, 300, (0.05,), 30)
SHORT_CNN = Setting(250, 2, (1.0, 2.0, 4.0), 2)
"""A training so much shorter than PAW's needs larger rates: at 0.5 SVHN's networks do not leave their start."""
RWT_FCN, RWT_CNN, RWT_RNN = "MNIST FCN complex", "MNIST CNN of RWT", "SMS RNN STW"
RWT_SHORT = {
    RWT_FCN: Setting(250, 3, (1.0, 2.0, 4.0), 3),
    RWT_CNN: Setting(500, 1, (1.0, 2.0, 4.0), 1),
    RWT_RNN: Setting(100, 10, (1.0, 2.0), 10),
}
RWT_FULL = {
    RWT_FCN: Setting(100, 500, (0.05, 0.1, 0.2), 20),
    RWT_CNN: Setting(250, 200, (0.05, 0.1, 0.25), 20),
    RWT_RNN: Setting(100, 50, (0.1, 0.2, 0.5), 20),
}


@dataclass(frozen=True)
class NetworkRow:
    """A network at a budget (or, with None, at the noise given), the paper's accuracies in per cent, and ours."""

    network: str
    epsilon: float | None
    setting: Setting
    paper: float | None = None
    """By DP-SGD."""
    paper_plain: float | None = None
    """By SGD."""
    noise_multiplier: float | None = None
    more: Mapping[str, Cell] = field(default_factory=dict)
    """Cells of further columns, or other content of the usual ones."""
    results: Sequence[Result] = ()
    """For each seed."""
    plain_results: Sequence[Result] = ()

    def trained(self, experiment: Experiment, plain: bool = False) -> Self:
        """Tuned on held-out records, then trained under each seed; on request without noise as well."""
        setting = self.setting
        trial = setting.private(self.network, self.epsilon, self.noise_multiplier)
        trial = tuned(experiment, trial, setting.rates, setting.tuning_seeds)
        without = repeated(experiment, setting.plain(self.network), setting.seeds) if plain else []
        return replace(self, results=repeated(experiment, trial, setting.seeds), plain_results=without)

    @property
    def private(self) -> Interval:
        return Interval.of_scores(self.results)

    @property
    def plain(self) -> Interval:
        return Interval.of_scores(self.plain_results)

    def cells(self, columns: Sequence[str]) -> list[Cell]:
        """The content of these columns."""
        first, ours = self.results[0], self.private.percent()
        whole, trained = NETWORKS[self.network].counts
        known: dict[str, Cell] = {
            "network": self.network,
            "model": self.network,
            "parameters": whole,
            "trained": trained,
            "parameters (trained)": f"{whole:,} ({trained:,})",
            "ε": self.epsilon,
            "paper's ε": self.epsilon,
            "paper": self.paper,
            "ours": ours,
            "paper, DP-SGD": self.paper,
            "ours, DP-SGD": ours,
            "paper, SGD": self.paper_plain,
            "ours, SGD": self.plain.percent() if self.plain_results else None,
            "ε spent": None if first["epsilon"] is None else float(first["epsilon"]),
            "σ": float(first["plan"]["noise_multiplier"]),
            "rate": float(first["learning_rate"]),
            "seeds": len(self.results),
        }
        return [(known | dict(self.more))[column] for column in columns]


def network_record(
    experiment: Experiment,
    item: Declaration,
    trained: Sequence[NetworkRow],
    follows: Sequence[str],
    words: Mapping[str, str] | None = None,
    series: Sequence[Series] = (),
) -> Record:
    """The record of an item whose rows are trainings, in the columns that are declared."""
    return item.record(experiment, [row.cells(item.columns) for row in trained], series, follows=follows, words=words)


def scores_by_epsilon(trained: Sequence[NetworkRow], network: str) -> Scored:
    """Every seed's score at each ε of one network."""
    own = [row for row in trained if row.network == network]
    return {float(row.epsilon or 0): [result["score"] for result in row.results] for row in own}
