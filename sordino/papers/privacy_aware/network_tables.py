"""PAW's tables of networks: both workflows (I, IV, V, XIII), regression (XIV, XV), clipping (E), RWT (VI, VII)."""

from collections.abc import Sequence
from dataclasses import replace

from sordino.papers.declarations import declared
from sordino.papers.privacy_aware.intervals import Comparison, Interval
from sordino.papers.privacy_aware.network_rows import (
    FULL_CNN,
    FULL_FCN,
    FULL_RNN,
    PAPER,
    SHORT_CNN,
    SHORT_FCN,
    SHORT_RNN,
    NetworkRow,
    Setting,
    Trained,
    network_record,
)
from sordino.papers.privacy_aware.network_trials import UNCLIPPED, repeated, some, tune_rate, tuned
from sordino.papers.privacy_aware.networks import (
    LAYERS,
    NETWORKS,
    RWT,
    TRAINING_RECORDS,
    UNITS,
    regression_name,
)
from sordino.papers.records import Cell, Record
from sordino.papers.trials import Experiment

_WORKFLOWS = ("STW", "PAW")
_ALWAYS_FULL = ("MNIST FCN", "Fashion-MNIST FCN", "Location-30 FCN")
_STAND_IN = {"Location-30 FCN": 2.0}
"""Trained at the paper's σ of Purchase-100, for which it stands: the paper's ε means something else on its records."""


def _table_1_rows(experiment: Experiment) -> list[NetworkRow]:
    """Published are a pair's name, ε, and accuracies of STW's and PAW's network by DP-SGD and by SGD."""
    rows, pairs = [], declared(PAPER)["table-1"].published
    for name, epsilon, private, plain in pairs[2:3] if experiment.quick else pairs:
        full = name in _ALWAYS_FULL or experiment.full
        setting = (FULL_CNN if full else SHORT_CNN) if "CNN" in name else (FULL_FCN if full else SHORT_FCN)
        length = "in full" if full else f"reduced: {setting.epochs:g} epochs"
        sigma = _STAND_IN.get(name)
        for place, workflow in enumerate(_WORKFLOWS):
            more: dict[str, Cell] = {"network": name, "workflow": workflow, "paper's ε": epsilon, "length": length}
            budget = None if sigma else epsilon
            rows.append(NetworkRow(f"{name} {workflow}", budget, setting, private[place], plain[place], sigma, more))
    return rows


def compared(name: str, pair: Sequence[Trained]) -> Comparison:
    """The complex network's trainings and the simple one's."""
    complex_, simple = pair
    return Comparison(name, complex_.private, simple.private, complex_.plain, simple.plain)


def table_1(experiment: Experiment) -> Record:
    """All pairs of networks of the two workflows."""
    trained = [row.train(experiment, plain=True) for row in _table_1_rows(experiment)]
    pairs = [compared(str(trained[i].row.more["network"]), trained[i : i + 2]) for i in range(0, len(trained), 2)]
    fcn, cnn = experiment.pick((SHORT_FCN, SHORT_CNN), (FULL_FCN, FULL_CNN))
    return network_record(
        experiment,
        "table-1",
        trained,
        [
            f"The phenomenon shows with intervals apart in {sum(bool(p.shows) for p in pairs)} of {len(pairs)} pairs",
            *(pair.words() for pair in pairs),
        ],
        {"fcns": fcn.words["without_noise"], "cnns": cnn.words["without_noise"]},
    )


def choices(experiment: Experiment) -> Record:
    """The learning rates of Table I, on held-out training records."""
    rows: list[list[Cell]] = []
    every = _table_1_rows(replace(experiment, quick=False))
    for row in [each for each in every if each.network == "MNIST CNN PAW"] if experiment.quick else every:
        if len(row.setting.rates) > 1:
            trial = row.setting.private(row.network, row.epsilon, row.noise_multiplier)
            best, tries = tune_rate(experiment, trial, row.setting.rates)
            listed = ", ".join(f"{rate:g}: {100 * share:.2f}" for rate, share in tries.items())
            records = TRAINING_RECORDS[NETWORKS[row.network].dataset]
            rows.append([row.network, row.setting.batch, records, listed, best])
    return declared(PAPER)["choices"].record(
        experiment,
        rows,
        words={"always": experiment.pick("one seed", "nothing to choose: all are trained in full, at PAW's rates")},
    )


