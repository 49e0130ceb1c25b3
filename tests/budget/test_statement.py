import json
import math

import pytest

from sordino.budget import (
    Composed,
    Except,
    FixedSizeGaussian,
    Gaussian,
    Iteration,
    Ledger,
    NonPrivate,
    PoissonGaussian,
    RepeatAndSelect,
    Repeated,
    ShuffledGaussian,
    cost,
)
from sordino.budget.statement import ADJACENCY_IN_WORDS, NOT_COVERED, as_text, printed

STEP = PoissonGaussian(0.02, 1.5)


def strict(document):
    """Plain JSON, without the infinities that only Python writes."""
    return json.loads(json.dumps(document, allow_nan=False))


def whole():
    ledger = Ledger(
        5.0, 1e-5, planned=[(Repeated(Gaussian(8.0), 2), "normalisation"), (Repeated(STEP, 300), "training")]
    )
    ledger.spend(Repeated(Gaussian(8.0), 2), "normalisation")
    ledger.spend(Repeated(STEP, 300), "training", claimed=Repeated(STEP, 1))
    return ledger


def test_it_says_everything_there_is_to_say():
    ledger = whole()
    document = strict(ledger.statement(unit="one patient", tuning="none", notes=["a note"]))
    spent = cost(Composed((Repeated(Gaussian(8.0), 2), Repeated(STEP, 300))), 1e-5)
    assert document["unit"] == "one patient"
    assert document["adjacency"] == "zero-out"
    assert document["adjacency_in_words"] == ADJACENCY_IN_WORDS["zero-out"]
    assert document["epsilon"] == document["epsilon_drawn"] == spent.epsilon
    assert document["delta"] == 1e-5
    assert document["accountant"] == "pld"
    assert (document["epsilon_pld"], document["epsilon_rdp"]) == (spent.pld, spent.rdp)
    assert document["target_epsilon"] == 5.0
    assert document["samplers"] == ["Poisson", "full batch"]
    assert document["tuning"] == "none"
    assert document["seeded"] is False
    assert [entry["what"] for entry in document["entries"]] == ["normalisation", "training"]
    assert [entry["count"] for entry in document["entries"]] == [2, 300]
    assert {"sordino", "python", "dp-accounting", "mpmath", "numpy", "randomgen", "scipy", "torch"} <= set(
        document["versions"]
    )
    assert document["not_covered"] == list(NOT_COVERED)
    assert document["notes"] == ["a note"]


def test_the_page_has_all_of_it_too():
    document = strict(whole().statement(unit="one patient", tuning="none", notes=["a note"]))
    page = as_text(document)
    for word in (
        f"ε={printed(document['epsilon'])}",
        "δ=1e-05",
        "one patient",
        f"PLD {printed(document['epsilon_pld'])}",
        f"RDP {printed(document['epsilon_rdp'])}",
        "Planned",
        "zero-out",
        "normalisation",
        "training",
        "300 ×",
        "Poisson",
        "Tuning: none",
        "claimed elsewhere and not sound",
        "Noise from a key fixed by the user: no",
        "dp-accounting",
        "Note: a note",
        *NOT_COVERED,
    ):
        assert word in page


@pytest.mark.parametrize("delta", [None, 1e-5])
def test_an_empty_ledger_has_a_statement(delta):
    document = strict(Ledger(target_delta=delta).statement())
    assert document["epsilon"] == (None if delta is None else 0)
    assert document["entries"] == []
    page = as_text(document)
    assert "nothing" in page
    assert ("No δ was fixed" in page) == (delta is None)


def test_without_a_delta_entries_are_listed_and_no_epsilon_claimed():
    ledger = Ledger()
    ledger.spend(Gaussian(3.0), "look")
    document = strict(ledger.statement())
    assert document["epsilon"] is None
    assert "look" in as_text(document)


def test_infinity_is_plain_json():
    ledger = Ledger(target_delta=1e-5)
    ledger.spend(Composed((NonPrivate(), RepeatAndSelect(Gaussian(1.0), 2.0, math.inf))), "batch norm")
    document = strict(ledger.statement())
    assert document["epsilon"] == document["epsilon_drawn"] == "infinity"
    assert "ε=∞" in as_text(document)


