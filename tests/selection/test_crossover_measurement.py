"""Stand-ins, models for tables, and measurements that fit into one ledger."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.budget import Gaussian, Ledger, cost
from sordino.data import Column, DataError, Split, set_aside
from sordino.data.schema import Schema
from sordino.features import OneHot
from sordino.mechanisms.streams import Streams, secret_from_seed
from sordino.runs import Run, RunError
from sordino.selection.crossover_measurement import CrossoverPlan, epsilon_grid, measure_on_proxy, measure_privately
from sordino.selection.proxy_rows import PublicRows, SyntheticRows
from sordino.selection.table_models import MODELS, LogisticModel, models_named, touched, usual_models
from sordino.training.convex import GaussianObjective, LogisticPlan

SCHEMA = Schema(
    (Column("a", bounds=(0.0, 1.0)), Column("b", bounds=(-5.0, 5.0)), Column("c", categories=("x", "y", "z"))),
    Column("t", categories=("no", "yes", "maybe")),
)
LOGISTIC, BINNED, LINEAR, NETWORK = models_named("logistic,logistic-binned,linear,network-small")


@pytest.mark.parametrize("model", [LOGISTIC, BINNED, LINEAR, NETWORK], ids=lambda model: model.name)
def test_models_learn_where_there_is_next_to_no_noise(model: object) -> None:
    train, test = SyntheticRows(SCHEMA, 2000).draw(0)
    plan = model.plan(SCHEMA, 10**6, 50.0, 1e-7)  # type: ignore[attr-defined]
    training = model.training_on(model.encode(SCHEMA, train.x), train.y, 3)  # type: ignore[attr-defined]
    rehearsal = model.rehearsal(plan, len(train), 10**6)  # type: ignore[attr-defined]
    predict = training.rehearse(rehearsal, 0.4, Streams(secret_from_seed(0)))
    accuracy = (predict(model.encode(SCHEMA, test.x)) == test.y).mean()  # type: ignore[attr-defined]
    assert accuracy > np.bincount(test.y).max() / len(test) + 0.05


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_plans_cost_what_they_were_asked_to(model: object) -> None:
    alone = model.plan(SCHEMA, 1000, 0.7, 1e-5)  # type: ignore[attr-defined]
    assert 0.69 < cost(alone.event, 1e-5).epsilon <= 0.7
    before = Gaussian(20.0)
    less = model.plan(SCHEMA, 1000, 0.7, 1e-5, before)  # type: ignore[attr-defined]
    ledger = Ledger(0.7, 1e-5, planned=[(before, "selection"), (less.event, "training")])
    assert 0.69 < ledger.cost(reserved=True).epsilon <= 0.7
    kept = np.arange(len(OneHot(model.columns(SCHEMA)).owners)) == 0  # type: ignore[attr-defined]
    assert model.narrowed(less, SCHEMA, kept).event == less.event  # type: ignore[attr-defined]


@given(kept=st.lists(st.booleans(), min_size=5, max_size=5).filter(any))
def test_no_row_is_longer_than_the_norm_of_its_plan(kept: list[bool]) -> None:
    train, _ = SyntheticRows(SCHEMA, 50).draw(0)
    for model in (LOGISTIC, BINNED):
        assert isinstance(model, LogisticModel)
        usable = model.usable(SCHEMA, np.array(kept))
        assert (usable >= kept).all()
        x = model.encode(SCHEMA, train.x, usable)
        norm = model.narrowed(LogisticPlan(9.0, 5.0, GaussianObjective(4.0)), SCHEMA, usable).data_norm
        assert np.sqrt(1 + (x.astype(np.float64) ** 2).sum(axis=1)).max() <= norm * (1 + 1e-6)
        assert x.shape[1] == model.width(touched(SCHEMA.columns, usable)) or model is LOGISTIC


def test_bins_take_whole_columns_and_bend() -> None:
    """A category alone cannot be kept; and what lies in the middle of a number's range can be told from both ends."""
    assert BINNED.usable(SCHEMA, np.array([False, True, False, False, True])).tolist() == [
        False,
        True,
        True,
        True,
        True,
    ]
    assert BINNED.width(SCHEMA.columns) == 10 + 10 + 3
    train, test = SyntheticRows(SCHEMA, 2000).draw(0)
    accuracies = []
    for model in (LOGISTIC, BINNED):
        plan = model.rehearsal(model.plan(SCHEMA, 10**6, 50.0, 1e-7), len(train), 10**6)
        labels = [(abs(part.x["b"]) < 2).to_numpy(np.int64) for part in (train, test)]
        training = model.training_on(model.encode(SCHEMA, train.x), labels[0], 2)
        predict = training.rehearse(replace(plan, classes=2), 1.0, Streams(secret_from_seed(0)))
        accuracies.append((predict(model.encode(SCHEMA, test.x)) == labels[1]).mean())
    assert accuracies[0] < 0.7
    assert accuracies[1] > 0.95


