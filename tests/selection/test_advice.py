"""Advice follows from its numbers, and the numbers from n, ε, δ and the columns."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from sordino.budget import Composed, Gaussian, cost
from sordino.data import Column, Facts
from sordino.data.schema import Schema
from sordino.selection.advice import Answer, advise
from sordino.selection.advice_request import STRONG_WEIGHT, AdviceRequest, BudgetSplit, weight_noise, worthwhile_columns
from sordino.selection.table_models import BINS

WORDS = tuple("abcdefgh")
COLUMNS = (
    Column("age", bounds=(0.0, 100.0)),
    Column("hours", bounds=(0.0, 80.0)),
    Column("work", categories=WORDS),
    Column("country", categories=tuple(f"country {number}" for number in range(42))),
)
TABLE = Schema(COLUMNS, Column("rich", categories=("no", "yes"))).facts(20_000, "people")
REQUEST = AdviceRequest(TABLE, 20_000, 0.5, 1e-6)
RARE_WORDS = (
    *(Column(f"number {place}", bounds=(0.0, 1.0)) for place in range(5)),
    *(Column(f"code {place}", categories=tuple(f"word {number}" for number in range(300))) for place in range(2)),
)
NEEDY = replace(REQUEST, facts=Schema(RARE_WORDS, Column("rich", categories=("no", "yes"))).facts(20_000, "people"))


def answers(situation: AdviceRequest) -> dict[str, Answer]:
    return {answer.question: answer for answer in advise(situation)}


def one_hot(situation: AdviceRequest) -> Answer:
    return answers(situation)["One-hot encoding, or drop categorical columns?"]


def test_shares_cost_together_what_was_asked_for() -> None:
    split = BudgetSplit(1.0, 1e-5, 0.15)
    shares = (split.selection, split.training)
    together = Composed(tuple(Gaussian(split.noise(share)) for share in shares))
    assert 0.99 < cost(together, 1e-5).epsilon <= 1
    assert sum(split.epsilon(share) for share in shares) > 1  # each on its own: they do not add up
    assert BudgetSplit.proposed(1.0, 1e-5, selects=False).training == 1
    with pytest.raises(ValueError, match="below 1, not 1"):
        BudgetSplit(1.0, 1e-5, 1.0)


def test_noise_of_weights_is_what_objective_perturbation_does() -> None:
    """The curvature rule against the minimiser itself, on uniform columns with a weak model."""
    from sordino.training.convex import GaussianObjective, LogisticPlan, data_norm, fit_many

    rng = np.random.default_rng(0)
    n, sigma = 4000, 3.0
    columns = (Column("a", bounds=(0.0, 1.0)), Column("b", bounds=(0.0, 1.0)))
    plan = LogisticPlan(data_norm(2), 0.1, GaussianObjective(sigma), tolerance=1e-6)
    x = rng.uniform(size=(n, 2))
    fits = fit_many(x, rng.integers(0, 2, n), np.ones((1, 2), dtype=bool), plan, 400, rng)[0]
    predicted = weight_noise(columns, n, sigma)
    np.testing.assert_allclose(fits[:, :2].std(axis=0), [predicted["a"], predicted["b"]], rtol=0.1)


def test_adults_one_hot_pays_where_the_paper_saw_it() -> None:
    """PAW, Table XVI: the crossover of Adult with and without one-hot encoding lies between 0.01 and 0.05."""
    from sordino.data.named import named

    facts = replace(TABLE, columns=named("adult").facts.columns)
    pays = one_hot(AdviceRequest(facts, 22_750, 0.1, 1e-6)).numbers["one_hot_pays_from_epsilon"]
    assert 0.01 < pays < 0.05


def test_columns_are_dropped_as_noise_grows() -> None:
    kept = [len(worthwhile_columns(COLUMNS, 20_000, noise)) for noise in (1.0, 30.0, 200.0, 1000.0, 1e5)]
    assert kept == sorted(kept, reverse=True)
    assert (kept[0], kept[-1]) == (4, 0)
    assert one_hot(REQUEST).numbers["dropped"] == []
    strict = one_hot(replace(REQUEST, epsilon=0.03))
    assert "country" in strict.numbers["dropped"]
    assert "country" in strict.answer


def test_public_data_is_free() -> None:
    found = answers(replace(REQUEST, public_records=500))
    assert found["How is ε divided?"].numbers["shares"]["training"] == 1
    assert found["Are features selected?"].cost == 0
    private = answers(NEEDY)
    assert private["Are features selected?"].cost > 0
    assert private["How is ε divided?"].numbers["shares"]["selection"] == pytest.approx(0.15)
    assert answers(replace(NEEDY, public_records=500))["Are features selected?"].cost == 0


def test_where_most_columns_stand_above_their_noise_none_are_selected() -> None:
    assert not REQUEST.selects
    assert REQUEST.kept == COLUMNS
    selection = answers(REQUEST)["Are features selected?"]
    assert selection.answer.startswith("No: from about")
    assert selection.cost == 0


def test_selection_stops_where_its_tables_are_noise() -> None:
    assert NEEDY.selects
    small = replace(REQUEST, n=200, delta=1e-4)
    assert not small.selects
    selection = answers(small)["Are features selected?"]
    assert selection.answer.startswith("Not on private records")
    assert selection.numbers["noise_share"] > 1
    assert selection.cost == 0


def test_larger_models_come_with_more_budget() -> None:
    chosen = [answers(replace(REQUEST, epsilon=e))["Which model?"] for e in (0.01, 0.1, 1, 10)]
    assert [answer.numbers["model"] for answer in chosen] == ["logistic-numeric", *["logistic-binned"] * 3]
    assert "bins of a number stands above its noise" in chosen[-1].answer
    words = replace(REQUEST.facts, columns=tuple(column for column in COLUMNS if column.bounds is None))
    order = ["logistic", "network-small", "network-large"]
    places = [
        order.index(answers(replace(REQUEST, facts=words, epsilon=e))["Which model?"].numbers["model"])
        for e in (0.01, 0.1, 1, 10)
    ]
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0, 2)
    measured = replace(REQUEST, best_measured="network-small")
    assert answers(measured)["Which model?"].numbers["model"] == "network-small"


def test_bins_pay_where_a_category_among_as_many_does() -> None:
    bins = Column("bins", categories=tuple(map(str, range(BINS))))
    beside = replace(REQUEST.facts, columns=(*COLUMNS[1:], bins))  # as many columns, so rows of the same length
    for epsilon in (0.005, 0.01, 0.02, 0.05, 0.1, 1.0):
        here = replace(REQUEST, facts=beside, epsilon=epsilon)
        noise = weight_noise(here.columns, here.trained, here.training_noise)["bins"]
        # The rule leaves out the factor √(1 + 1/100) that the bias adds.
        assert here.bins_pay == (noise / sqrt(1 + 1 / BINS**2) < STRONG_WEIGHT)
    assert not replace(REQUEST, epsilon=0.001).bins_pay
    assert replace(REQUEST, epsilon=1.0).bins_pay


def test_freezing_threshold_is_the_papers_at_its_size() -> None:
    at_paper = replace(REQUEST, n=75_000, delta=1e-5)  # a fifth is set aside: 60,000 train
    freezing = answers(at_paper)["If a network: train all of it, or freeze random layers?"]
    assert freezing.numbers["freeze_below_epsilon"] == pytest.approx(1.4, rel=2e-3)
    assert freezing.answer.startswith("Freeze")
    more = answers(replace(at_paper, epsilon=2.0))["If a network: train all of it, or freeze random layers?"]
    assert more.answer.startswith("Train all")


def test_score_and_layers() -> None:
    found = answers(REQUEST)
    score = found["How good is the result?"].numbers
    assert score["records"] == 4000
    assert score["noise_of_score"] == pytest.approx(REQUEST.split.whole_noise / 4000)
    layers = found["If a network: deep or wide?"].numbers
    assert layers["one_layer"] == (52 + 1) * 128 + 129 * 2
    assert layers["noise_ratio"] == pytest.approx(sqrt(layers["four_layers"] / layers["one_layer"]))
    assert found["Which learning rate?"].numbers["noise_ratio"] > 1


def test_images() -> None:
    facts = Facts(
        "classification", "image", tuple("0123456789"), (28, 28), (0.0, 255.0), 60_000, 0, "", "", True, "", ""
    )
    few = answers(AdviceRequest(facts, 60_000, 0.1, 1e-6))["Images: PCA or max-pooling?"]
    assert few.answer.startswith("Max-pooling")
    assert few.numbers["linear_weights"] == {"all": 7850, "pooled": 1970, "pca": 610}
    many = answers(AdviceRequest(facts, 2_000_000, 3, 1e-8))["Images: PCA or max-pooling?"]
    assert many.answer.startswith("DP-PCA")
    assert many.cost > 0


def test_bad_situations() -> None:
    with pytest.raises(ValueError, match="too few"):
        replace(REQUEST, n=4)
    with pytest.raises(ValueError, match="positive"):
        replace(REQUEST, epsilon=float("nan"))
    with pytest.raises(ValueError, match="delta"):
        replace(REQUEST, delta=0.0)
    with pytest.raises(ValueError, match="advice is for classes"):
        replace(REQUEST, facts=replace(TABLE, classes=None))
