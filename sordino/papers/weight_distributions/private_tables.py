"""Tables 4 to 6 of SI: trainings that the paper calls private, beside what they cost and what a sound ε gives."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

from sordino.data import load
from sordino.papers.declarations import Declaration
from sordino.papers.records import Cell, Record, percent
from sordino.papers.trials import Experiment, Result
from sordino.papers.weight_distributions.networks import APART, AS_WRITTEN, NETWORKS
from sordino.papers.weight_distributions.plans import (
    DELTA,
    PaperSettings,
    PlanAudit,
    SoundSettings,
    dpsgd_optimiser,
    dpsgd_plan,
    sound_plan,
)
from sordino.papers.weight_distributions.private_trials import PrivateTrial
from sordino.training import OneCycle, Schedule, Staircase, WeightDistributionPlan

_FEW_CANARIES, _FEW = 100, 16
_FEWEST_TESTED = 7600
"""Of the datasets here, the fewest test records that a whole test set has: their standard error is at most so large."""


@dataclass(frozen=True)
class Part:
    """Networks that are trained alike: with which settings, at which ε, and tested on how many records."""

    networks: tuple[str, ...]
    settings: PaperSettings
    epsilons: tuple[float, ...]
    test: int | None = None

    def tiny(self, test: int) -> "Part":
        few = replace(self.settings, n=_FEW, batch=2, epochs=1)
        return replace(self, settings=few, epsilons=self.epsilons[:1], test=test)


@dataclass(frozen=True)
class Extent:
    """How much of a table is trained."""

    usual: Part
    compared: tuple[str, ...]
    """Networks of the usual part that DP-SGD and sound weight distributions train too."""
    dpsgd: Callable[[str, float], SoundSettings]
    """By network and ε, as are those of sound weight distributions."""
    sound: Callable[[str, float], SoundSettings]
    batch_normalised: Part | None = None
    """A step of these takes many times as long."""
    width: int = 64
    canaries: int = 2000

    def tiny(self) -> "Extent":
        """The same code in seconds."""
        return replace(
            self,
            usual=self.usual.tiny(test=20),
            batch_normalised=self.batch_normalised and self.batch_normalised.tiny(test=4),
            dpsgd=lambda network, epsilon: replace(self.dpsgd(network, epsilon), batches=2, epochs=1),
            sound=lambda network, epsilon: replace(self.sound(network, epsilon), batches=2, epochs=1),
            width=2,
            canaries=_FEW_CANARIES,
        )


@dataclass
class Rows:
    """A table as it grows, with what follows from it."""

    experiment: Experiment
    item: Declaration
    paper: Part
    """The paper's settings and ε."""
    extent: Extent
    rows: list[list[Cell]] = field(default_factory=list)
    claims: dict[WeightDistributionPlan, dict[str, Any]] = field(default_factory=dict)
    """By plan: networks may share one, and with it its claim and its audit."""
    contests: dict[tuple[str, float], dict[str, float]] = field(default_factory=dict)
    """Accuracies of DP-SGD and of weight distributions at a sound ε, by network and ε."""
    violated: dict[str, list[str]] = field(default_factory=dict)
    """Audits that find a sound ε violated, with what failed."""

    def fill(self) -> None:
        usual = self.extent.usual
        paper = usual if self.experiment.quick else self.paper
        trains = usual.networks and usual.settings == self.paper.settings and not self.experiment.quick
        own = usual.epsilons if trains else ()
        for epsilon in (epsilon for epsilon in paper.epsilons if epsilon not in own):
            # Shorter trainings have other plans: the paper's is priced and audited, not trained.
            self._claimed("SI-DPSGD, the paper's plan", epsilon, paper.settings.plan(epsilon), None, [])
        for part in filter(None, (usual, self.extent.batch_normalised)):
            for network in part.networks:
                for epsilon in part.epsilons:
                    self._paper_training(part, network, epsilon)
        for network in self.extent.compared:
            for epsilon in usual.epsilons:
                self._compare(network, epsilon)

    def published(self, algorithm: str, network: str, epsilon: float) -> str | None:
        """Published for each algorithm and network are its accuracies, in the order of the paper's ε."""
        if network.endswith(APART):
            return None  # not the paper's algorithm
        name = f"{algorithm} ({network.removesuffix(AS_WRITTEN)})"
        accuracies = {which: found for which, *found in self.item.published}
        return str(accuracies[name][self.paper.epsilons.index(epsilon)])

    def _paper_training(self, part: Part, network: str, epsilon: float) -> None:
        plan = part.settings.plan(epsilon, NETWORKS[network].mixes)
        trial = PrivateTrial(network=network, plan=plan, test=part.test, width=self.extent.width, delta=DELTA)
        paper = self.published("SI-DPSGD", network, epsilon)
        self._claimed(f"SI-DPSGD ({network})", epsilon, plan, paper, self._repeated(trial))

    def _compare(self, network: str, epsilon: float) -> None:
        usual, n = self.extent.usual, self.extent.usual.settings.n
        trial = PrivateTrial(
            network=network,
            test=usual.test,
            width=self.extent.width,
            delta=DELTA,
            budget=(epsilon, DELTA),
            plan=sound_plan(n, epsilon, self.extent.sound(network, epsilon)),
        )
        settings = self.extent.dpsgd(network, epsilon)
        dpsgd = replace(trial, plan=dpsgd_plan(n, epsilon, settings), optimiser=dpsgd_optimiser(settings))
        found = self.contests[network, epsilon] = {}
        for name, algorithm, each in (
            ("DP-SGD", "DPSGD", dpsgd),
            ("weight distributions", "SI-DPSGD", trial),
        ):
            results = self._repeated(each)
            paper = self.published(algorithm, network, epsilon)
            self.rows.append(_row(f"{name} ({network}), sound", epsilon, self._audited(each.plan), paper, results))
            found[name] = mean(result["accuracy"] for result in results)

    def _claimed(
        self, name: str, epsilon: float, plan: WeightDistributionPlan, paper: str | None, results: list[Result]
    ) -> None:
        priced = self.claims[plan] = self._audited(plan)
        self.rows.append(_row(name, epsilon, priced, paper, results))

    def _audited(self, plan: Any) -> dict[str, Any]:
        audit = PlanAudit(plan, self.extent.canaries)
        found = self.experiment.run(audit)
        if found["sound_verdict"] != "consistent":
            repeated = self.experiment.run(replace(audit, repetition=1))["sound_verdict"]
            self.violated[str(audit)] = [*found["failed"], f"repeated with other draws: {repeated}"]
        return {**found, "z": plan.noise_multiplier}

    def _repeated(self, trial: PrivateTrial) -> list[Result]:
        return self.experiment.repeated(trial)

    def what_follows(self) -> list[str]:
        """In words, from the figures of the rows alone."""
        beaten = sum(priced["audited"] > priced["claimed"] for priced in self.claims.values())
        revealed = sum(priced["final"] > priced["claimed"] for priced in self.claims.values())
        violated = [f"{each} ({'; '.join(failed)})" for each, failed in self.violated.items()]
        revealing = (
            f"What follows: of {len(self.claims)} claims in this table the audit alone refutes {beaten}, and θ_T by "
            f"itself reveals more than is claimed in {revealed}"
        )
        found = ", ".join(violated) or "none"
        audits = f"Audits that find a sound ε violated, as of correct code one in twenty may: {found}"
        if not self.contests:
            return [revealing, audits]
        behind, alike = self._behind()
        contests = "; ".join(
            f"{network} at ε={epsilon:g}: " + ", ".join(f"{name} {100 * share:.1f} %" for name, share in found.items())
            for (network, epsilon), found in self.contests.items()
        )
        return [
            revealing,
            f"At a sound ε weight distributions are behind DP-SGD in {behind} of {len(self.contests)} comparisons, and "
            f"within twice the standard error of their test images in {alike} ({contests})",
            audits,
        ]

    def _behind(self) -> tuple[int, int]:
        """In how many comparisons weight distributions are behind DP-SGD, and in how many nobody can tell."""
        behind = alike = 0
        tested = self.extent.usual.test or _FEWEST_TESTED
        for found in self.contests.values():
            ours, theirs = found["weight distributions"], found["DP-SGD"]
            error = math.sqrt((ours * (1 - ours) + theirs * (1 - theirs)) / tested)
            alike += abs(ours - theirs) <= 2 * error
            behind += theirs - ours > 2 * error
        return behind, alike


