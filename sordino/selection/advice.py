"""PAW's flowchart (Fig. 11, Section VII-D) walked from top to bottom, with the numbers behind every answer.

Its drawing is lost; the questions are those of the paper's takeaways. All is computed from public facts (how many
records, which columns, ε and δ), so it is free; thresholds that the paper measured are carried over to another n by the
noise on a mean, σ/n, and say where they come from.
"""

from dataclasses import dataclass, replace
from math import inf, sqrt
from statistics import median
from typing import Any

from sordino.budget import Gaussian, RepeatAndSelect, calibration, cost
from sordino.data import Schema
from sordino.selection.advice_request import (
    SELECTION_SHARE,
    STRONG_WEIGHT,
    AdviceRequest,
    BudgetSplit,
    noise_of_run,
    weight_noise,
)
from sordino.selection.crossover_measurement import Progress, epsilon_grid, measure_on_proxy
from sordino.selection.proxy_rows import ProxyRows
from sordino.selection.table_models import (
    BINS,
    MODELS,
    BinnedLogisticModel,
    LogisticModel,
    trained_parameters,
    usual_models,
)

_FIGURE_8 = {"epsilon": 0.5, "parameters": 56_970, "n": 60_000, "delta": 1e-5}
_FIGURE_10 = {"epsilon": 1.4, "n": 60_000, "delta": 1e-5}
_TRIALS = 5.0
_POOL = 2
_COMPONENTS = 60
_LEAST_NOISE = 0.01
_POINTS, _REPEATS = 5, 4


@dataclass(frozen=True)
class Answer:
    """One question of the flowchart, answered."""

    question: str
    answer: str
    numbers: dict[str, Any]
    cost: float
    """ε on its own of what is advised; 0 is free."""


def advise(request: AdviceRequest) -> list[Answer]:
    """The flowchart. Nothing private is read."""
    answers = [_public_data(request), _splitting(request)]
    if request.facts.kind == "table":
        answers += [_selection(request), _one_hot(request)]
    elif request.facts.kind == "image":
        answers += [_images(request)]
    return [
        *answers,
        _model(request),
        _layers(request),
        _freezing(request),
        _learning_rate(request),
        _score(request),
    ]


def advised_model(request: AdviceRequest) -> str:
    return str(_model(request).numbers["model"])


def measured_request(
    request: AdviceRequest, schema: Schema, proxy: ProxyRows, on_progress: Progress = lambda done, total: None
) -> AdviceRequest:
    """The request with the best model at its ε, as measured on proxy rows: free."""
    models, grid = usual_models(schema), epsilon_grid(request.epsilon, _POINTS)
    found = measure_on_proxy(models, schema, proxy, request.trained, grid, request.delta, _REPEATS, on_progress)
    report = found.report(models, schema, request.epsilon)
    numbers = {name: report[name] for name in ("measured_on", "ranges", "learning_rates")}
    pairs = [{name: value for name, value in each.items() if name != "words"} for each in report["crossovers"]]
    return replace(request, best_measured=report["best"], measured=numbers | {"crossovers": pairs})


def _public_data(s: AdviceRequest) -> Answer:
    question = "Is there public data like the private?"
    if s.public_records:
        return Answer(
            question,
            f"Yes, {s.public_records:,} records: choose everything on them, free, and spend all of ε={s.epsilon:g} on "
            "training. The final score shows whether they were alike.",
            {"public_records": s.public_records, "private_records": s.n},
            0.0,
        )
    return Answer(
        question,
        "No: every choice made on private records is charged. Synthetic records with the same columns (`sordino "
        "crossover`) still show, free, which model the noise allows.",
        {"public_records": 0, "private_records": s.n},
        0.0,
    )


