"""The rows that SI's Tables 4 to 6 share: what is claimed, what holds, and what is learnt at an ε that holds."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

from sordino.papers.records import Cell, percent
from sordino.papers.trials import Experiment
from sordino.papers.weight_distributions.networks import APART, AS_WRITTEN, NETWORKS
from sordino.papers.weight_distributions.plan_figures import DELTA, Descent, Method, PlanAudit, SoundMethod
from sordino.papers.weight_distributions.private_trials import DistributionTrial, GradientTrial, PrivateTrial
from sordino.training import WeightDistributionPlan

COLUMNS = [
    *("algorithm", "ε asked", "z", "paper", "θ_T", "at the means", "claimed ε", "sound ε"),
    *("final only ≥", "audited ≥", "seeds", "minutes"),
]
NOTES = [
    "Claimed is the paper's ε (RDP, the old conversion), which prices each step as if the means before it had been "
    "told. They are secret, and every later draw tells of them anew: SI-DPSGD's rows are NOT private at the ε that "
    "they stand under, and their accuracy is no result at that ε",
    "Sound is what all drawn weights together cost, the bound that holds for θ_T, and what the ledger charges. Final "
    "only is what θ_T alone tells at least of some record; audited is a lower bound found by running the plan on "
    "canaries, at 95 % confidence: so many of them cannot show much more than ε=5",
    "θ_T is what the algorithm releases; the authors' code measures at the means, without their noise, and to tell "
    "those costs ε=∞. DP-SGD has no such means: its released weights, averaged over the last tenth of the steps, stand "
    "under θ_T",
    "Rows that are sound cost the asked ε, by PLD: DP-SGD with large batches, and weight distributions with the noise "
    "that they need. The paper's figure beside them is what it reports at that ε: of DP-SGD, and of SI-DPSGD",
]
BATCH_NORM = (
    "Batch norm by Algorithm 2 lets every example change all others' gradients: ε=∞ whatever the noise, and the "
    "canaries, which do not mix, show only what it tells besides. With each example apart, normalised with the 30 "
    "public images alone, as at test, the price is that of the other networks"
)
_CANARIES, _FEW_CANARIES, _FEW = 2000, 100, 16
_SOUND = SoundMethod()
_FEWEST_TESTED = 7600
"""Of the datasets here, the fewest test records that a whole test set has: their standard error is at most so large."""


@dataclass(frozen=True)
class Form:
    """How much of a table is trained: which networks, at which ε, and for how long."""

    method: Method
    epsilons: tuple[float, ...]
    networks: tuple[str, ...]
    compared: tuple[str, ...]
    """Those that DP-SGD and sound weight distributions train too."""
    descent: Descent
    slow: Method
    """For networks with batch norm, whose steps take many times as long."""
    slow_epsilons: tuple[float, ...]
    test: int | None = None
    slow_test: int | None = None
    width: int = 64
    sound: SoundMethod = _SOUND
    canaries: int = _CANARIES

    def tiny(self) -> "Form":
        """The same code in seconds."""
        return replace(
            self,
            method=replace(self.method, n=_FEW, batch=2, epochs=1),
            slow=replace(self.slow, n=_FEW, batch=2, epochs=1),
            epsilons=self.epsilons[:1],
            slow_epsilons=self.slow_epsilons[:1],
            test=20,
            slow_test=4,
            descent=replace(self.descent, batches=2, epochs=1),
            sound=replace(self.sound, batches=2, epochs=1),
            width=2,
            canaries=_FEW_CANARIES,
        )

    def method_of(self, network: str) -> Method:
        return self.method if NETWORKS[network].company is None else self.slow

    def epsilons_of(self, network: str) -> tuple[float, ...]:
        return self.epsilons if NETWORKS[network].company is None else self.slow_epsilons

    def test_of(self, network: str) -> int | None:
        return self.test if NETWORKS[network].company is None else self.slow_test


@dataclass(frozen=True)
class Published:
    """The paper's plan and its accuracies, for each algorithm and network in the order of the ε."""

    method: Method
    epsilons: tuple[float, ...]
    accuracies: dict[str, tuple[str, ...]]

    def accuracy(self, algorithm: str, network: str, epsilon: float) -> str | None:
        if network.endswith(APART):
            return None  # not the paper's algorithm
        name = f"{algorithm} ({network.removesuffix(AS_WRITTEN)})"
        return self.accuracies[name][self.epsilons.index(epsilon)]