def _row(
    name: str, epsilon: float, priced: dict[str, Any], paper: str | None, results: list[dict[str, Any]]
) -> list[Cell]:
    ours, means, minutes = None, None, None
    if results:
        ours = percent(result["accuracy"] for result in results)
        minutes = f"{mean(result['seconds'] for result in results) / 60:.1f}"
        if "means" in results[0]:
            means = percent(result["means"] for result in results)
    sound: Cell = "∞" if priced["sound"] is None else priced["sound"]
    return [
        *(name, epsilon, float(priced["z"]), paper, ours, means, priced["claimed"], sound),
        *(priced["final"], priced["audited"], len(results), minutes),
    ]


@dataclass(frozen=True)
class PricedTable:
    """One of the tables, reduced and in full."""

    full: Extent
    reduced: Extent

    def __call__(self, experiment: Experiment, item: Declaration) -> Record:
        made = self.rows(experiment, item)
        made.fill()
        # Table 4 says which images are public.
        public = "" if len(load("kmnist").train) else "public images are of KMNIST's test part, all that is at hand"
        return item.record(experiment, made.rows, follows=made.what_follows(), words={"public": public})

    def rows(self, experiment: Experiment, item: Declaration) -> Rows:
        extent = experiment.pick(self.reduced, self.full)
        return Rows(experiment, item, self.full.usual, extent.tiny() if experiment.quick else extent)


