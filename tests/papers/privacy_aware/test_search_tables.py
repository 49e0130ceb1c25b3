"""Verdicts on searches follow from the figures, and both tables tell claimed from sound."""

from dataclasses import replace
from pathlib import Path

import pytest

from sordino.papers.privacy_aware import search_tables
from sordino.papers.privacy_aware.intervals import Comparison, Interval
from sordino.papers.privacy_aware.search_tables import against_standard, among, beside_claim, sizes, verdict
from sordino.papers.trials import Experiment, TrialStore
from sordino.selection import DenseSpace

LOW, HIGH, WIDE, ALONE = Interval(0.8, 0.01), Interval(0.9, 0.01), Interval(0.89, 0.2), Interval(0.95, None)


def test_a_search_is_better_only_beyond_the_intervals() -> None:
    assert against_standard("RS", HIGH, LOW) == "RS is 10.00 points better than STW (intervals apart)"
    assert against_standard("RS", LOW, HIGH) == "RS is 10.00 points worse than STW (intervals apart)"
    assert against_standard("RS", HIGH, WIDE).endswith("(intervals not apart)")
    assert against_standard("RS", HIGH, ALONE).endswith("(no interval)")


def test_the_phenomenon_needs_both_halves() -> None:
    both = Comparison("ε=1", complex_private=LOW, simple_private=HIGH, complex_plain=HIGH, simple_plain=LOW)
    assert verdict(both).endswith("STW's by +10.00 without (intervals apart): the phenomenon shows")
    other = verdict(replace(both, complex_plain=LOW, simple_plain=HIGH))
    assert other.endswith("STW's by -10.00 without (intervals apart): it does not show in full")
    assert verdict(replace(both, simple_private=ALONE)).endswith("one seed cannot say more")


def test_the_best_search_is_said_with_what_cannot_be_told_from_it() -> None:
    assert among({"a": HIGH, "b": LOW}).endswith("its interval lies above the others'")
    assert "a found the best" in among({"a": HIGH, "b": LOW, "c": WIDE})
    assert among({"a": HIGH, "b": LOW, "c": WIDE}).endswith("overlaps that of c")
    assert among({"a": ALONE, "b": LOW}).endswith("one seed cannot say more")


def test_claims_stand_beside_what_is_proven() -> None:
    assert (
        beside_claim("RS", 5.2, 4.1) == "RS: Eq. 9 would claim ε=4.1 for our search, the ledger says 5.2 for the same"
    )
    assert beside_claim("STW", "∞", None).endswith("claims nothing here")


def test_sizes_are_a_range() -> None:
    small, large = {"parameters": 9610, "trained_parameters": 10}, {"parameters": 12_000, "trained_parameters": 12_000}
    assert sizes([small, small]) == "9,610 (10)"
    assert sizes([large, small]) == "9,610 (10) to 12,000 (12,000)"


def test_the_papers_searches_are_priced_as_its_notes_say() -> None:
    here = Experiment()
    assert search_tables._their_sound(here, "RS") == pytest.approx(5.84, abs=0.01)
    assert search_tables._their_sound(here, "MGRS") == pytest.approx(11.75, abs=0.01)
    assert search_tables._their_sound(here, "RS", 0.341) == pytest.approx(0.93, abs=0.5)


@pytest.mark.parametrize("experiment", [Experiment(), Experiment(full=True), Experiment(quick=True)])
def test_both_workflows_search_alike_but_for_the_noise(experiment: Experiment) -> None:
    for name, freezing in (("PAAS", False), ("RS", True)):
        aware, standard = search_tables._aware(experiment, name), search_tables._standard(experiment, name, 2.11)
        assert (aware.epsilon, aware.then, standard.epsilon, standard.then) == (2.11, (), None, (2.11,))
        assert isinstance(aware.space, DenseSpace)
        assert isinstance(standard.space, DenseSpace)
        assert aware.space.learning_rates == aware.length.rates
        assert standard.space.learning_rates == aware.length.plain_rates
        alike = replace(aware.space, learning_rates=standard.space.learning_rates)
        assert aware.space.freezing == freezing
        assert replace(aware, space=alike, epsilon=None, then=(2.11,)) == standard
    assert search_tables._aware(experiment, "MGRS").space == aware.space
    noisier = search_tables._aware(experiment, "RS", 0.341)
    assert noisier.space == replace(aware.space, learning_rates=aware.length.noisy_rates)


def test_the_whole_workflow_costs_more_than_its_last_training(tmp_path: Path) -> None:
    experiment = Experiment(quick=True, store=TrialStore(tmp_path))
    record = search_tables.table_9(experiment)
    sound = [row[record.columns.index("sound ε of our whole workflow")] for row in record.rows]
    alone = [row[record.columns.index("ε of the winner's training alone")] for row in record.rows]
    assert [row[0] for row in record.rows] == ["STW", "PAW"] * 2
    assert sound[::2] == ["∞", "∞"]
    for whole, training in zip(sound[1::2], alone[1::2], strict=True):
        assert float(str(whole)) > float(str(training))
    assert (tmp_path / search_tables._aware(experiment, "RS")._key()).exists()  # which Table VIII has as well