@dataclass
class Rows:
    """A table as it grows, with what follows from it."""

    experiment: Experiment
    published: Published
    form: Form
    rows: list[list[Cell]] = field(default_factory=list)
    _claims: dict[WeightDistributionPlan, dict[str, Any]] = field(default_factory=dict)
    """By plan: networks may share one, and with it its claim and its audit."""
    _contest: dict[tuple[str, float], dict[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, experiment: Experiment, published: Published, form: Form) -> "Rows":
        if experiment.quick:
            form = form.tiny()
            published = replace(published, method=form.method)
        made = cls(experiment, published, form)
        made._fill()
        return made

    def _fill(self) -> None:
        for epsilon in self._untrained():
            self._claimed("SI-DPSGD, the paper's plan", epsilon, self.published.method.plan(epsilon), None, [])
        for network, epsilon in self._trained():
            plan = self.form.method_of(network).plan(epsilon, NETWORKS[network].mixes)
            trial = DistributionTrial(network=network, plan=plan, **self._sizes(network))
            paper = self.published.accuracy("SI-DPSGD", network, epsilon)
            self._claimed(f"SI-DPSGD ({network})", epsilon, plan, paper, self._repeated(trial))
        for network in self.form.compared:
            for epsilon in self.form.epsilons:
                self._compare(network, epsilon)

    def _untrained(self) -> list[float]:
        """Where the paper's own plan is not among those trained: shorter trainings have plans of their own."""
        if self.experiment.quick:
            return list(self.form.epsilons)
        trained = self.form.epsilons if self.form.method == self.published.method else ()
        return [epsilon for epsilon in self.published.epsilons if epsilon not in trained]

    def _trained(self) -> Iterator[tuple[str, float]]:
        for network in self.form.networks:
            for epsilon in self.form.epsilons_of(network):
                yield network, epsilon

    def _compare(self, network: str, epsilon: float) -> None:
        n, common = self.form.method.n, {**self._sizes(network), "budget": (epsilon, DELTA)}
        descent, distributions = self.form.descent.plan(n, epsilon), self.form.sound.plan(n, epsilon)
        optimiser = self.form.descent.optimiser(n, epsilon)
        trials: dict[str, tuple[str, PrivateTrial]] = {
            "DP-SGD": ("DPSGD", GradientTrial(network=network, plan=descent, optimiser=optimiser, **common)),
            "weight distributions": ("SI-DPSGD", DistributionTrial(network=network, plan=distributions, **common)),
        }
        found = self._contest[network, epsilon] = {}
        for name, (theirs, trial) in trials.items():
            results = self._repeated(trial)
            paper = self.published.accuracy(theirs, network, epsilon)
            priced = self._figures(trial.plan)
            self.rows.append(_row(f"{name} ({network}), sound", epsilon, priced, paper, results))
            found[name] = mean(result["accuracy"] for result in results)

    def _claimed(
        self, name: str, epsilon: float, plan: WeightDistributionPlan, paper: str | None, results: list[dict[str, Any]]
    ) -> None:
        priced = self._claims[plan] = self._figures(plan)
        self.rows.append(_row(name, epsilon, priced, paper, results))

    def _sizes(self, network: str) -> dict[str, Any]:
        return {"test": self.form.test_of(network), "width": self.form.width, "delta": DELTA}

    def _figures(self, plan: Any) -> dict[str, Any]:
        return {**self.experiment.run(PlanAudit(plan, self.form.canaries)), "z": plan.noise_multiplier}

    def _repeated(self, trial: PrivateTrial) -> list[dict[str, Any]]:
        return self.experiment.repeated(trial)

    def what_follows(self) -> list[str]:
        """In words, from the figures of the rows alone."""
        beaten = sum(priced["audited"] > priced["claimed"] for priced in self._claims.values())
        told = sum(priced["final"] > priced["claimed"] for priced in self._claims.values())
        behind, alike = self._behind()
        contest = "; ".join(
            f"{network} at ε={epsilon:g}: " + ", ".join(f"{name} {100 * share:.1f} %" for name, share in found.items())
            for (network, epsilon), found in self._contest.items()
        )
        return [
            f"What follows: of {len(self._claims)} claims in this table the audit alone refutes {beaten}, and θ_T by "
            f"itself tells more than is claimed in {told}",
            f"At a sound ε weight distributions are behind DP-SGD in {behind} of {len(self._contest)} comparisons, and "
            f"within twice the standard error of their test images in {alike} ({contest})",
        ]

    def _behind(self) -> tuple[int, int]:
        """In how many comparisons weight distributions are behind DP-SGD, and in how many nobody can tell."""
        behind = alike = 0
        for (network, _), found in self._contest.items():
            ours, theirs = found["weight distributions"], found["DP-SGD"]
            tested = self.form.test_of(network) or _FEWEST_TESTED
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