def _by_tenths(epoch: int, steps: int) -> Schedule:
    return Staircase(0.1, 0.9, epoch)


def _cycle(epoch: int, steps: int) -> Schedule:
    return OneCycle(0.12, steps)


def _halved(epoch: int, steps: int) -> Schedule:
    return Staircase(0.1, 0.5, 4 * epoch)


_MNIST = PaperSettings(60_000, 32, 10, 3.1, _by_tenths, 0.9)
_CIFAR = PaperSettings(50_000, 16, 40, 2.5, _cycle)
_NEWS = PaperSettings(37_453, 300, 12, 1.0, _halved)
_LENETS, _LSTMS = ("LeNet-5", "LN-LeNet-5"), ("BiLSTM-DL", "LN-BiLSTM-DL")
_BN_LENETS = (f"BN-LeNet-5{AS_WRITTEN}", f"BN-LeNet-5{APART}")
_RESNETS = tuple(f"{name}{way}" for name in ("ResNet-18", "VGG-16", "Fast-CIFAR-ResNet") for way in (AS_WRITTEN, APART))
_MNIST_EPSILONS = (7, 3, 1, 0.5, 0.1, 0.05, 0.025)
_CIFAR_EPSILONS = (8, 4, 2, 1, 0.5, 0.1, 0.05)


def _shrinking(n: int, tuned: SoundSettings) -> Callable[[str, float], SoundSettings]:
    return lambda network, epsilon: tuned.shrunk(n, epsilon)


def _chosen(settings: Mapping[str, Mapping[float, SoundSettings]]) -> Callable[[str, float], SoundSettings]:
    """Of the network, those of the largest ε that is not above the row's."""

    def of(network: str, epsilon: float) -> SoundSettings:
        return settings[network][max(least for least in settings[network] if least <= epsilon)]

    return of


