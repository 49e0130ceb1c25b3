"""Tables VI and VII and Figure 10 of PAW: random weights training (RWT), in which the first layers are frozen."""

from dataclasses import replace
from typing import Any

from sordino.papers.privacy_aware.comparing import (
    ACCOUNTANT,
    CROSSOVER_SEEDS,
    DEFINITION_2,
    DROPOUT,
    PAPER,
    PRICE,
    TUNING,
    Interval,
    Scored,
    Setting,
    constant,
    crossing,
    line,
    points_of,
    price_columns,
    scores,
    some,
    tuned,
)
from sordino.papers.privacy_aware.inputs import LENGTH
from sordino.papers.privacy_aware.networks import NETWORKS, RWT
from sordino.papers.privacy_aware.trials import NetworkTrial, repeated
from sordino.papers.records import Cell, Record
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
_TABLE_6 = {
    _FCN: {2.11: (90.06, 84.32), 0.341: (51.34, 73.06)},
    _CNN: {5.92: (97.34, 96.33), 0.341: (91.20, 95.20)},
    _RNN: {1.47e11: (88.64, 87.84), 0.391: (79.80, 87.00)},
}
"""Accuracies of training in full and of RWT at each ε."""
_HUGE = 1e-4
"""PAW's σ behind its ε of 1.47e11."""
_SHORTER = (
    "FCNs for 3 epochs of batches of 250 in place of 500 of 100, CNNs for 1 of 500 in place of 200 of 250, LSTMs for "
    f"10 in place of 50 and on {LENGTH} words in place of 150, with as much less noise as the same ε needs"
)
_HASHED = "Words are hashed to 1,000 ids: PAW's vocabulary is read off the messages, which would have to be paid for"
_TRAINED = "Of the CNN, Table VI calls the 19,328 frozen parameters trainable; trained are 103,114"


def _trained(
    experiment: Experiment, network: str, epsilon: float, kind: str, settings: dict[str, Setting] | None = None
) -> list[dict[str, Any]]:
    setting = (settings or experiment.pick(_SHORT, _FULL))[kind]
    trial = setting.private(network, epsilon)
    if epsilon > 1e6:
        trial = NetworkTrial(network, None, trial.learning_rate, trial.batch, trial.epochs, noise_multiplier=_HUGE)
    return repeated(experiment, tuned(experiment, trial, setting.rates), setting.seeds)


def table_6(experiment: Experiment) -> Record:
    """RWT against training in full."""
    rows: list[list[Cell]] = []
    said: list[str] = []
    for kind, budgets in some(experiment, list(_TABLE_6.items())):
        for epsilon, theirs in budgets.items():
            found: list[Interval] = []
            for place, network in enumerate((kind, f"{kind}{RWT}")):
                results = _trained(experiment, network, epsilon, kind)
                found.append(scores(results))
                whole, trained = NETWORKS[network].counts
                row: list[Cell] = [network, f"{whole:,} ({trained:,})", epsilon, theirs[place], found[-1].percent()]
                rows.append([*row, *price_columns(results)])
            said.append(f"{kind} at ε={epsilon:.3g}: {_better(found[0], found[1])}{_learned(kind, found)}")
    return Record(
        PAPER,
        "table-6",
        "Random weights training (RWT) of the last two layers against training all of them",
        ["network", "parameters (trained)", "paper's ε", "paper", "ours", *PRICE],
        rows,
        [
            *said,
            "δ=1e-5; mean ± half of the 95 % interval over seeds",
            f"{ACCOUNTANT}. The LSTM's huge ε is not calibrated: it has PAW's σ of {_HUGE:g}",
            *(DROPOUT, _TRAINED, _HASHED),
        ],
        experiment.pick(_SHORTER, f"LSTMs on {LENGTH} words in place of 150"),
        TUNING,
    )


