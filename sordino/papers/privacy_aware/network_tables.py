"""PAW's tables of networks: workflows (I, IV, V, XIII), regression (XIV, XV), clip (E), RWT (VI, VII), time (XVII)."""

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.nn import functional

from sordino.data import ArrayRecords, PoissonSampler
from sordino.mechanisms import Streams
from sordino.papers.declarations import Declaration, declared
from sordino.papers.privacy_aware.intervals import Comparison, Interval
from sordino.papers.privacy_aware.network_rows import (
    FULL_CNN,
    FULL_FCN,
    RWT_FCN,
    RWT_FULL,
    RWT_SHORT,
    SHORT_CNN,
    SHORT_FCN,
    NetworkRow,
    Setting,
    network_record,
)
from sordino.papers.privacy_aware.network_trials import UNCLIPPED, repeated, tune_rate, tuned
from sordino.papers.privacy_aware.networks import NETWORKS, REGRESSIONS, RWT, TRAINING_RECORDS, Network, parts_of
from sordino.papers.records import Cell, Record
from sordino.papers.trials import Experiment
from sordino.training import SGD, Plan, Training, train_steps

_WORKFLOWS = ("STW", "PAW")
_ALSO_FULL = ("MNIST FCN", "Fashion-MNIST FCN")
"""Trained twice: for fewer epochs, each network at a rate tuned for it, and for PAW's, both at one rate."""
_UNTUNED = ("Location-30 FCN",)
"""Trained for PAW's epochs alone."""
_ONLY_IN_FULL = ("SVHN CNN", "CIFAR-10 CNN")
"""In as few epochs as here these learn too little, and that from seed to seed too differently, to tell anything."""


def _pair_rows(experiment: Experiment, item: Declaration) -> list[NetworkRow]:
    """Published are a pair's name, ε, and accuracies of STW's and PAW's network by DP-SGD and by SGD.

    A stand-in is trained at the paper's σ, the last figure: the paper's ε means something else on its records.
    """
    rows = []
    for name, epsilon, private, plain, *sigma in item.published[2:3] if experiment.quick else item.published:
        if name in _ONLY_IN_FULL and not experiment.full:
            continue
        whole, short = (FULL_CNN, SHORT_CNN) if "CNN" in name else (FULL_FCN, SHORT_FCN)
        only_full = experiment.full or name in _UNTUNED
        lengths = {} if only_full else {f"reduced: {short.epochs:g} epochs": short}
        if only_full or name in _ALSO_FULL:
            lengths["in full"] = whole
        budget, noise = (None, sigma[0]) if sigma else (epsilon, None)
        for length, setting in lengths.items():
            for workflow, paper, paper_plain in zip(_WORKFLOWS, private, plain, strict=True):
                more: dict[str, Cell] = {"network": name, "workflow": workflow, "paper's ε": epsilon, "length": length}
                rows.append(NetworkRow(f"{name} {workflow}", budget, setting, paper, paper_plain, noise, more))
    return rows


def _compared(name: str, pair: Sequence[NetworkRow]) -> Comparison:
    """The complex network's trainings and the simple one's."""
    complex_, simple = pair
    return Comparison(name, complex_.private, simple.private, complex_.plain, simple.plain)


_ONE_RATE = ", both at one untuned rate"


def _caveat(row: NetworkRow) -> str:
    return _ONE_RATE if len(row.setting.rates) == 1 else ""


def table_1(experiment: Experiment, item: Declaration) -> Record:
    """All pairs of networks of the two workflows."""
    trained = [row.trained(experiment, plain=True) for row in _pair_rows(experiment, item)]
    pairs = [
        _compared(str(complex_.more["network"]) + _caveat(complex_), (complex_, simple))
        for complex_, simple in zip(trained[::2], trained[1::2], strict=True)
    ]
    fcn, cnn = experiment.pick((SHORT_FCN, SHORT_CNN), (FULL_FCN, FULL_CNN))
    tuned_pairs = [pair for pair in pairs if not pair.name.endswith(_ONE_RATE)]
    shown = (
        f"The phenomenon shows with intervals apart in {sum(bool(p.shows) for p in tuned_pairs)} of "
        f"{len(tuned_pairs)} pairs whose networks have rates of their own; of pairs at one untuned rate, against which "
        f"PAW's Figure 9 warns, in {sum(bool(p.shows) for p in pairs if p not in tuned_pairs)} of "
        f"{len(pairs) - len(tuned_pairs)}"
    )
    words = {"fcns": fcn.words["without_noise"], "cnns": cnn.words["without_noise"]}
    return network_record(experiment, item, trained, [shown, *(pair.words() for pair in pairs)], words)