def test_rehearsals_have_the_noise_of_the_real_size() -> None:
    sgd = LINEAR.plan(SCHEMA, 10_000, 1.0, 1e-5)
    assert LINEAR.rehearsal(sgd, 500, 10_000).noise_multiplier / 500 == pytest.approx(sgd.noise_multiplier / 10_000)
    logistic = LOGISTIC.plan(SCHEMA, 10_000, 1.0, 1e-5)
    small = LOGISTIC.rehearsal(logistic, 500, 10_000)
    assert small.perturbation.noise_multiplier / 500 == pytest.approx(logistic.perturbation.noise_multiplier / 10_000)
    assert small.ridge / 500 == pytest.approx(logistic.ridge / 10_000)


def test_private_parts_are_disjoint_and_do_not_depend_on_the_rows() -> None:
    rows = SyntheticRows(SCHEMA, 100).draw(0)[0]
    numbered = Split(rows.x.assign(a=np.arange(100.0)), rows.y)
    train, validation = set_aside(numbered)
    assert (len(train), len(validation)) == (80, 20)
    assert sorted([*train.x["a"], *validation.x["a"]]) == list(range(100))
    other = set_aside(Split(numbered.x, 1 - numbered.y))
    assert list(other[0].x["a"]) == list(train.x["a"])
    with pytest.raises(DataError, match="too few"):
        set_aside(rows.take(np.arange(4)))


def test_a_private_measurement_fits_into_its_ledger(tmp_path: Path) -> None:
    plan = CrossoverPlan.calibrated((LOGISTIC, LINEAR), SCHEMA, 800, 2, 2, Ledger(1.0, 1e-5), 1.0)
    ledger = Ledger(1.0, 1e-5, planned=plan.announcements())  # refused if it were above the target
    assert 0.9 < ledger.cost(reserved=True).epsilon <= 1
    assert len(plan.announcements()) == 2 * 2 * 2 * 2
    assert plan.epsilons[0] < plan.epsilons[1] < 0.6
    path = Run.at(tmp_path).folder / "measurement.json"
    plan.keep(path, SCHEMA, {"logistic": (1.0, 1.0), "linear": (0.1, 0.4)})
    again, rates = CrossoverPlan.read(path, SCHEMA, 1e-5)
    assert (again, repr(again)) == (plan, repr(plan))  # its words are what a measurement's key is bound to
    assert rates == {"logistic": (1.0, 1.0), "linear": (0.1, 0.4)}
    with pytest.raises(RunError, match="same schema"):
        CrossoverPlan.read(path, Schema(SCHEMA.columns[1:], SCHEMA.target), 1e-5)
    with pytest.raises(ValueError, match="2 repeats"):
        CrossoverPlan.calibrated((LOGISTIC, LINEAR), SCHEMA, 800, 3, 1, Ledger(1.0, 1e-5), 1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rates": {"logistic": 3, "linear": [0.1, 0.1]}},
        {"learning_rates": {"logistic": [1.0, 1.0]}},
        {"learning_rates": {"logistic": [1.0], "linear": [0.1]}},
        {"learning_rates": {"logistic": [1.0, -1.0], "linear": [0.1, 0.1]}},
        {"learning_rates": {"logistic": [1.0, None], "linear": [0.1, 0.1]}},
        {"learning_rates": [1.0]},
        {"learning_rates": 7},
        {"repeats": -1},
        {"repeats": 1e400},
        {"score_noise": float("nan")},
        {"score_noise": 0},
        {"epsilons": [0.5]},
        {"epsilons": {}},
        {"models": [None]},
        {"n": None},
    ],
)
def test_a_damaged_plan_gives_one_line(change: dict[str, Any], tmp_path: Path) -> None:
    plan = CrossoverPlan.calibrated((LOGISTIC, LINEAR), SCHEMA, 800, 2, 2, Ledger(1.0, 1e-5), 1.0)
    path = Run.at(tmp_path).folder / "measurement.json"
    plan.keep(path, SCHEMA, {"logistic": (1.0, 1.0), "linear": (0.1, 0.4)})
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RunError, match="cannot be read"):
        CrossoverPlan.read(path, SCHEMA, 1e-5)


SIMPLE = LogisticPlan(2.0, 5.0, GaussianObjective(4.0), classes=3)
PAIR = models_named("logistic-numeric,logistic")
MEASUREMENT = CrossoverPlan(PAIR, {model.name: (SIMPLE, SIMPLE) for model in PAIR}, (0.1, 0.2), 80, 2, 4.0)
RATES = {model.name: (1.0, 1.0) for model in PAIR}