def _splitting(s: AdviceRequest) -> Answer:
    split = s.split
    parts = {"selection": split.selection, "tuning": split.tuning, "training": split.training}
    epsilons = {name: split.epsilon(share) for name, share in parts.items()}
    growth = 1 / sqrt(split.training) - 1
    shares = ", ".join(
        f"{name} {100 * share:.3g} % (ε={epsilons[name]:.3g} alone)" for name, share in parts.items() if share
    )
    loss = f"; selection makes the noise of training {100 * growth:.2g} % larger" if growth else ""
    return Answer(
        "How is ε divided?",
        f"{shares}{loss}. The score is of the {s.n - s.trained:,} records set aside, which train nothing: it may cost "
        f"ε={s.epsilon:g} without raising the whole.",
        {"shares": parts, "epsilons_alone": epsilons, "noise_of_whole_budget": split.whole_noise},
        s.epsilon,
    )


def _selection(s: AdviceRequest) -> Answer:
    noise, even, ratio = s.tables_noise
    numbers = {
        "noise_of_a_count": noise,
        "records_in_an_even_cell": even,
        "noise_share": ratio,
        "pair_tables": len(s.columns) * (len(s.columns) + 1) // 2,
        "pafs_noise_factor_100_subsets": sqrt(100),
    }
    question = "Are features selected?"
    if s.selects_freely:
        numbers = {"all_pay_from_epsilon": s.all_pay_from}
        return Answer(question, "Yes, by CFS-Greedy on the public records: free.", numbers, 0.0)
    pafs = "PAFS would train once for each subset it tries: 100 of them make the noise of each 10 times as large."
    if ratio == inf:
        return Answer(question, "No: there are no pairs of columns, or their tables are too large.", numbers, 0.0)
    released = (
        f"the tables of all {numbers['pair_tables']} pairs of columns and target, released together, have noise of "
        f"±{noise:,.3g} on a count with the target, where an even cell holds {even:,.3g} of {s.trained:,} records "
        f"({100 * ratio:.3g} %)"
    )
    if s.selects:
        return Answer(question, f"Yes, by private CFS: {released}. {pafs}", numbers, s.split.epsilon(s.split.selection))
    if s.epsilon >= s.all_pay_from:
        answer = f"No: from about ε={s.all_pay_from:.2g} on, the weights of most columns stand above their noise"
        if s.public_records:
            answer += "."
        else:
            answer += f", and looking for the best of them costs more than it saves. {pafs}"
        return Answer(question, answer, numbers, 0.0)
    return Answer(
        question,
        f"Not on private records: {released}, so the order would be chance. Choose columns by what is "
        f"known of them. {pafs}",
        numbers,
        0.0,
    )


def _one_hot(s: AdviceRequest) -> Answer:
    words = [column for column in s.columns if column.categories is not None]
    question = "One-hot encoding, or drop categorical columns?"
    numeric = len(s.columns) - len(words)
    if not words:
        return Answer(question, "There are none.", {"width": s.width, "numeric_width": numeric}, 0.0)
    noise = weight_noise(s.columns, s.trained, s.training_noise)
    kept = s.kept
    dropped = [column.name for column in s.columns if column not in kept]
    typical = median(len(column.categories or ()) for column in words)
    pays_from = s.all_pay_from
    worst = max(noise, key=lambda name: noise[name])
    numbers = {
        "width": s.width,
        "numeric_width": numeric,
        "noise_of_weights": noise,
        "strong_weight": STRONG_WEIGHT,
        "one_hot_pays_from_epsilon": None if pays_from == inf else pays_from,
        "kept": [column.name for column in kept],
        "dropped": dropped,
    }
    from_where = f"from about ε={pays_from:.2g}" if pays_from < inf else "at no ε in use"
    why = (
        f"the noise on a weight of logistic regression is up to {noise[worst]:.2g} ({worst}), and a strong weight is "
        f"about {STRONG_WEIGHT:g}; with {typical:g} categories a column, one-hot encoding pays {from_where} at this n "
        "(PAW saw 0.01 to 0.05 on Adult)"
    )
    if s.selects_freely:
        verdict = "One-hot: of the encoded features those stay that the public records select"
    elif not dropped:
        verdict = f"Keep all {s.width} encoded features"
    elif kept:
        verdict = f"Drop {', '.join(dropped)}"
    else:
        verdict = "No column stands above the noise: raise ε, or find more records"
    return Answer(question, f"{verdict}: {why}.", numbers, 0.0)