def _learned(network: str, found: list[Interval]) -> str:
    """Says so where a network learned no more than which answer is the most frequent."""
    least = constant(network)
    which = [way for way, each in zip(("trained in full", "with RWT"), found, strict=True) if not each.exceeds(least)]
    return f"; {' and '.join(which)} it is not above a constant answer ({100 * least:.2f} %)" if which else ""


def _better(normal: Interval, rwt: Interval) -> str:
    gap = 100 * (rwt.mean - normal.mean)
    return f"RWT is {abs(gap):.2f} points {'better' if gap > 0 else 'worse'} ({rwt.beside(normal)})"


def table_7(experiment: Experiment) -> Record:
    """A complex network with RWT against a simple one."""
    theirs = {_FCN: 49.90, f"{_FCN}{RWT}": 75.18, "MNIST FCN simple": 73.04}
    rows: list[list[Cell]] = []
    found = {}
    for network, paper in theirs.items():
        results = _trained(experiment, network, 0.341, _FCN)
        found[network] = scores(results)
        whole, trained = NETWORKS[network].counts
        rows.append([network, whole, trained, paper, found[network].percent(), *price_columns(results)])
    return Record(
        PAPER,
        "table-7",
        "A complex network with and without RWT, and a simple one, at ε=0.34",
        ["network", "parameters", "trained", "paper", "ours", *PRICE],
        rows,
        [
            f"Against training all of it: {_better(found[_FCN], found[f'{_FCN}{RWT}'])}",
            f"Against the simple network: {_better(found['MNIST FCN simple'], found[f'{_FCN}{RWT}'])}",
            "ε=0.341 (PAW rounds it to 0.34), δ=1e-5; mean ± half of the 95 % interval over seeds",
            *(ACCOUNTANT, DROPOUT),
        ],
        experiment.pick("3 epochs of batches of 250 in place of 500 of 100", None),
        TUNING,
    )


def figure_10(experiment: Experiment) -> Record:
    """RWT against training in full as the budget grows."""
    budgets = some(experiment, experiment.pick((0.3, 1.0, 3.0), (0.1, 0.2, 0.34, 0.6, 1.0, 1.4, 2.1, 4.0, 6.0)))
    # Half as long, and so as dear with more seeds as Table VI is with three.
    short = {_FCN: replace(_SHORT[_FCN], epochs=1.5), _CNN: _SHORT[_CNN]}
    settings = {
        kind: replace(setting, seeds=CROSSOVER_SEEDS) for kind, setting in experiment.pick(short, _FULL).items()
    }
    rows: list[list[Cell]] = []
    series = []
    said = []
    for kind, theirs in some(experiment, [(_FCN, 1.4), (_CNN, 0.6)]):
        lines: dict[str, Scored] = {kind: {}, f"{kind}{RWT}": {}}
        for epsilon in budgets:
            for network, scored in lines.items():
                results = _trained(experiment, network, epsilon, kind, settings)
                scored[epsilon] = [result["score"] for result in results]
                rows.append([network, epsilon, scores(results).percent(), *price_columns(results)])
        series += [line(network, points_of(scored)) for network, scored in lines.items()]
        said.append(
            f"{kind}: {crossing(lines[f'{kind}{RWT}'], lines[kind], ('RWT', 'training all of it'))}; PAW's lines cross "
            f"at about {theirs:g}"
        )
    return Record(
        PAPER,
        "figure-10",
        "Random weights training against training all layers on MNIST, along ε",
        ["network", "ε", "ours", *PRICE],
        rows,
        [
            *(*said, DEFINITION_2, "δ=1e-5; ± and bars are half of the 95 % interval over seeds (PAW: 99.9 %)"),
            *(ACCOUNTANT, DROPOUT),
        ],
        experiment.pick(
            f"three budgets, {short[_FCN].epochs:g} epochs of batches of {short[_FCN].batch} (FCN) and "
            f"{short[_CNN].epochs:g} of {short[_CNN].batch} (CNN) in place of 500 of 100 and 200 of 250",
            None,
        ),
        TUNING,
        *("ε", "test accuracy, %", "x"),
        series,
    )