def table_4(experiment: Experiment) -> Record:
    """LeNet-5 against networks that were searched for.

    Published are ε, accuracies by DP-SGD and SGD of STW's network, PAW's and LeNet-5, epochs and batch.
    """
    published = {epsilon: figures for epsilon, *figures in declared(PAPER)["table-4"].published}
    names = ("MNIST CNN STW", "MNIST CNN PAW", "MNIST LeNet-5")
    usual = experiment.pick(SHORT_CNN, FULL_CNN)
    trained: dict[tuple[float, str], Trained] = {}
    for epsilon in some(experiment, experiment.pick((4.39, 1.09), tuple(published))):
        *theirs, epochs, batch = published[epsilon]
        setting = replace(usual, epochs=epochs, batch=batch) if experiment.full else usual
        for place, name in enumerate(names):
            if experiment.quick and name == names[0]:
                continue
            private, plain_theirs = theirs[place]
            own = NetworkRow(name, epsilon, setting, private, plain_theirs).train(experiment)
            plain = repeated(experiment, usual.plain(name), usual.seeds)
            trained[epsilon, name] = replace(own, plain_results=plain)
    ahead = [
        f"ε={epsilon:g}: PAW's network is better than LeNet-5 by "
        f"{trained[epsilon, names[1]].private.ahead_of(trained[epsilon, names[2]].private)}"
        for epsilon in dict.fromkeys(epsilon for epsilon, _ in trained)
    ]
    return network_record(experiment, "table-4", list(trained.values()), ahead, usual.words)


def table_5(experiment: Experiment) -> Record:
    """SVHN by its principal components or its pixels."""
    setting = experiment.pick(SHORT_FCN, FULL_FCN)
    trained = []
    for end, workflow, private, plain, count in some(experiment, declared(PAPER)["table-5"].published, 2):
        name = f"SVHN FCN {workflow}{end}"
        more: dict[str, Cell] = {"network": name if end else f"{name}, PCA", "paper's parameters": count}
        trained.append(NetworkRow(name, 2.58, setting, private, plain, more=more).train(experiment, plain=True))
    said = [compared(name, trained[i : i + 2]).words() for name, i in (("PCA", 0), ("no PCA", 2)) if i < len(trained)]
    said += [
        f"{workflow}: PCA is better by {pca.private.ahead_of(pixels.private)} under noise"
        for workflow, pca, pixels in zip(_WORKFLOWS, trained[:2], trained[2:], strict=False)
    ]
    return network_record(experiment, "table-5", trained, said, setting.words)


def table_13(experiment: Experiment) -> Record:
    """A large and a small LSTM."""
    setting = experiment.pick(SHORT_RNN, FULL_RNN)
    rows = [
        NetworkRow("SMS RNN STW", 7.21, setting, 86.00, 98.80),
        NetworkRow("SMS RNN PAW", 7.21, setting, 93.42, 98.68),
    ]
    trained = [row.train(experiment, plain=True) for row in rows]
    words = {
        "constant": f"{100 * NETWORKS['SMS RNN STW'].constant():.2f}",
        "fewer": experiment.pick("10 epochs in place of 50, ", ""),
    }
    return network_record(
        experiment, "table-13", trained, [compared("SMS RNN", trained).words()], setting.words | words
    )


_REGRESSION = Setting(100, 50, (0.01, 0.05, 0.25), 100, seeds=5, tuning_seeds=5)


def table_14(experiment: Experiment) -> Record:
    return _regression(experiment, "table-14", 0.95)


def table_15(experiment: Experiment) -> Record:
    return _regression(experiment, "table-15", None)


def _regression(experiment: Experiment, item: str, epsilon: float | None) -> Record:
    """Errors by depth and width, at a budget or without noise."""
    units, depths = some(experiment, UNITS, 2), some(experiment, LAYERS)
    found: dict[tuple[int, int], Interval] = {}
    for layers in depths:
        for width in units:
            name = regression_name(layers, width)
            if epsilon is None:
                results = repeated(experiment, _REGRESSION.plain(name), _REGRESSION.seeds)
            else:
                results = NetworkRow(name, epsilon, _REGRESSION).train(experiment).results
            found[layers, width] = Interval.of_scores(results)
    best = regression_name(*min(found, key=lambda shape: found[shape].mean))
    least = NETWORKS[best].constant()
    idle = [f"{d}×{w}" for (d, w), each in found.items() if each.mean + (each.half or 0) >= least]
    widened = []
    for layers in depths:
        narrow, wide = found[layers, units[0]], found[layers, units[-1]]
        widened.append(f"{layers} layers {wide.mean - narrow.mean:+.4f} ({wide.beside(narrow)})")
    rows: list[list[Cell]] = []
    for layers, printed in zip(depths, declared(PAPER)[item].published, strict=False):
        both = [(paper, found[layers, width].plain()) for width, paper in zip(units, printed, strict=False)]
        rows.append([layers, *(cell for pair in both for cell in pair)])
    return declared(PAPER)[item].record(
        experiment,
        rows,
        columns=["hidden layers", *(f"{who}, {width} units" for width in units for who in ("paper", "ours"))],
        follows=[
            f"Least error: {best} with {NETWORKS[best].counts[1]:,} parameters. From {units[0]} to {units[-1]} units: "
            + "; ".join(widened),
            f"The median as a constant answer has an error of {least:.4f}; not below it beyond the interval: "
            f"{', '.join(idle) or 'none'} (layers×units)",
        ],
    )