def _images(s: AdviceRequest) -> Answer:
    share = BudgetSplit.proposed(s.epsilon, s.delta, selects=True, tunes=False)
    noise = share.noise(SELECTION_SHARE) * sqrt(2 * s.width)
    even = s.trained / s.width
    pooled = s.width // _POOL**2
    weights = {
        name: (width + 1) * s.outputs for name, width in (("all", s.width), ("pooled", pooled), ("pca", _COMPONENTS))
    }
    numbers = {
        "width": s.width,
        "pooled_width": pooled,
        "components": _COMPONENTS,
        "linear_weights": weights,
        "pca_noise_norm": noise,
        "even_eigenvalue": even,
    }
    question = "Images: PCA or max-pooling?"
    if s.public_records:
        return Answer(
            question,
            f"PCA fitted on the public images, free: {_COMPONENTS} components leave a linear model "
            f"{weights['pca']:,} of {weights['all']:,} weights.",
            numbers,
            0.0,
        )
    if noise < even:
        return Answer(
            question,
            f"DP-PCA can be had: the noise on the covariance has norm {noise:,.3g}, an even eigenvalue is {even:,.3g}; "
            f"{_COMPONENTS} components leave a linear model {weights['pca']:,} of {weights['all']:,} weights. "
            f"Max-pooling is free and leaves {weights['pooled']:,}: try it first.",
            numbers,
            share.epsilon(SELECTION_SHARE),
        )
    return Answer(
        question,
        f"Max-pooling, which is free: it leaves a linear model {weights['pooled']:,} of {weights['all']:,} weights. "
        f"DP-PCA would have noise of norm {noise:,.3g} on the covariance, whose even eigenvalue is {even:,.3g}; only "
        "directions much stronger than that would show.",
        numbers,
        0.0,
    )


def _model(s: AdviceRequest) -> Answer:
    numbers_only = tuple(column for column in s.columns if column.bounds is not None)
    sizes: dict[str, int] = {}
    for each in MODELS:
        needs_numbers = each.numeric_only or isinstance(each, BinnedLogisticModel)
        if (each.hidden or isinstance(each, LogisticModel)) and (numbers_only or not needs_numbers):
            columns = numbers_only if each.numeric_only else s.columns
            sizes[each.name] = each.weights(each.width(columns) if columns else s.width, s.outputs)
    noise = {name: noise_of_run(size, s.training_noise, s.trained) for name, size in sizes.items()}
    figure = calibration.noise_multiplier(Gaussian, _FIGURE_8["epsilon"], _FIGURE_8["delta"])
    allowed = noise_of_run(int(_FIGURE_8["parameters"]), figure, int(_FIGURE_8["n"]))
    listed = ", ".join(f"{name} {sizes[name]:,} weights: {each:.2g}" for name, each in noise.items())
    numbers = {"weights": sizes, "noise_of_run": noise, "noise_where_networks_begin": allowed, **s.measured}
    question, spent = "Which model?", s.split.epsilon(s.split.training)
    if s.best_measured is not None:
        words = f"{s.best_measured}: it had the best measured mean at ε={s.epsilon:g}, free"
        return Answer(
            question,
            f"{words}. Noise of the run against the clip: {listed}.",
            numbers | {"model": s.best_measured},
            spent,
        )
    networks = [each.name for each in MODELS if each.hidden and noise[each.name] <= allowed]
    words_pay = any(column.categories is not None for column in s.kept)
    linear = "logistic" if words_pay or s.selects_freely or not numbers_only else "logistic-numeric"
    if numbers_only and s.bins_pay:
        return Answer(
            question,
            f"logistic-binned: a strong weight of one of {BINS} bins of a number stands above its noise, and with bins "
            f"a logistic regression bends as a network does, for fewer weights ({listed}). `--measure` or `sordino "
            "crossover` shows whether a network does better still.",
            numbers | {"model": "logistic-binned"},
            spent,
        )
    if networks:
        words = f"{networks[-1]}, the largest network whose noise of the whole run, σ·√weights/n, is at most"
    else:
        words = f"{linear}: a network's noise of the whole run, σ·√weights/n, would be above"
    return Answer(
        question,
        f"{words} the {allowed:.2g} that PAW's has at ε=0.5 in Fig. 8, where it is past its crossover with logistic "
        f"regression ({listed}). `sordino crossover` measures it.",
        numbers | {"model": networks[-1] if networks else linear},
        spent,
    )