def choices(experiment: Experiment, item: Declaration) -> Record:
    """The learning rates of Table I, on held-out training records."""
    rows: list[list[Cell]] = []
    every = _pair_rows(replace(experiment, quick=False), declared("privacy-aware")["table-1"])
    for row in [each for each in every if each.network == "MNIST CNN PAW"] if experiment.quick else every:
        if len(row.setting.rates) > 1:
            trial = row.setting.private(row.network, row.epsilon, row.noise_multiplier)
            best, tries = tune_rate(experiment, trial, row.setting.rates)
            listed = ", ".join(f"{rate:g}: {100 * share:.2f}" for rate, share in tries.items())
            records = TRAINING_RECORDS[NETWORKS[row.network].dataset]
            rows.append([row.network, row.setting.batch, records, listed, best])
    always = experiment.pick("one seed", "nothing to choose: all are trained in full, at PAW's rates")
    return item.record(experiment, rows, words={"always": always})


def table_4(experiment: Experiment, item: Declaration) -> Record:
    """LeNet-5 against networks that were searched for.

    Published are ε, accuracies by DP-SGD and SGD of STW's network, PAW's and LeNet-5, epochs and batch.
    """
    names = ("MNIST CNN STW", "MNIST CNN PAW", "MNIST LeNet-5")
    usual = experiment.pick(SHORT_CNN, FULL_CNN)
    trained: list[NetworkRow] = []
    ahead = []
    for epsilon, *theirs, epochs, batch in experiment.some(experiment.pick(item.published[::2], item.published)):
        setting = replace(usual, epochs=epochs, batch=batch) if experiment.full else usual
        compared = list(zip(names, theirs, strict=True))
        for name, (paper, paper_plain) in compared[1:] if experiment.quick else compared:
            row = NetworkRow(name, epsilon, setting, paper, paper_plain).trained(experiment)
            trained.append(replace(row, plain_results=repeated(experiment, usual.plain(name), usual.seeds)))
        gap = trained[-2].private.ahead_of(trained[-1].private)
        ahead.append(f"ε={epsilon:g}: PAW's network is better than LeNet-5 by {gap}")
    return network_record(experiment, item, trained, ahead, usual.words)


def table_5(experiment: Experiment, item: Declaration) -> Record:
    """SVHN by its principal components or its pixels."""
    setting = experiment.pick(SHORT_FCN, FULL_FCN)
    trained = []
    for end, workflow, private, plain, count in experiment.some(item.published, 2):
        name = f"SVHN FCN {workflow}{end}"
        more: dict[str, Cell] = {"network": name if end else f"{name}, PCA", "paper's parameters": count}
        trained.append(NetworkRow(name, 2.58, setting, private, plain, more=more).trained(experiment, plain=True))
    said = [_compared(name, trained[i : i + 2]).words() for name, i in (("PCA", 0), ("no PCA", 2)) if i < len(trained)]
    said += [
        f"{workflow}: PCA is better by {pca.private.ahead_of(pixels.private)} under noise"
        for workflow, pca, pixels in zip(_WORKFLOWS, trained[:2], trained[2:], strict=False)
    ]
    return network_record(experiment, item, trained, said, setting.words)


_FULL_RNN = Setting(100, 50, (0.1, 0.2, 0.5), 20, plain_rate=5e-3)
_SHORT_RNN = Setting(100, 10, (0.5, 1.0, 2.0), 10, plain_rate=5e-3)
"""PAW gives none for LSTMs: these were tried on a tenth of the training messages, held out, with the small LSTM."""


def table_13(experiment: Experiment, item: Declaration) -> Record:
    """A large and a small LSTM."""
    setting = experiment.pick(_SHORT_RNN, _FULL_RNN)
    trained = [
        NetworkRow(name, 7.21, setting, private, plain).trained(experiment, plain=True)
        for name, private, plain in (("SMS RNN STW", 86.00, 98.80), ("SMS RNN PAW", 93.42, 98.68))
    ]
    words = {
        "constant": f"{100 * NETWORKS['SMS RNN STW'].constant():.2f}",
        "fewer": experiment.pick("10 epochs in place of 50, ", ""),
    }
    said = [_compared("SMS RNN", trained).words()]
    if not experiment.quick:
        large, small = (_tries(experiment, row.network, 7.21, setting) for row in trained)
        rate = max(set(large) & set(small), key=lambda rate: small[rate] - large[rate])
        said.append(
            f"PAW's 86.00 % for the large LSTM is what calling every message ham gives: it learned nothing there. So "
            f"it does here at a rate of {rate:g}, which suits the small one (held-out records, one seed: "
            f"{100 * large[rate]:.2f} and {100 * small[rate]:.2f} %); with a rate for each the large one is ahead "
            f"({100 * max(large.values()):.2f} and {100 * max(small.values()):.2f} %)"
        )
    return network_record(experiment, item, trained, said, setting.words | words)