def test_an_early_stop_states_what_was_announced():
    ledger = Ledger(3.0, 1e-5)
    number = ledger.begin(STEP, 300, "training")
    ledger.raise_count(number, 100)
    document = strict(ledger.statement())
    assert document["epsilon"] == cost(Repeated(STEP, 300), 1e-5).epsilon
    assert document["epsilon_drawn"] == cost(Repeated(STEP, 100), 1e-5).epsilon
    page = as_text(document)
    assert "100 of 300" in page
    assert "Drawn so far" in page


def test_an_adaptive_ledger_says_so_and_names_its_bound():
    ledger = Ledger(3.0, 1e-5)
    ledger.spend(Gaussian(8.0), "look")
    ledger.spend(Gaussian(9.0), "second look")
    document = strict(ledger.statement())
    assert document["accountant"] == "renyi-filter"
    assert document["epsilon"] == 3.0  # a filter guarantees what was fixed in advance
    assert document["epsilon_drawn"] == ledger.epsilon()
    assert document["epsilon_pld"] < document["epsilon"]
    assert f"order {ledger.terms.filter_order:g}" in document["keeping"]
    assert "guarantees the target" in document["keeping"]
    without = Ledger(target_delta=1e-5)
    without.spend(Gaussian(8.0), "look")
    without.spend(Gaussian(9.0), "second look")
    assert "not a bound" in without.statement()["keeping"]


def test_predictable_noise_is_written_in_capitals():
    ledger = Ledger(3.0, 1e-5)
    ledger.spend(Gaussian(8.0), "look", seeded=True)
    document = strict(ledger.statement())
    assert document["seeded"] is True
    assert "YES" in as_text(document)


@pytest.mark.parametrize(
    ("event", "adjacency", "words"),
    [
        (ShuffledGaussian(5, 9.0), "zero-out", "shuffled epochs (no amplification counted)"),
        (FixedSizeGaussian(100, 5, 9.0), "replace-one", "fixed size without replacement"),
        (Iteration(2, 5, 9.0), "replace-one", "fixed order"),
        (RepeatAndSelect(Repeated(STEP, 5), 2.0), "zero-out", "Poisson"),
    ],
)
def test_every_sampler_is_named(event, adjacency, words):
    ledger = Ledger(target_delta=1e-5, adjacency=adjacency)
    ledger.spend(event, "training")
    document = strict(ledger.statement())
    assert document["samplers"] == [words]
    assert words in as_text(document)


def test_a_claim_is_shown_beside_and_never_instead():
    ledger = Ledger(20.0, 1e-5)
    ledger.spend(Repeated(ShuffledGaussian(50, 2.0), 500), "training", claimed=PoissonGaussian(0.02, 2.0))
    document = strict(ledger.statement())
    claim = document["entries"][0]["claimed_epsilon"]
    assert claim == cost(Repeated(PoissonGaussian(0.02, 2.0), 500), 1e-5).epsilon
    assert document["epsilon"] == cost(Repeated(Gaussian(2.0), 10), 1e-5).epsilon > claim


def test_where_a_price_does_not_show_the_sampler_the_claim_does():
    ledger = Ledger(20.0, 1e-5)
    ledger.spend(Except(Gaussian(2.0), 1e-6), "training", claimed=Repeated(PoissonGaussian(0.02, 2.0), 500))
    document = strict(ledger.statement())
    assert document["samplers"] == ["Poisson"]
    assert document["entries"][0]["event"]["probability"] == 1e-6


def test_an_epsilon_is_never_printed_smaller_than_it_is():
    assert printed(3.23313) == "3.234"
    assert printed(3.0) == "3"
    assert printed(2.99951, 5) == "2.9996"
    assert printed(1.23456e-7) == "1.235e-07"
    assert printed(9.9999) == "10"
    assert printed(math.inf) == "∞"
    assert printed(None) == "n/a"


def test_a_running_total_is_not_called_a_guarantee():
    ledger = Ledger(target_delta=1e-5)
    ledger.spend(Gaussian(8.0), "look")
    assert "differentially private for" in as_text(ledger.statement())
    ledger.spend(Gaussian(9.0), "second look")
    page = as_text(ledger.statement())
    assert "a running total, not a guarantee" in page
    assert "differentially private for" not in page
