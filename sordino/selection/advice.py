"""PAW's flowchart (Fig. 11, Section VII-D) from top to bottom, with the numbers behind every answer.

Its drawing is lost; the questions are those of the paper's takeaways. All is computed from public facts (how many
records, which columns, ε and δ), so it is free; thresholds that the paper measured are carried over to another n by the
noise on a mean, σ/n, and say where they come from.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, sqrt
from statistics import median
from typing import Any

from sordino.budget import Gaussian, RepeatAndSelect, calibration, cost
from sordino.data import Schema
from sordino.selection.advice_request import (
    LEAST_NOISE,
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

_FIGURES_N, _FIGURES_DELTA = 60_000, 1e-5
_FIGURE_8_EPSILON, _FIGURE_8_WEIGHTS = 0.5, 56_970
_FIGURE_10_EPSILON = 1.4
_TRIALS = 5.0
_POOL = 2
_COMPONENTS = 60
_POINTS, _REPEATS = 5, 4


@dataclass(frozen=True)
class Answer:
    """One question of the flowchart, answered."""

    question: str
    answer: str
    numbers: dict[str, Any]
    cost: float
    """ε on its own of what is advised; 0 is free."""


Reply = tuple[str, dict[str, Any], float]
"""An answer, the numbers behind it, and its cost."""


def advise(request: AdviceRequest) -> list[Answer]:
    """The flowchart. Nothing private is read."""
    return [
        Answer(question, *reply(request)) for question, kind, reply in _FLOWCHART if kind in (None, request.facts.kind)
    ]


def advised_model(request: AdviceRequest) -> str:
    _, numbers, _ = _model(request)
    return str(numbers["model"])


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


def _public_data(s: AdviceRequest) -> Reply:
    answer = (
        "No: every choice made on private records is charged. Synthetic records with the same columns (`sordino "
        "crossover`) still show, free, which model the noise allows."
    )
    if s.public_records:
        answer = (
            f"Yes, {s.public_records:,} records: choose everything on them, free, and spend all of ε={s.epsilon:g} on "
            "training. The final score shows whether the public records were similar enough."
        )
    return answer, {"public_records": s.public_records, "private_records": s.n}, 0.0


def _splitting(s: AdviceRequest) -> Reply:
    split = s.split
    parts = {"selection": split.selection, "tuning": 0.0, "training": split.training}
    epsilons = {name: split.epsilon(share) for name, share in parts.items()}
    growth = 1 / sqrt(split.training) - 1
    shares = ", ".join(
        f"{name} {100 * share:.3g} % (ε={epsilons[name]:.3g} alone)" for name, share in parts.items() if share
    )
    loss = f"; selection makes the noise of training {100 * growth:.2g} % larger" if growth else ""
    answer = (
        f"{shares}{loss}. The score is on the {s.n - s.trained:,} held-out records, which train nothing: it may cost "
        f"ε={s.epsilon:g} without raising the total."
    )
    numbers = {"shares": parts, "epsilons_alone": epsilons, "noise_of_whole_budget": split.whole_noise}
    return answer, numbers, s.epsilon


def _selection(s: AdviceRequest) -> Reply:
    if s.selects_freely:
        numbers = {"all_pay_from_epsilon": s.all_pay_from}
        return "Yes, by CFS-Greedy on the public records: free.", numbers, 0.0
    noise, even, ratio = s.tables_noise
    pairs = len(s.columns) * (len(s.columns) + 1) // 2
    numbers = {
        "noise_of_a_count": noise,
        "records_in_an_even_cell": even,
        "noise_share": ratio,
        "pair_tables": pairs,
        "pafs_noise_factor_100_subsets": sqrt(100),
    }
    if ratio == inf:
        return "No: there are no pairs of columns, or their tables are too large.", numbers, 0.0
    pafs = "PAFS would train once for each subset it tries: 100 of them make the noise of each 10 times as large."
    released = (
        f"the tables of all {pairs} pairs of columns and target, released together, have noise of "
        f"±{noise:,.3g} on a count with the target, where an even cell holds {even:,.3g} of {s.trained:,} records "
        f"({100 * ratio:.3g} %)"
    )
    if s.selects:
        return f"Yes, by private CFS: {released}. {pafs}", numbers, s.split.epsilon(s.split.selection)
    if s.epsilon < s.all_pay_from:
        known = "so the order would be random. Choose columns by what is known about them."
        return f"Not on private records: {released}, {known} {pafs}", numbers, 0.0
    price = "." if s.public_records else f", and looking for the best of them costs more than it saves. {pafs}"
    pay = f"from about ε={s.all_pay_from:.2g} on, the weights of most columns stand above their noise"
    return f"No: {pay}{price}", numbers, 0.0


def _one_hot(s: AdviceRequest) -> Reply:
    words = [column for column in s.columns if column.categories is not None]
    numeric = len(s.columns) - len(words)
    if not words:
        return "There are none.", {"width": s.width, "numeric_width": numeric}, 0.0
    noise = weight_noise(s.columns, s.trained, s.training_noise)
    dropped = [column.name for column in s.columns if column not in s.kept]
    typical = median(len(column.categories or ()) for column in words)
    pays_from = s.all_pay_from
    worst = max(noise, key=lambda name: noise[name])
    numbers = {
        "width": s.width,
        "numeric_width": numeric,
        "noise_of_weights": noise,
        "strong_weight": STRONG_WEIGHT,
        "one_hot_pays_from_epsilon": None if pays_from == inf else pays_from,
        "kept": [column.name for column in s.kept],
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
    elif s.kept:
        verdict = f"Drop {', '.join(dropped)}"
    else:
        verdict = "No column stands above the noise: raise ε, or find more records"
    return f"{verdict}: {why}.", numbers, 0.0


def _images(s: AdviceRequest) -> Reply:
    share = BudgetSplit.proposed(s.epsilon, s.delta, selects=True)
    noise, even = share.noise(SELECTION_SHARE) * sqrt(2 * s.width), s.trained / s.width
    widths = {"all": s.width, "pooled": s.width // _POOL**2, "pca": _COMPONENTS}
    weights = {name: (width + 1) * s.outputs for name, width in widths.items()}
    numbers = {
        "width": s.width,
        "pooled_width": widths["pooled"],
        "components": _COMPONENTS,
        "linear_weights": weights,
        "pca_noise_norm": noise,
        "even_eigenvalue": even,
    }
    left = f"{_COMPONENTS} components leave a linear model {weights['pca']:,} of {weights['all']:,} weights."
    if s.public_records:
        return f"PCA fitted on the public images, free: {left}", numbers, 0.0
    if noise < even:
        answer = (
            f"DP-PCA is possible: the noise on the covariance has norm {noise:,.3g}, an even eigenvalue is "
            f"{even:,.3g}; {left} Max-pooling is free and leaves {weights['pooled']:,}: try it first."
        )
        return answer, numbers, share.epsilon(SELECTION_SHARE)
    answer = (
        f"Max-pooling, which is free: it leaves a linear model {weights['pooled']:,} of {weights['all']:,} weights. "
        f"DP-PCA would have noise of norm {noise:,.3g} on the covariance, whose even eigenvalue is {even:,.3g}; only "
        "directions much stronger than that would show."
    )
    return answer, numbers, 0.0


def _model(s: AdviceRequest) -> Reply:
    numbers_only = tuple(column for column in s.columns if column.bounds is not None)
    sizes: dict[str, int] = {}
    for each in MODELS:
        needs_numbers = each.numeric_only or isinstance(each, BinnedLogisticModel)
        if (each.hidden or isinstance(each, LogisticModel)) and (numbers_only or not needs_numbers):
            columns = numbers_only if each.numeric_only else s.columns
            sizes[each.name] = each.weights(each.width(columns) if columns else s.width, s.outputs)
    noise = {name: noise_of_run(size, s.training_noise, s.trained) for name, size in sizes.items()}
    allowed = noise_of_run(_FIGURE_8_WEIGHTS, _noise_in_figure(_FIGURE_8_EPSILON), _FIGURES_N)
    listed = ", ".join(f"{name} {sizes[name]:,} weights: {each:.2g}" for name, each in noise.items())
    networks = [each.name for each in MODELS if each.hidden and noise[each.name] <= allowed]
    past = (
        f"the {allowed:.2g} that PAW's has at ε={_FIGURE_8_EPSILON:g} in Fig. 8, where it is past its crossover with "
        f"logistic regression ({listed}). `sordino crossover` measures it."
    )
    if s.best_measured is not None:
        model = s.best_measured
        answer = (
            f"{model}: it had the best measured mean at ε={s.epsilon:g}, free. Noise of the run against the clip: "
            f"{listed}."
        )
    elif numbers_only and s.bins_pay:
        model = "logistic-binned"
        answer = (
            f"{model}: a strong weight of one of {BINS} bins of a number stands above its noise, and with bins "
            f"a logistic regression fits curves as a network does, with fewer weights ({listed}). `--measure` or "
            "`sordino crossover` shows whether a network does better still."
        )
    elif networks:
        model = networks[-1]
        answer = f"{model}, the largest network whose noise of the whole run, σ·√weights/n, is at most {past}"
    else:
        words_pay = any(column.categories is not None for column in s.kept)
        model = "logistic" if words_pay or s.selects_freely or not numbers_only else "logistic-numeric"
        answer = f"{model}: a network's noise of the whole run, σ·√weights/n, would be above {past}"
    numbers = {"weights": sizes, "noise_of_run": noise, "noise_where_networks_begin": allowed, **s.measured}
    return answer, numbers | {"model": model}, s.split.epsilon(s.split.training)


def _layers(s: AdviceRequest) -> Reply:
    wide, deep = trained_parameters(s.width, (128,), s.outputs), trained_parameters(s.width, (128,) * 4, s.outputs)
    answer = (
        f"One wide hidden layer. With 128 units it has {wide:,} weights; four such layers have {deep:,}, so "
        f"{100 * (sqrt(deep / wide) - 1):.0f} % more noise of the run, and depth hurts beyond its weights (Fig. 12)."
    )
    return answer, {"one_layer": wide, "four_layers": deep, "noise_ratio": sqrt(deep / wide)}, 0.0


def _freezing(s: AdviceRequest) -> Reply:
    here = _noise_in_figure(_FIGURE_10_EPSILON) * s.trained / _FIGURES_N
    threshold = cost(Gaussian(here), s.delta).epsilon if here > LEAST_NOISE else inf
    whole, last = trained_parameters(s.width, (128,), s.outputs), trained_parameters(128, (), s.outputs)
    noise, noise_if_frozen = (noise_of_run(size, s.training_noise, s.trained) for size in (whole, last))
    verdict = "Freeze the first layer at its random initial weights" if s.epsilon < threshold else "Train all of it"
    at = f"ε={threshold:.3g}" if threshold < inf else "every ε in use"
    answer = (
        f"{verdict}: at this n, {at} has the noise of "
        f"PAW's ε={_FIGURE_10_EPSILON:g} at {_FIGURES_N:,} records, below which frozen layers won (Fig. 10). Of 128 "
        f"units, {last:,} of {whole:,} weights would be trained, and the noise of the run would be "
        f"{noise_if_frozen:.2g} instead of {noise:.2g}."
    )
    numbers = {
        "freeze_below_epsilon": None if threshold == inf else threshold,
        "weights": whole,
        "trained_if_frozen": last,
        "noise_of_run": noise,
        "noise_of_run_if_frozen": noise_if_frozen,
    }
    return answer, numbers, 0.0


def _learning_rate(s: AdviceRequest) -> Reply:
    single = s.split.whole_noise
    try:
        tuned = calibration.noise_multiplier(
            lambda sigma: RepeatAndSelect(Gaussian(sigma), _TRIALS), s.epsilon, s.delta
        )
    except calibration.OutOfReach:  # at so small an ε its bound is met with no noise at all
        tuned = inf
    where = "the public records" if s.public_records else "synthetic records of this size"
    taken = f"takes {tuned / single:.2f} times the noise" if tuned < inf else "is impossible at so small an ε"
    answer = (
        f"One for each model and ε, tried on {where}: free. Tried on the private ones instead, the best of {_TRIALS:g} "
        f"trials on average (a random number, priced as one selection) {taken}."
    )
    numbers = {"noise_once": single, "noise_tuned": tuned, "noise_ratio": tuned / single, "mean_trials": _TRIALS}
    return answer, numbers, 0.0


def _score(s: AdviceRequest) -> Reply:
    held = s.n - s.trained
    noise, chance = s.split.whole_noise / held, 0.5 / sqrt(held)
    answer = (
        f"Score it once on the {held:,} held-out records: noise adds ±{100 * noise:.2g} % to the accuracy, besides "
        f"at most ±{100 * chance:.2g} % by chance. They cost training {100 * held / s.n:.3g} % of its records."
    )
    return answer, {"records": held, "noise_of_score": noise, "chance_of_score": chance}, s.epsilon


def _noise_in_figure(epsilon: float) -> float:
    return calibration.noise_multiplier(Gaussian, epsilon, _FIGURES_DELTA)


_FLOWCHART: tuple[tuple[str, str | None, Callable[[AdviceRequest], Reply]], ...] = (
    ("Is there public data like the private?", None, _public_data),
    ("How is ε divided?", None, _splitting),
    ("Are features selected?", "table", _selection),
    ("One-hot encoding, or drop categorical columns?", "table", _one_hot),
    ("Images: PCA or max-pooling?", "image", _images),
    ("Which model?", None, _model),
    ("If a network: deep or wide?", None, _layers),
    ("If a network: train all of it, or freeze random layers?", None, _freezing),
    ("Which learning rate?", None, _learning_rate),
    ("How good is the result?", None, _score),
)
"""Questions from top to bottom, the kind of data each is for (None: any), and how it is answered."""