_REGRESSION = Setting(100, 50, (0.01, 0.05, 0.25), 100, seeds=5, tuning_seeds=5)


def _tries(experiment: Experiment, network: str, epsilon: float, setting: Setting) -> dict[float, float]:
    """Held-out scores by learning rate, from which the rate was chosen."""
    return tune_rate(experiment, setting.private(network, epsilon), setting.rates, setting.tuning_seeds)[1]


def _widened_at_one_rate(experiment: Experiment, epsilon: float, units: Sequence[int], depths: Sequence[int]) -> str:
    """Held-out errors by width at the largest rate of the grid, the same for all."""
    rate = _REGRESSION.rates[-1]
    named = {shape: name for name, shape in REGRESSIONS.items()}
    errors = {
        depth: [_tries(experiment, named[depth, width], epsilon, _REGRESSION)[rate] for width in units]
        for depth in depths
    }
    listed = "; ".join(
        f"{depth} layers {', '.join(f'{error:.3g}' for error in found)}" for depth, found in errors.items()
    )
    return (
        f"Why the paper sees the opposite: at one rate of {rate:g} for all widths errors grow with width here, too "
        f"(held-out records, {units[0]} to {units[-1]} units: {listed}), and with a rate for each they do not. The "
        f"largest of the paper's errors, far above a constant answer's, are those of networks that diverged"
    )


def regression(experiment: Experiment, item: Declaration) -> Record:
    """Tables XIV and XV: errors by depth and width, at a budget or without noise."""
    units = experiment.some(sorted({units for _, units in REGRESSIONS.values()}), 2)
    depths = experiment.some(sorted({layers for layers, _ in REGRESSIONS.values()}))
    found: dict[tuple[int, int], Interval] = {}
    for name, (layers, width) in REGRESSIONS.items():
        if layers in depths and width in units:
            if "epsilon" in item.given:
                found[layers, width] = NetworkRow(name, item.given["epsilon"], _REGRESSION).trained(experiment).private
            else:
                found[layers, width] = Interval.of_scores(
                    repeated(experiment, _REGRESSION.plain(name), _REGRESSION.seeds)
                )
    best = min(
        (name for name, shape in REGRESSIONS.items() if shape in found), key=lambda n: found[REGRESSIONS[n]].mean
    )
    least = NETWORKS[best].constant()
    idle = [f"{d}×{w}" for (d, w), each in found.items() if each.mean + (each.half or 0) >= least]
    widened = []
    rows: list[list[Cell]] = []
    for layers, printed in zip(depths, item.published, strict=False):
        narrow, wide = found[layers, units[0]], found[layers, units[-1]]
        widened.append(f"{layers} layers {wide.mean - narrow.mean:+.4f} ({wide.beside(narrow)})")
        both = [(paper, found[layers, width].plain()) for width, paper in zip(units, printed, strict=False)]
        rows.append([layers, *(cell for pair in both for cell in pair)])
    reasons = []
    if "epsilon" in item.given and not experiment.quick:
        reasons = [_widened_at_one_rate(experiment, item.given["epsilon"], units, depths)]
    return item.record(
        experiment,
        rows,
        columns=["hidden layers", *(f"{who}, {width} units" for width in units for who in ("paper", "ours"))],
        follows=[
            f"Least error: {best} with {NETWORKS[best].counts[1]:,} parameters. From {units[0]} to {units[-1]} units: "
            + "; ".join(widened),
            f"The median as a constant answer has an error of {least:.4f}; not below it beyond the interval: "
            f"{', '.join(idle) or 'none'} (layers×units)",
            *reasons,
        ],
    )


def appendix_e(experiment: Experiment, item: Declaration) -> Record:
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
    said = [
        f"DP-SGD is ahead of SGD by {noisy.ahead_of(plain)}, clipped SGD without noise by "
        f"{only_clipped.ahead_of(plain)}, and DP-SGD of clipped SGD by {noisy.ahead_of(only_clipped)}",
        "PAW: 45.36 against about 50, which it attributes to the clip; its rates without clip are 1e-3 to 1e-4. "
        + ("So large an effect shows here, too" if noisy.above(plain) else "No such effect shows here"),
    ]
    return item.record(experiment, rows, follows=said, words=setting.words)


