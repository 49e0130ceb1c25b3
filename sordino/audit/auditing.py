"""An audit of a plan, a recipe or a run: runs the real code on synthetic canaries, never on private records."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sordino.audit.bounds import check_levels, epsilon_lower_bound, one_run_lower_bound
from sordino.audit.noise import noise_test
from sordino.audit.result import SHARE, WIDE_DELTA, Audit, Finding, ReleaseBound
from sordino.audit.sampler import sampler_findings
from sordino.audit.sensitivity import adversarial_rows, sensitivity_probe
from sordino.audit.synthetic import KnownSums, Shapes, half_of, plan_at
from sordino.audit.weight_distributions import audit_weight_distributions
from sordino.audit.white_box import keys_differ, linear_attack, statistics_scores, threshold_scores, training_attack
from sordino.budget import Composed, Event, Ledger, Repeated, cost
from sordino.data import DataError, Facts, Records
from sordino.features import as_array
from sordino.mechanisms import ChannelMoments, Streams, ThresholdQuantiles
from sordino.runs import Run, RunError
from sordino.training import (
    DatasetRecipe,
    Description,
    LinearClassifier,
    LinearHead,
    NetworkHead,
    Plan,
    Trainable,
    WeightDistributionPlan,
    canaries,
    normalising,
    recipe,
)

RUNS = 20_000
"""Trials of the mechanism, half with the canary and half without."""
_FEWEST_RUNS, _MOST_RUNS = 100, 10_000_000
_TESTED_RECORDS = 2000
_LINEAR_RUNS = 2000
"""Canaries through a linear model: each has its own input, so their vectors take this number squared."""
_KEYED_RECORDS = 100
_PROBED_RECORDS, _PROBED_IN_A_NETWORK, _PROBED_LINEAR = 16, 128, 4096
"""Records to probe in batches of the plan's size: at least, and at most in networks and in linear models."""


def audit_plan(
    plan: Plan,
    delta: float,
    *,
    moments: ChannelMoments | ThresholdQuantiles | None = None,
    probed: tuple[Trainable, Records] | None = None,
    runs: int = RUNS,
    confidence: float = 0.95,
    streams: Streams | None = None,
) -> Audit:
    """Execute the plan on canaries, after its private statistics if it has any, and test its assumptions.

    The headline is about a canary that takes part in everything, at the plan's δ. The whole, the statistics and the
    training are also compared with their own ε at a larger δ, at a higher confidence. The sensitivity of the `probed`
    model is tested on adversarial records. The audit takes only the claim from the plan: faults of the loop, the
    sampler, the noise or the clip show as a bound above the claim, or as a test that fails.
    """
    _check(runs, delta, confidence)
    streams = Streams.fresh() if streams is None else streams
    small = plan_at(plan, runs)
    coins = half_of(small.sampler.n, streams)
    training, seen = training_attack(small, coins, streams)
    scores, findings = {"training": training}, [*seen]
    events: dict[str, tuple[Event, Event]] = {
        "training": (Repeated(plan.claimed_step or plan.step_event, plan.steps), plan.event)
    }
    if moments is not None:
        released = moments.moments_with(1.0, 1.0) if isinstance(moments, ThresholdQuantiles) else moments
        scores["statistics"] = statistics_scores(released, coins)
        events["statistics"] = (released.event, released.event)
        everything = np.sum(list(scores.values()), axis=0)
        scores = {"everything": everything, **scores}
        if isinstance(moments, ThresholdQuantiles):  # in the whole they have a price, but no score
            scores["thresholds"] = threshold_scores(moments, coins)
            events["thresholds"] = (moments.event, moments.event)
        spent = [event for event, *_ in normalising.planned(moments)]
        whole = [Composed((*spent, event)) for event in events["training"]]
        events["everything"] = whole[0], whole[1]
    whole_name = next(iter(scores))
    arms = dict.fromkeys(scores, coins)
    if probed is not None and isinstance(probed[0], LinearClassifier):
        few = plan_at(plan, min(runs, _LINEAR_RUNS))
        arms["closed form"] = half_of(few.sampler.n, streams)
        scores["closed form"], seen_too = linear_attack(few, arms["closed form"], streams)
        events["closed form"] = events["training"]
        # Of two executions of the same code, keep the stronger findings.
        findings = [min(pair, key=lambda finding: finding.p_value) for pair in zip(findings, seen_too, strict=True)]

    def part(name: str, at: float, level: float) -> ReleaseBound:
        present = arms[name][: len(scores[name])]
        bound = epsilon_lower_bound(scores[name][present], scores[name][~present], at, 1 - level)
        claimed, sound = (cost(event, at).epsilon for event in events[name])
        return ReleaseBound(name, at, bound, claimed, sound)

    level = 1 - confidence
    headline = part(whole_name, delta, level)
    parts = tuple(part(name, max(delta, WIDE_DELTA), level * SHARE / len(scores)) for name in scores)
    tested = plan_at(plan, _TESTED_RECORDS)
    findings += [*sampler_findings(tested.sampler, streams), noise_test(tested, streams, _shapes(probed, streams))]
    tiny = plan_at(replace(plan, steps=2), _KEYED_RECORDS)
    sums = KnownSums(tiny.sampler.n)
    findings.append(keys_differ(tiny, sums, sums.records))
    if probed is not None:
        findings.append(sensitivity_probe(*probed, plan.l2_clip, streams, plan.sampler.expected_batch_size))
    return Audit(
        lower_bound=headline.lower_bound,
        confidence=confidence,
        claimed_epsilon=headline.claimed_epsilon,
        sound_epsilon=headline.sound_epsilon,
        delta=delta,
        runs=small.sampler.n,
        parts=parts,
        findings=tuple(findings),
    )