def appendix_e(experiment: Experiment) -> Record:
    """Is it the clip that makes DP-SGD better than SGD where there is hardly any noise?"""
    network = "CIFAR-10 FCN PAW"
    setting = experiment.pick(Setting(250, 20, (0.5, 1.0, 2.0, 4.0), 20), Setting(100, 500, (0.5, 1.0, 2.0), 500))
    huge = setting.private(network, 1e7)
    clipped = replace(huge, epsilon=None)
    ways = (
        ("SGD", replace(clipped, l2_clip=UNCLIPPED), (0.02, 0.05, 0.1, 0.2), 45.36),
        ("SGD, gradients clipped to 1", clipped, setting.rates, None),
        ("DP-SGD at ε=1e7", huge, setting.rates, 50.0),
        ("Adam", setting.plain(network), (1e-3,), None),
    )
    rows: list[list[Cell]] = []
    found: list[Interval] = []
    for name, trial, rates, paper in ways:
        results = repeated(experiment, tuned(experiment, trial, rates), setting.seeds)
        found.append(Interval.of_scores(results))
        spent: Cell = "∞" if results[0]["epsilon"] is None else float(results[0]["epsilon"])
        rows.append([name, paper, found[-1].percent(), spent, float(results[0]["learning_rate"]), len(results)])
    plain, only_clipped, noisy, _ = found
    return declared(PAPER)["appendix-e"].record(
        experiment,
        rows,
        follows=[
            f"DP-SGD is ahead of SGD by {noisy.ahead_of(plain)}, clipped SGD without noise by "
            f"{only_clipped.ahead_of(plain)}, and DP-SGD of clipped SGD by {noisy.ahead_of(only_clipped)}",
            "PAW: 45.36 against about 50, which it attributes to the clip; its rates without clip are 1e-3 to 1e-4. "
            + ("So large an effect shows here, too" if noisy.above(plain) else "No such effect shows here"),
        ],
        words=setting.words,
    )


RWT_FCN, RWT_CNN, _RWT_RNN = "MNIST FCN complex", "MNIST CNN of RWT", "SMS RNN STW"
RWT_SHORT = {
    RWT_FCN: Setting(250, 3, (1.0, 2.0, 4.0), 3),
    RWT_CNN: Setting(500, 1, (1.0, 2.0, 4.0), 1),
    _RWT_RNN: Setting(100, 10, (1.0, 2.0), 10),
}
RWT_FULL = {
    RWT_FCN: Setting(100, 500, (0.05, 0.1, 0.2), 20),
    RWT_CNN: Setting(250, 200, (0.05, 0.1, 0.25), 20),
    _RWT_RNN: Setting(100, 50, (0.1, 0.2, 0.5), 20),
}
_HUGE, _THEIR_SIGMA = 1.47e11, 1e-4
"""PAW's largest ε, and the σ behind it."""


def table_6(experiment: Experiment) -> Record:
    """RWT against training in full: published are a network, ε, and the accuracies of both."""
    said: list[str] = []
    trained: list[Trained] = []
    for network, epsilon, *theirs in some(experiment, declared(PAPER)["table-6"].published, 2):
        setting = experiment.pick(RWT_SHORT, RWT_FULL)[network]
        budget, sigma = (None, _THEIR_SIGMA) if epsilon == _HUGE else (epsilon, None)
        for name, paper in zip((network, f"{network}{RWT}"), theirs, strict=True):
            row = NetworkRow(name, budget, setting, paper, noise_multiplier=sigma, more={"paper's ε": epsilon})
            trained.append(row.train(experiment))
        whole, frozen = (each.private for each in trained[-2:])
        said.append(f"{network} at ε={epsilon:.3g}: RWT is {frozen.better_than(whole)}{_idle(network, whole, frozen)}")
    always = experiment.pick("{short_rwt}", "LSTMs {few_words}")
    return network_record(experiment, "table-6", trained, said, {"always": always})


def _idle(network: str, whole: Interval, frozen: Interval) -> str:
    """Names what learned no more than the most frequent answer."""
    least = NETWORKS[network].constant()
    which = [way for way, each in (("trained in full", whole), ("with RWT", frozen)) if not each.exceeds(least)]
    return f"; {' and '.join(which)} it is not above a constant answer ({100 * least:.2f} %)" if which else ""


def table_7(experiment: Experiment) -> Record:
    """A complex network with RWT against a simple one."""
    setting = experiment.pick(RWT_SHORT, RWT_FULL)[RWT_FCN]
    theirs = {RWT_FCN: 49.90, f"{RWT_FCN}{RWT}": 75.18, "MNIST FCN simple": 73.04}
    trained = [NetworkRow(name, 0.341, setting, paper).train(experiment) for name, paper in theirs.items()]
    whole, frozen, simple = (each.private for each in trained)
    said = [
        f"Against training all of it: RWT is {frozen.better_than(whole)}",
        f"Against the simple network: RWT is {frozen.better_than(simple)}",
    ]
    return network_record(experiment, "table-7", trained, said, setting.words)