def _layers(s: AdviceRequest) -> Answer:
    wide, deep = trained_parameters(s.width, (128,), s.outputs), trained_parameters(s.width, (128,) * 4, s.outputs)
    return Answer(
        "If a network: deep or wide?",
        f"One wide hidden layer. With 128 units it has {wide:,} weights; four such layers have {deep:,}, so "
        f"{100 * (sqrt(deep / wide) - 1):.0f} % more noise of the run, and depth hurts beyond its weights (Fig. 12).",
        {"one_layer": wide, "four_layers": deep, "noise_ratio": sqrt(deep / wide)},
        0.0,
    )


def _freezing(s: AdviceRequest) -> Answer:
    figure = calibration.noise_multiplier(Gaussian, _FIGURE_10["epsilon"], _FIGURE_10["delta"])
    here = figure * s.trained / _FIGURE_10["n"]
    threshold = cost(Gaussian(here), s.delta).epsilon if here > _LEAST_NOISE else inf
    whole, last = trained_parameters(s.width, (128,), s.outputs), trained_parameters(128, (), s.outputs)
    noise = [noise_of_run(size, s.training_noise, s.trained) for size in (whole, last)]
    small = s.epsilon < threshold
    at = f"ε={threshold:.3g}" if threshold < inf else "every ε in use"
    return Answer(
        "If a network: train all of it, or freeze random layers?",
        f"{'Freeze the first layer as it was drawn' if small else 'Train all of it'}: at this n, {at} has the noise of "
        f"PAW's ε=1.4 at 60,000 records, below which frozen layers won (Fig. 10). Of 128 units, {last:,} of {whole:,} "
        f"weights would be trained, and the noise of the run be {noise[1]:.2g} in place of {noise[0]:.2g}.",
        {
            "freeze_below_epsilon": None if threshold == inf else threshold,
            "weights": whole,
            "trained_if_frozen": last,
            "noise_of_run": noise[0],
            "noise_of_run_if_frozen": noise[1],
        },
        0.0,
    )


def _learning_rate(s: AdviceRequest) -> Answer:
    single = s.split.whole_noise
    try:
        tuned = calibration.noise_multiplier(
            lambda sigma: RepeatAndSelect(Gaussian(sigma), _TRIALS), s.epsilon, s.delta
        )
    except calibration.OutOfReach:  # at so small an ε its bound is met with no noise at all
        tuned = inf
    where = "the public records" if s.public_records else "synthetic records of this size"
    taken = f"takes {tuned / single:.2f} times the noise" if tuned < inf else "cannot be had at so small an ε"
    return Answer(
        "Which learning rate?",
        f"One for each model and ε, tried on {where}: free. Tried on the private ones instead, the best of {_TRIALS:g} "
        f"trials in the mean (a random number, priced as one selection) {taken}.",
        {"noise_once": single, "noise_tuned": tuned, "noise_ratio": tuned / single, "mean_trials": _TRIALS},
        0.0,
    )


def _score(s: AdviceRequest) -> Answer:
    held = s.n - s.trained
    noise, chance = s.split.whole_noise / held, 0.5 / sqrt(held)
    return Answer(
        "How good is the result?",
        f"Score it once on the {held:,} records set aside: noise adds ±{100 * noise:.2g} % to their accuracy, beside "
        f"±{100 * chance:.2g} % of chance at most. They cost training {100 * held / s.n:.3g} % of its records.",
        {"records": held, "noise_of_score": noise, "chance_of_score": chance},
        s.epsilon,
    )