def _shapes(probed: tuple[Trainable, Records] | None, streams: Streams) -> Shapes | None:
    """The shapes of the model's own tensors, by name."""
    if probed is None:
        return None
    probed[0].initialise(streams)
    return {name: tuple(value.shape) for name, value in probed[0].parameters.items()}


def audit_recipe(
    name: str,
    epsilon: float = 3.0,
    delta: float = 1e-5,
    *,
    plan: Plan | WeightDistributionPlan | None = None,
    runs: int = RUNS,
    confidence: float = 0.95,
    streams: Streams | None = None,
) -> Audit:
    """Audit the mechanism of a recipe, as it would run within this budget on the dataset it was made for.

    A smaller plan makes a quicker audit of the same code.
    """
    _check(runs, delta, confidence)  # before a plan is calibrated, which takes longer
    chosen, facts = _recipe(name)
    plan = plan or chosen.plan(chosen.settings.n, epsilon, delta)
    return _audit(plan, chosen, facts, delta, runs, confidence, streams or Streams.fresh())


def audit_run(folder: str | Path, *, runs: int = RUNS, confidence: float = 0.95) -> Audit:
    """Audit a run of `sordino train`: its plan executed on canaries, and its own canaries if it had any."""
    run = Run(folder)
    known = Description.read(run)
    Ledger.open(run.ledger).refuse_old_copy()  # before the audit, which takes a while
    chosen, delta = known.recipe, known.request.delta
    _check_files(run, known.status)
    audit = _audit(known.plan, chosen, known.facts, delta, runs, confidence, Streams.fresh())
    audit = replace(audit, findings=(*audit.findings, _ledger_finding(run, audit.sound_epsilon)))
    if not known.request.canaries or known.status != "finished":
        return audit
    try:
        coins, scores = canaries.outcome(run)
    except RunError as problem:
        return replace(audit, notes=(str(problem),))
    bound = one_run_lower_bound(scores, coins, delta, audit.side_confidence)
    return replace(audit, one_run_lower_bound=bound, canaries=len(coins))


def _check_files(run: Run, status: str) -> None:
    """Refuse a run whose weights were altered, or are missing although it is finished."""
    for path in (run.model, run.checkpoint, run.normalisation):
        if path.exists() or (path == run.model and status == "finished"):
            run.read_tensors(path)