_HUGE, _THEIR_SIGMA = 1.47e11, 1e-4
"""PAW's largest ε, and the σ behind it."""


def table_6(experiment: Experiment, item: Declaration) -> Record:
    """RWT against training in full: published are a network, ε, and the accuracies of both."""
    said: list[str] = []
    trained: list[NetworkRow] = []
    for network, epsilon, *theirs in experiment.some(item.published, 2):
        setting = experiment.pick(RWT_SHORT, RWT_FULL)[network]
        budget, sigma = (None, _THEIR_SIGMA) if epsilon == _HUGE else (epsilon, None)
        for name, paper in zip((network, f"{network}{RWT}"), theirs, strict=True):
            row = NetworkRow(name, budget, setting, paper, noise_multiplier=sigma, more={"paper's ε": epsilon})
            trained.append(row.trained(experiment))
        whole, frozen = (row.private for row in trained[-2:])
        said.append(f"{network} at ε={epsilon:.3g}: RWT is {frozen.better_than(whole)}{_idle(network, whole, frozen)}")
    always = experiment.pick("{short_rwt}", "LSTMs {few_words}")
    return network_record(experiment, item, trained, said, {"always": always})


def _idle(network: str, whole: Interval, frozen: Interval) -> str:
    """Names what learned no more than the most frequent answer."""
    least = NETWORKS[network].constant()
    which = [way for way, each in (("trained in full", whole), ("with RWT", frozen)) if not each.exceeds(least)]
    return f"; {' and '.join(which)} it is not above a constant answer ({100 * least:.2f} %)" if which else ""


def table_7(experiment: Experiment, item: Declaration) -> Record:
    """A complex network with RWT against a simple one."""
    setting = experiment.pick(RWT_SHORT, RWT_FULL)[RWT_FCN]
    theirs = {RWT_FCN: 49.90, f"{RWT_FCN}{RWT}": 75.18, "MNIST FCN simple": 73.04}
    trained = [NetworkRow(name, 0.341, setting, paper).trained(experiment) for name, paper in theirs.items()]
    whole, frozen, simple = (row.private for row in trained)
    said = [
        f"Against training all of it: RWT is {frozen.better_than(whole)}",
        f"Against the simple network: RWT is {frozen.better_than(simple)}",
    ]
    return network_record(experiment, item, trained, said, setting.words)


_TIMED_BATCH, _ROUNDS = 100, 5


def table_17(experiment: Experiment, item: Declaration) -> Record:
    """Time of an epoch with DP-SGD and with SGD; published are its seconds."""
    rows: list[list[Cell]] = []
    ratios = []
    for name, private, plain in experiment.some(item.published):
        experiment.say(f"{name}: steps with and without privacy")
        network = NETWORKS[name]
        epoch = TRAINING_RECORDS[network.dataset] / _TIMED_BATCH
        steps, rounds = (1, 1) if experiment.quick else experiment.pick((3, _ROUNDS), (int(epoch), 1))
        ours = step_seconds(network, _TIMED_BATCH, steps, rounds)
        ratios.append(ours[0] / ours[1])
        row: list[Cell] = [name, network.counts[1], private, plain, private / plain]
        rows.append([*row, ours[0] * epoch, ours[1] * epoch, ratios[-1]])
    said = f"DP-SGD takes {min(ratios):.1f} to {max(ratios):.1f} times as long as SGD here, 19 to 37 times in PAW"
    return item.record(experiment, rows, follows=[said])


def step_seconds(network: Network, batch: int, steps: int, rounds: int) -> tuple[float, float]:
    """Of a private step and a plain one, measured in turn over so many."""
    parts = parts_of(network.dataset, network.inputs, 0, 4 * batch, 1)
    trained, records = network.trainable(), ArrayRecords(parts.x, parts.y)
    trained.choose(records, None, batch)
    streams = Streams(bytes(16))
    trained.initialise(streams)
    training = Training(Plan(PoissonSampler(4 * batch, batch), 1.0, 1.0, steps), trained, records, SGD(0.1))
    model = network.build()
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    x, y = torch.from_numpy(parts.x[:batch]), torch.from_numpy(parts.y[:batch])

    def private() -> None:
        train_steps(training, training.start(), streams, steps)

    def plain() -> None:
        for _ in range(steps):
            optimiser.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimiser.step()

    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):  # the first warms up
        for seconds, work in zip(taken, (private, plain), strict=True):
            begun = time.process_time()
            work()
            seconds.append((time.process_time() - begun) / steps)
    return min(taken[0][1:]), min(taken[1][1:])