def measured(
    folder: Path, plan: CrossoverPlan = MEASUREMENT, seed: int = 0, rates: Any = RATES, stop_after: int = 10**6
) -> Any:
    """On made-up rows that stand for private ones."""
    folder.mkdir(exist_ok=True)
    path = folder / "ledger.json"
    ledger = Ledger.open(path) if path.exists() else Ledger(90.0, 1e-5, path=path, planned=plan.announcements())

    def progress(done: int, total: int) -> None:
        if done == stop_after:
            raise KeyboardInterrupt

    table = SyntheticRows(SCHEMA, 100).draw(seed)[0]
    return measure_privately(plan, SCHEMA, set_aside(table), rates, ledger, folder, progress)


def test_a_measurement_goes_on_for_the_same_table_and_plan_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        measured(folder, stop_after=3)
    before = Ledger.open(folder / "ledger.json").entries
    assert len(before) == 6
    dearer = replace(MEASUREMENT, plans=MEASUREMENT.plans | {"logistic": (SIMPLE, replace(SIMPLE, ridge=6.0))})
    for change, words in (
        ({"seed": 1}, "other data"),
        ({"plan": replace(MEASUREMENT, score_noise=3.9)}, "other settings"),
        ({"plan": dearer}, "other settings"),
        ({"rates": RATES | {"logistic": (1.0, 0.5)}}, "other settings"),
    ):
        with pytest.raises(RunError, match=words):
            measured(folder, **change)
    assert Ledger.open(folder / "ledger.json").entries == before
    shutil.copytree(folder, tmp_path / "copy")
    found = measured(folder)
    with monkeypatch.context() as elsewhere:  # here the copy's ledger would be refused as an old one
        elsewhere.setenv("SORDINO_STATE", str(tmp_path / "another computer"))
        again = measured(tmp_path / "copy")
    for name, accuracies in found.accuracies.items():
        assert np.array_equal(again.accuracies[name], accuracies)
    assert len(Ledger.open(folder / "ledger.json").entries) == 16
    weights = [path.read_bytes() for path in folder.glob("*/model.safetensors")]
    assert len(set(weights)) == len(weights) == 8  # repeats have noise of their own
    assert not (folder / "private" / "steps.json").exists()
    for content in ("", "{}", '{"accuracy": 0.5}', "7"):
        (folder / "logistic-1-1" / "score.json").write_text(content, encoding="utf-8")
        with pytest.raises(RunError, match=r"score.json cannot be read"):
            measured(folder)


def test_proxy_rows() -> None:
    planted = SyntheticRows(SCHEMA, 300)
    one, again, other = planted.draw(1)[0], planted.draw(1)[0], planted.draw(2)[0]
    assert one.x.equals(again.x)
    assert not one.x.equals(other.x)
    assert len(one) == 300
    assert set(np.unique(one.y)) == {0, 1, 2}
    public = PublicRows(one, 10_000)
    train, test = public.draw(0)
    assert (len(train), len(test)) == (240, 60)
    merged = set(train.x["a"]) | set(test.x["a"])
    assert len(merged) == 300  # no row is trained and scored on
    with pytest.raises(DataError, match="at least 20"):
        PublicRows(one.take(np.arange(5)), 100)


def test_rehearsed_measures_every_model_at_every_epsilon() -> None:
    told: list[tuple[int, int]] = []
    models = models_named("logistic-numeric,logistic")
    found = measure_on_proxy(
        models, SCHEMA, SyntheticRows(SCHEMA, 500), 500, (0.01, 20.0), 1e-5, 3, lambda *step: told.append(step)
    )
    assert {name: values.shape for name, values in found.accuracies.items()} == {
        "logistic-numeric": (2, 3),
        "logistic": (2, 3),
    }
    assert found.accuracies["logistic"][1].mean() > found.accuracies["logistic"][0].mean() + 0.05  # less noise
    assert told == [(number, 16) for number in range(1, 17)]
    with pytest.raises(ValueError, match="2 repeats"):
        measure_on_proxy(models, SCHEMA, SyntheticRows(SCHEMA, 500), 500, (1.0,), 1e-5, 1)


def test_bad_input() -> None:
    assert epsilon_grid(1.0, 3) == pytest.approx((0.01, 0.316, 10.0))
    with pytest.raises(ValueError, match="2 points"):
        epsilon_grid(1.0, 1)
    with pytest.raises(ValueError, match="no model"):
        models_named("linear,tree")
    words = Schema((Column("c", categories=("x", "y")),), SCHEMA.target)
    with pytest.raises(DataError, match="has none"):
        models_named("linear-numeric,linear")[0].columns(words)


def test_numbers_alone_are_compared_only_where_there_are_any() -> None:
    target, word = Column("y", ("a", "b")), Column("word", ("c", "d"))
    names = [model.name for model in usual_models(Schema((word,), target))]
    assert names == ["logistic", "logistic-binned", "network-small"]
    number = Column("number", None, (0.0, 1.0))
    assert [model.name for model in usual_models(Schema((word, number), target))] == ["logistic-numeric", *names]