def _ledger_finding(run: Run, sound: float) -> Finding:
    """Whether the ledger states at least the plan's ε; before anything was drawn it may be empty."""
    ledger = Ledger.open(run.ledger)
    stated = ledger.statement()["epsilon"]
    if not any(entry.count for entry in ledger.entries) and not run.model.exists():
        return Finding("ledger", 1.0, "nothing is charged yet, and there is no model yet")
    if stated is None:
        return Finding("ledger", 0.0, f"the ledger states no ε, the plan costs {sound:.4g}")
    agrees = float(stated) >= sound * (1 - 1e-6)  # it writes ∞ as "infinity"
    words = "no more" if agrees else f"{sound:.4g}"
    return Finding("ledger", 1.0 if agrees else 0.0, f"the ledger states ε={stated}, the plan costs {words}")


def _audit(
    plan: Plan | WeightDistributionPlan,
    chosen: DatasetRecipe,
    facts: Facts,
    delta: float,
    runs: int,
    confidence: float,
    streams: Streams,
) -> Audit:
    _check(runs, delta, confidence)
    known: dict[str, Any] = {"runs": runs, "confidence": confidence, "streams": streams}
    probed = _probed(chosen, facts, plan.sampler.expected_batch_size, streams)
    if isinstance(plan, WeightDistributionPlan):
        return audit_weight_distributions(plan, delta, probed=probed, **known)
    return audit_plan(plan, delta, moments=chosen.moments, probed=probed, **known)


def _check(runs: int, delta: float, confidence: float) -> None:
    check_levels(delta, confidence)
    if runs < _FEWEST_RUNS:
        raise ValueError(f"an audit needs at least {_FEWEST_RUNS} runs of the mechanism, not {runs}")
    if runs > _MOST_RUNS:
        raise ValueError(f"an audit holds all its runs in memory: ask for {_MOST_RUNS:,} at most, not {runs:,}")


def _recipe(name: str) -> tuple[DatasetRecipe, Facts]:
    """The recipe for the dataset it was made for, and public facts of that dataset."""
    problem: DataError | None = None
    made_for: tuple[tuple[str, str, tuple[int, ...]], ...] = (
        ("mnist", "image", (28, 28)),
        ("fashion-mnist", "image", (28, 28)),
        ("cifar-10", "image", (32, 32, 3)),
        ("ag-news", "text", ()),
    )
    for dataset, kind, shape in made_for:
        facts = Facts(
            task="classification",
            kind=kind,
            classes=tuple("0123456789"),
            shape=shape,
            value_range=(0.0, 255.0) if kind == "image" else None,
            n_train=60_000,
            n_test=10_000,
            source="synthetic",
            licence="none",
            complete=True,
            note="",
            protected=f"one {kind}",
        )
        try:
            return recipe(name, dataset, facts), facts
        except DataError as refusal:
            problem = refusal
    assert problem is not None
    raise problem


def _probed(
    chosen: DatasetRecipe, facts: Facts, expected_batch_size: int, streams: Streams
) -> tuple[Trainable, Records]:
    """The recipe's model, and adversarial records of the shape of its features."""
    shape = as_array(chosen.features(_two_examples(facts))).shape[1:]
    linear = isinstance(chosen.head, LinearHead)
    records = int(np.clip(expected_batch_size, _PROBED_RECORDS, _PROBED_LINEAR if linear else _PROBED_IN_A_NETWORK))
    classes = len(facts.classes or ())
    rows = adversarial_rows(shape, records, streams)
    # What random views are made of, the clip bounds as it bounds the example itself.
    head = replace(chosen.head, crops=None, shifts=None) if isinstance(chosen.head, NetworkHead) else chosen.head
    return head.model(rows[0].size, classes), head.records(rows, np.arange(records) % classes)


def _two_examples(facts: Facts) -> Any:
    """Two examples of the dataset's kind, from public facts alone."""
    if facts.kind == "text":
        return np.array(["one text", "and another"])
    if facts.columns is None:
        return np.zeros((2, *facts.shape), dtype=np.uint8)
    import pandas as pd  # half a second that audits of images need not wait for

    values = {column.name: (column.categories or column.bounds or (0.0,))[0] for column in facts.columns}
    return pd.DataFrame([values, values])