_DISTRIBUTIONS = SoundSettings(20, 3, 4.0)
"""As the recipe of that name trains MNIST."""
_GRADIENTS_MNIST = _chosen(
    {
        "LeNet-5": {3: SoundSettings(120, 8, 2.0), 0.5: SoundSettings(120, 8, 1.0), 0: SoundSettings(8, 8, 2.0)},
        "LN-LeNet-5": {3: SoundSettings(30, 8, 4.0), 0.5: SoundSettings(30, 8, 0.667), 0: SoundSettings(8, 8, 2.0)},
    }
)
_DISTRIBUTIONS_MNIST = _chosen(
    {
        "LeNet-5": {3: _DISTRIBUTIONS, 0.5: SoundSettings(6, 3, 1.0), 0: SoundSettings(20, 1, 0.067)},
        "LN-LeNet-5": {3: _DISTRIBUTIONS, 0.5: SoundSettings(6, 3, 2.0), 0: SoundSettings(6, 1, 0.5)},
    }
)
"""Both the best of the item choices, which has none below ε=0.05 or above 3."""
TABLE_4 = PricedTable(
    full=Extent(
        Part(_LENETS, _MNIST, _MNIST_EPSILONS),
        _LENETS,
        _GRADIENTS_MNIST,
        _DISTRIBUTIONS_MNIST,
        Part(_BN_LENETS, _MNIST, _MNIST_EPSILONS),
    ),
    reduced=Extent(
        Part(_LENETS, replace(_MNIST, epochs=3), (3, 0.5, 0.05)),
        _LENETS,
        _GRADIENTS_MNIST,
        _DISTRIBUTIONS_MNIST,
        Part(_BN_LENETS, replace(_MNIST, epochs=0.32), (3, 0.05)),
    ),
)
TABLE_5 = PricedTable(
    full=Extent(
        Part(("TF-tutorial",), _CIFAR, _CIFAR_EPSILONS),
        ("TF-tutorial",),
        _shrinking(50_000, SoundSettings(50, 40, 1.0)),
        _shrinking(50_000, _DISTRIBUTIONS),
        Part(_RESNETS, _CIFAR, _CIFAR_EPSILONS),
    ),
    reduced=Extent(
        Part((), _CIFAR, _CIFAR_EPSILONS),
        (),
        _shrinking(50_000, _DISTRIBUTIONS),
        _shrinking(50_000, _DISTRIBUTIONS),
    ),
)
TABLE_6 = PricedTable(
    full=Extent(
        Part(_LSTMS, _NEWS, (7, 3, 1, 0.5, 0.1, 0.05)),
        _LSTMS,
        _shrinking(_NEWS.n, SoundSettings(20, 40, 4.0)),
        _shrinking(_NEWS.n, _DISTRIBUTIONS),
    ),
    reduced=Extent(
        Part(_LSTMS, _NEWS, (3, 0.5, 0.05)),
        _LSTMS,
        _shrinking(_NEWS.n, SoundSettings(20, 10, 4.0)),
        _shrinking(_NEWS.n, _DISTRIBUTIONS),
    ),
)


_HELD_OUT = 5000


def choices(experiment: Experiment, item: Declaration) -> Record:
    """Settings of the sound rows of Table 4, each tried on held-out training images."""
    rows: list[list[Cell]] = []
    n = _FEW if experiment.quick else _MNIST.n - _HELD_OUT
    for algorithm, network, epsilon, *settings in experiment.some(item.given["tried"]):
        tried = SoundSettings(*settings)
        tried = replace(tried, epochs=1) if experiment.quick else tried
        dpsgd = algorithm == "DP-SGD"
        trial = PrivateTrial(
            network=network,
            budget=(epsilon, DELTA),
            delta=DELTA,
            validation=20 if experiment.quick else _HELD_OUT,
            plan=(dpsgd_plan if dpsgd else sound_plan)(n, epsilon, tried),
            optimiser=dpsgd_optimiser(tried) if dpsgd else None,
        )
        found = experiment.run(trial)
        minutes = f"{found['seconds'] / 60:.1f}"
        rows.append([algorithm, network, epsilon, *settings, percent([found["accuracy"]]), minutes])
    return item.record(experiment, rows)
