"""Tables VI and VII and Figure 10 of PAW: random weights training (RWT), in which the first layers are frozen."""

from dataclasses import replace

from sordino.papers.declarations import declared
from sordino.papers.privacy_aware.intervals import Interval, crossing
from sordino.papers.privacy_aware.network_figures import CROSSOVER_SEEDS, crossover_record, line_of
from sordino.papers.privacy_aware.network_rows import (
    ACCOUNTANT,
    PAPER,
    PRICE,
    NetworkRow,
    Setting,
    Trained,
    scores_by_epsilon,
)
from sordino.papers.privacy_aware.network_trials import some
from sordino.papers.privacy_aware.networks import LENGTH, NETWORKS, RWT
from sordino.papers.records import Record
from sordino.papers.trials import Experiment

_FCN, _CNN, _RNN = "MNIST FCN complex", "MNIST CNN of RWT", "SMS RNN STW"
_SHORT = {
    _FCN: Setting(250, 3, (1.0, 2.0, 4.0), 3),
    _CNN: Setting(500, 1, (1.0, 2.0, 4.0), 1),
    _RNN: Setting(100, 10, (1.0, 2.0), 10),
}
_FULL = {
    _FCN: Setting(100, 500, (0.05, 0.1, 0.2), 20),
    _CNN: Setting(250, 200, (0.05, 0.1, 0.25), 20),
    _RNN: Setting(100, 50, (0.1, 0.2, 0.5), 20),
}
_HUGE, _THEIR_SIGMA = 1.47e11, 1e-4
"""PAW's largest ε, and the σ behind it."""
_TABLE_6 = (
    (_FCN, 2.11, 90.06, 84.32),
    (_FCN, 0.341, 51.34, 73.06),
    (_CNN, 5.92, 97.34, 96.33),
    (_CNN, 0.341, 91.20, 95.20),
    (_RNN, _HUGE, 88.64, 87.84),
    (_RNN, 0.391, 79.80, 87.00),
)
"""Network, ε, accuracies of training in full and of RWT."""


def table_6(experiment: Experiment) -> Record:
    """RWT against training in full."""
    said: list[str] = []
    trained: list[Trained] = []
    for network, epsilon, *theirs in some(experiment, _TABLE_6, 2):
        setting = experiment.pick(_SHORT, _FULL)[network]
        budget, sigma = (None, _THEIR_SIGMA) if epsilon == _HUGE else (epsilon, None)
        for name, paper in zip((network, f"{network}{RWT}"), theirs, strict=True):
            row = NetworkRow(name, budget, setting, paper, noise_multiplier=sigma, more={"paper's ε": epsilon})
            trained.append(row.train(experiment))
        whole, frozen = (each.private for each in trained[-2:])
        said.append(f"{network} at ε={epsilon:.3g}: RWT is {frozen.better_than(whole)}{_idle(network, whole, frozen)}")
    columns = ["network", "parameters (trained)", "paper's ε", "paper", "ours", *PRICE]
    words = f"on {LENGTH} words in place of 150"
    return declared(PAPER)["table-6"].record(
        experiment,
        [each.cells(columns) for each in trained],
        columns=columns,
        follows=[*said, f"{ACCOUNTANT}. The LSTM's huge ε is not calibrated: it has PAW's σ of {_THEIR_SIGMA:g}"],
        words={
            "always": experiment.pick(
                "FCNs for 3 epochs of batches of 250 in place of 500 of 100, CNNs for 1 of 500 in place of 200 of 250, "
                f"LSTMs for 10 in place of 50 and {words}, with the noise that the same ε then needs",
                f"LSTMs {words}",
            )
        },
    )


def _idle(network: str, whole: Interval, frozen: Interval) -> str:
    """Names what learned no more than the most frequent answer."""
    least = NETWORKS[network].constant()
    which = [way for way, each in (("trained in full", whole), ("with RWT", frozen)) if not each.exceeds(least)]
    return f"; {' and '.join(which)} it is not above a constant answer ({100 * least:.2f} %)" if which else ""


def table_7(experiment: Experiment) -> Record:
    """A complex network with RWT against a simple one."""
    setting = experiment.pick(_SHORT, _FULL)[_FCN]
    rows = [
        NetworkRow(_FCN, 0.341, setting, 49.90),
        NetworkRow(f"{_FCN}{RWT}", 0.341, setting, 75.18),
        NetworkRow("MNIST FCN simple", 0.341, setting, 73.04),
    ]
    trained = [row.train(experiment) for row in rows]
    whole, frozen, simple = (each.private for each in trained)
    columns = ["network", "parameters", "trained", "paper", "ours", *PRICE]
    return declared(PAPER)["table-7"].record(
        experiment,
        [each.cells(columns) for each in trained],
        columns=columns,
        follows=[
            f"Against training all of it: RWT is {frozen.better_than(whole)}",
            f"Against the simple network: RWT is {frozen.better_than(simple)}",
        ],
        words={"here": setting.in_place_of("500 of 100")},
    )


def figure_10(experiment: Experiment) -> Record:
    """RWT against training in full as the budget grows."""
    budgets = experiment.pick((0.3, 1.0, 3.0), (0.1, 0.2, 0.34, 0.6, 1.0, 1.4, 2.1, 4.0, 6.0))
    # Half as long, and so as dear with more seeds as Table VI is with three.
    settings = experiment.pick(_SHORT | {_FCN: replace(_SHORT[_FCN], epochs=1.5)}, _FULL)
    fcn, cnn = settings[_FCN], settings[_CNN]
    networks = some(experiment, ((_FCN, 1.4), (_CNN, 0.6)))
    trained = [
        NetworkRow(name, epsilon, replace(settings[network], seeds=CROSSOVER_SEEDS)).train(experiment)
        for network, _ in networks
        for epsilon in some(experiment, budgets)
        for name in (network, f"{network}{RWT}")
    ]
    said = []
    for network, theirs in networks:
        frozen, whole = (scores_by_epsilon(trained, name) for name in (f"{network}{RWT}", network))
        found = crossing(frozen, whole, ("RWT", "training all of it"))
        said.append(f"{network}: {found}; PAW's lines cross at about {theirs:g}")
    return crossover_record(
        "figure-10",
        "Random weights training against training all layers on MNIST, along ε",
        trained,
        [line_of(trained, name) for network, _ in networks for name in (network, f"{network}{RWT}")],
        said,
        experiment.pick(
            f"three budgets, {fcn.in_place_of('500 of 100')} (FCN), {cnn.in_place_of('200 of 250')} (CNN)", None
        ),
    )
