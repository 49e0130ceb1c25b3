import json
import math
import multiprocessing
import os
import signal
import time
from contextlib import suppress
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.budget import (
    BudgetExceeded,
    Composed,
    Except,
    FixedSizeGaussian,
    Gaussian,
    Ledger,
    LedgerError,
    NonPrivate,
    PoissonGaussian,
    Pure,
    RepeatAndSelect,
    Repeated,
    ShuffledGaussian,
    UnsupportedEvent,
    cost,
    rdp,
)

STEP = PoissonGaussian(0.02, 1.5)
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(params=["in memory", "on disk"])
def path(request, tmp_path):
    return None if request.param == "in memory" else tmp_path / "ledger.json"


def state(ledger):
    return ledger.terms, ledger.plan, ledger.entries, ledger.path and ledger.path.read_bytes()


def filtered(event, ledger, delta=1e-5):
    order = ledger.terms.filter_order
    return max(0.0, rdp.rdp_at(event, ledger.terms.adjacency, order) + rdp.conversion_cost(order, delta))


def test_a_planned_ledger_is_priced_by_pld(path):
    norm, training = Repeated(Gaussian(8.0), 2), Repeated(STEP, 500)
    ledger = Ledger(3.0, 1e-5, path=path, planned=[(norm, "normalisation"), (training, "training")])
    assert ledger.epsilon() == 0
    ledger.spend(norm, "normalisation")
    assert ledger.cost().accountant == "pld"
    assert ledger.epsilon() == cost(norm, 1e-5).epsilon
    ledger.spend(training, "training")
    assert ledger.epsilon() == cost(Composed((norm, training)), 1e-5).epsilon
    assert not ledger.adaptive
    assert all(entry.planned for entry in ledger.entries)


def test_the_first_event_on_a_part_is_its_plan(path):
    ledger = Ledger(3.0, 1e-5, path=path)
    assert ledger.spend(Repeated(STEP, 500), "training").planned
    assert ledger.cost().accountant == "pld"
    assert ledger.epsilon() == cost(Repeated(STEP, 500), 1e-5).epsilon


def test_a_second_event_makes_its_part_adaptive(path):
    ledger = Ledger(5.0, 1e-5, path=path)
    first, second = Repeated(STEP, 500), Repeated(STEP, 100)
    ledger.spend(first, "training")
    entry = ledger.spend(second, "more training")
    assert not entry.planned
    assert ledger.adaptive
    found = ledger.cost()
    assert found.accountant == "renyi-filter"
    assert found.epsilon == pytest.approx(filtered(Composed((first, second)), ledger), rel=1e-12)
    assert found.pld == pytest.approx(cost(Composed((first, second)), 1e-5).pld, rel=1e-9)  # if planned
    assert found.epsilon >= found.rdp * (1 - 1e-12)  # one order is never better than the best of all


def test_the_same_event_twice_is_planned_once(path):
    ledger = Ledger(5.0, 1e-5, path=path, planned=[(Gaussian(5.0), "look")])
    assert ledger.spend(Gaussian(5.0), "look").planned
    assert not ledger.spend(Gaussian(5.0), "look").planned


def test_an_event_before_the_first_output_joins_the_plan(path):
    """Nothing has been seen yet, so its parameters cannot depend on anything: what epsilon_if promised holds."""
    ledger = Ledger(3.0, 1e-5, path=path, planned=[(Repeated(STEP, 500), "training")])
    promised = ledger.epsilon_if(Gaussian(8.0))
    assert ledger.spend(Gaussian(8.0), "a look before").planned
    ledger.spend(Repeated(STEP, 500), "training")
    assert not ledger.adaptive
    assert ledger.epsilon() == pytest.approx(promised, rel=1e-3)


def test_only_the_part_of_an_unplanned_event_becomes_adaptive(path):
    ledger = Ledger(5.0, 1e-5, path=path)
    ledger.spend(Repeated(STEP, 500), "training")
    assert ledger.spend(Gaussian(4.0), "score", "validation").planned
    assert not ledger.adaptive
    ledger.spend(Gaussian(9.0), "another score", "validation")
    assert ledger.adaptive
    train, validation = (ledger._part_cost(part, 1e-5, False) for part in ("train", "validation"))
    assert (train.accountant, validation.accountant) == ("pld", "renyi-filter")


def test_epsilon_is_the_largest_over_parts(path):
    ledger = Ledger(5.0, 1e-5, path=path)
    ledger.spend(Gaussian(3.0), "training")
    ledger.spend(Gaussian(2.0), "score", "validation")
    assert ledger.parts() == ("train", "validation")
    assert ledger.epsilon() == cost(Gaussian(2.0), 1e-5).epsilon


def test_the_filter_counts_the_plan_in_full_drawn_or_not(path):
    plan, extra = Repeated(STEP, 500), Gaussian(8.0)
    ledger = Ledger(5.0, 1e-5, path=path, planned=[(plan, "training"), (Gaussian(10.0), "look")])
    ledger.spend(Gaussian(10.0), "look")
    ledger.spend(extra, "a second look")
    assert ledger.epsilon() == pytest.approx(filtered(Composed((plan, Gaussian(10.0), extra)), ledger), rel=1e-12)


def test_exceptions_of_the_plan_are_taken_from_the_deltas_of_plan_and_filter(path):
    rare = Except(Gaussian(5.0), 4e-6)
    ledger = Ledger(5.0, 1e-5, path=path)
    assert ledger.spend(rare, "training").planned
    assert ledger.epsilon() == pytest.approx(cost(Gaussian(5.0), 6e-6).epsilon, rel=1e-9)
    promised = ledger.epsilon_if(Gaussian(9.0))
    ledger.spend(Gaussian(9.0), "look")
    assert ledger.epsilon() == pytest.approx(promised)
    assert promised == pytest.approx(filtered(Composed((Gaussian(5.0), Gaussian(9.0))), ledger, 6e-6), rel=1e-9)
    again = Ledger.open(path) if path else ledger
    assert again.statement()["entries"][0]["in_words"] == "Gaussian, σ=5, except with probability 4e-06"


def test_an_exception_chosen_after_outputs_is_refused_unless_it_was_announced(path):
    """A filter sets its δ aside before the first output; later there is none that could be given away."""
    rare = Except(Gaussian(5.0), 1e-7)
    ledger = Ledger(5.0, 1e-5, path=path, planned=[(Gaussian(9.0), "look"), (rare, "training")])
    ledger.spend(Gaussian(9.0), "look")
    before = state(ledger)
    for attempt in (lambda: ledger.spend(rare, "more training"), lambda: ledger.epsilon_if(rare)):
        with pytest.raises(UnsupportedEvent, match=r"exceptions.*planned when the ledger is opened"):
            attempt()
    assert state(ledger) == before
    assert ledger.spend(rare, "training").planned


def test_an_unplanned_event_is_refused_where_only_pld_had_room(path):
    """PLD ends exactly at the target; the filter, which must hold on every branch, has nothing left."""
    plan = Repeated(STEP, 500)
    ledger = Ledger(cost(plan, 1e-5).epsilon * 1.0001, 1e-5, path=path)
    ledger.spend(plan, "training")
    before = state(ledger)
    with pytest.raises(BudgetExceeded, match="filter"):
        ledger.spend(Gaussian(1e6), "next to nothing")
    assert state(ledger) == before


@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(st.floats(2, 100), st.integers(1, 20), st.booleans()), max_size=6))
def test_no_sequence_of_spending_exceeds_the_target(asked):
    ledger = Ledger(1.0, 1e-5)
    for number, (sigma, count, sampled) in enumerate(asked):
        step = PoissonGaussian(0.1, sigma / 2) if sampled else Gaussian(sigma)
        before = state(ledger)
        try:
            ledger.spend(Repeated(step, count), f"event {number}")
        except BudgetExceeded:
            assert state(ledger) == before
        assert ledger.epsilon() <= 1.0
        assert ledger.cost(reserved=True).epsilon <= 1.0
    if ledger.adaptive:  # on every branch the sum at the one order keeps within the budget: that is the filter
        everything = Composed(tuple(entry.reserved for entry in ledger.entries))
        assert filtered(everything, ledger) <= 1.0


def test_pure_events_chosen_along_the_way_spend_their_sum_and_no_more(path):
    ledger = Ledger(1.0, 1e-14, path=path)
    for _ in range(4):
        ledger.spend(Pure(0.25), "look")
    assert ledger.epsilon() == 1.0
    with pytest.raises(BudgetExceeded):
        ledger.spend(Pure(1e-9), "look")


def test_overspending_is_refused_and_leaves_no_trace(path):
    ledger = Ledger(1.0, 1e-5, path=path)
    ledger.spend(Gaussian(8.0), "look")
    before = state(ledger)
    for attempt in (
        lambda: ledger.spend(Gaussian(1.0), "too much"),
        lambda: ledger.spend(Gaussian(1.0), "too much", "validation"),
        lambda: ledger.begin(Gaussian(20.0), 10**6, "too long"),
        lambda: ledger.announce(Gaussian(1.0), "too much", "test"),
        lambda: ledger.spend(NonPrivate(), "everything"),
    ):
        with pytest.raises(BudgetExceeded):
            attempt()
        assert state(ledger) == before
    with pytest.raises(BudgetExceeded, match=r"remaining: ε=0\.\d+.*Nothing was recorded"):
        ledger.spend(Gaussian(1.0), "too much")


def test_a_plan_that_overspends_is_refused_at_opening(tmp_path):
    with pytest.raises(BudgetExceeded):
        Ledger(1.0, 1e-5, path=tmp_path / "ledger.json", planned=[(Gaussian(1.0), "training")])
    assert not (tmp_path / "ledger.json").exists()


def test_what_has_no_price_is_refused_and_leaves_no_trace(path):
    ledger = Ledger(3.0, 1e-5, path=path)
    before = state(ledger)
    with pytest.raises(UnsupportedEvent):
        ledger.spend(FixedSizeGaussian(100, 10, 1.0), "training")
    with pytest.raises(UnsupportedEvent):
        Ledger(3.0, 1e-5, adjacency="add-remove").spend(ShuffledGaussian(10, 5.0), "training")
    assert state(ledger) == before
    replaced = Ledger(3.0, 1e-5, adjacency="replace-one")
    replaced.spend(Repeated(PoissonGaussian(0.01, 3.0), 10), "planned, so PLD can price it")
    with pytest.raises(UnsupportedEvent, match="planned when the ledger is opened"):
        replaced.spend(PoissonGaussian(0.01, 9.0), "unplanned, where RDP would have to")
    with pytest.raises(UnsupportedEvent, match="planned"):
        replaced.spend(Gaussian(50.0), "after a plan that RDP cannot price")
    assert len(replaced.entries) == 1


@pytest.mark.parametrize("word", ["", None, 3, "\ud800"])
def test_what_cannot_be_written_down_is_refused_and_leaves_no_trace(tmp_path, word):
    ledger = Ledger(3.0, 1e-5, path=tmp_path / "ledger.json")
    before = state(ledger)
    with pytest.raises(ValueError, match=r"."):
        ledger.spend(Gaussian(9.0), word)
    assert state(ledger) == before


def test_remaining_never_goes_below_zero(path):
    ledger = Ledger(2.0, 1e-5, path=path)
    assert ledger.remaining() == 2.0
    ledger.spend(Gaussian(4.0), "look")
    assert ledger.remaining() == pytest.approx(2.0 - cost(Gaussian(4.0), 1e-5).epsilon)
    assert ledger.remaining(1e-300) == 0
    with pytest.raises(ValueError, match="no target"):
        Ledger().remaining()


def test_epsilon_needs_a_delta_from_somewhere(path):
    ledger = Ledger(path=path)
    ledger.spend(Gaussian(2.0), "look")
    with pytest.raises(ValueError, match="δ"):
        ledger.epsilon()
    with pytest.raises(ValueError, match="δ"):
        ledger.epsilon_if(Gaussian(1.0))
    assert ledger.epsilon(1e-6) == cost(Gaussian(2.0), 1e-6).epsilon
    with pytest.raises(ValueError, match="delta"):
        ledger.epsilon(1.0)
    with pytest.raises(ValueError, match="δ"):
        Ledger(1.0)


def test_without_a_target_nothing_is_too_much(path):
    ledger = Ledger(path=path)
    ledger.spend(NonPrivate(), "batch norm")
    ledger.spend(Gaussian(1e-3), "training")
    assert ledger.epsilon(1e-5) == math.inf


def test_a_reservation_is_checked_in_full_and_drawn_in_order(path):
    ledger = Ledger(3.0, 1e-5, path=path)
    number = ledger.begin(STEP, 500, "training")
    assert ledger.epsilon() == 0
    assert ledger.cost(reserved=True).epsilon == cost(Repeated(STEP, 500), 1e-5).epsilon
    for count in (1, 1, 100, 500):
        assert ledger.raise_count(number, count).count == count
        assert ledger.epsilon() == cost(Repeated(STEP, count), 1e-5).epsilon
    for count in (499, 501, -1):
        with pytest.raises(BudgetExceeded, match="reserved 500"):
            ledger.raise_count(number, count)
    for wrong in (5, -1):
        with pytest.raises(LedgerError, match="no entry"):
            ledger.raise_count(wrong, 1)
    assert ledger.entries[number].count == 500


@pytest.mark.parametrize("count", [1.5, "3", None, True])
def test_counts_are_whole_numbers(path, count):
    ledger = Ledger(3.0, 1e-5, path=path)
    number = ledger.begin(STEP, 500, "training")
    with pytest.raises((ValueError, TypeError)):
        ledger.raise_count(number, count)
    assert ledger.entries[number].count == 0


def test_what_is_reserved_is_gone_for_others(path):
    ledger = Ledger(2.0, 1e-5, path=path)
    ledger.begin(Gaussian(6.0), 9, "training")
    with pytest.raises(BudgetExceeded):
        ledger.spend(Gaussian(2.0), "look")


def test_the_plan_closes_with_the_first_event_on_that_part(path):
    ledger = Ledger(5.0, 1e-5, path=path)
    ledger.announce(Gaussian(5.0), "look")
    ledger.spend(Gaussian(5.0), "look")
    with pytest.raises(LedgerError, match="closed"):
        ledger.announce(Gaussian(5.0), "second look")
    ledger.announce(Gaussian(5.0), "score", "validation")  # nothing about those records has been seen
    assert ledger.spend(Gaussian(5.0), "score", "validation").planned
    assert not ledger.adaptive


def test_epsilon_if_is_the_headline_after_spending(path):
    ledger = Ledger(5.0, 1e-5, path=path)
    for event in (Gaussian(5.0), Gaussian(6.0), Repeated(STEP, 100)):
        promised = ledger.epsilon_if(event)
        ledger.spend(event, "next")
        assert ledger.epsilon() == pytest.approx(promised, rel=1e-9)


def test_the_filter_order_is_fixed_by_the_terms_and_within_reach():
    for epsilon, delta in ((3.0, 1e-5), (0.1, 1e-6), (50.0, 1e-5), (None, None), (None, 1e-9)):
        assert Ledger(epsilon, delta).terms.filter_order in rdp.ORDERS
    # a Gaussian workload gets most of its budget through
    ledger = Ledger(3.0, 1e-5)
    ledger.spend(Gaussian(1e3), "first")
    ledger.spend(Gaussian(1.75), "chosen after looking")
    assert ledger.epsilon() <= 3.0


def test_a_budget_too_small_for_any_order_refuses_what_is_unplanned():
    ledger = Ledger(1e-6, 1e-5)
    ledger.spend(Gaussian(1e9), "first")
    with pytest.raises(BudgetExceeded):
        ledger.spend(Gaussian(1e9), "second")


def test_reloading_loses_nothing(tmp_path):
    path = tmp_path / "ledger.json"
    ledger = Ledger(9.0, 1e-5, path=path, planned=[(Repeated(STEP, 50), "training")])
    ledger.spend(Repeated(STEP, 50), "training", seeded=True, claimed=Repeated(PoissonGaussian(0.01, 2.0), 3))
    ledger.spend(RepeatAndSelect(Composed((Gaussian(9.0), Pure(0.01))), 3.0, math.inf), "search")
    number = ledger.begin(Gaussian(99.0), 7, "score", "validation")
    ledger.raise_count(number, 3)
    again = Ledger.open(path)
    assert state(again) == state(ledger)
    assert again.cost() == ledger.cost()
    json.loads(path.read_text())


def test_reopening_on_the_same_terms_goes_on(tmp_path):
    path = tmp_path / "ledger.json"
    plan = [(Repeated(STEP, 50), "training")]
    Ledger(3.0, 1e-5, path=path, planned=plan).spend(Gaussian(30.0), "score", "validation")
    again = Ledger(3.0, 1e-5, path=path, planned=plan)  # the plan has grown by the validation part
    assert len(again.entries) == 1
    assert again.spend(Repeated(STEP, 50), "training").planned


@pytest.mark.parametrize(
    "other",
    [
        lambda path: Ledger(4.0, 1e-5, path=path),
        lambda path: Ledger(3.0, 1e-6, path=path),
        lambda path: Ledger(3.0, 1e-5, path=path, adjacency="replace-one"),
        lambda path: Ledger(path=path),
        lambda path: Ledger(3.0, 1e-5, path=path, planned=[(Repeated(STEP, 51), "training")]),
        lambda path: Ledger(3.0, 1e-5, path=path, planned=[(Repeated(STEP, 50), "training"), (STEP, "more")]),
    ],
)
def test_reopening_on_other_terms_is_refused(tmp_path, other):
    path = tmp_path / "ledger.json"
    ledger = Ledger(3.0, 1e-5, path=path, planned=[(Repeated(STEP, 50), "training")])
    before = state(ledger)
    with pytest.raises(LedgerError, match="other terms"):
        other(path)
    assert state(Ledger.open(path)) == before


def test_two_ledgers_on_one_file_see_each_other(tmp_path):
    path = tmp_path / "ledger.json"
    one = Ledger(1.0, 1e-5, path=path)
    two = Ledger.open(path)
    one.spend(Gaussian(5.0), "one")
    with pytest.raises(BudgetExceeded):
        two.spend(Gaussian(4.0), "two")  # would fit an empty ledger
    assert [entry.what for entry in two.entries] == ["one"]


def test_a_deleted_file_is_not_silently_begun_anew(tmp_path):
    path = tmp_path / "ledger.json"
    ledger = Ledger(1.0, 1e-5, path=path)
    ledger.spend(Gaussian(9.0), "look")
    path.unlink()
    with pytest.raises(LedgerError, match="no ledger"):
        ledger.spend(Gaussian(9.0), "look")


def spend_twenty(path, name):
    ledger = Ledger.open(path)
    for number in range(20):
        ledger.spend(Gaussian(1e5), f"{name}-{number}")


def test_spenders_in_two_processes_lose_nothing(tmp_path):
    path = tmp_path / "ledger.json"
    Ledger(3.0, 1e-5, path=path)
    workers = [SPAWN.Process(target=spend_twenty, args=(path, name)) for name in "ab"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    found = sorted(entry.what for entry in Ledger.open(path).entries)
    assert found == sorted(f"{name}-{number}" for name in "ab" for number in range(20))


def draw_until_killed(path, told):
    ledger = Ledger.open(path)
    number = ledger.begin(Gaussian(1e5), 10**6, "training")
    count = 0
    while True:
        count += 1
        ledger.raise_count(number, count)
        told.value = count  # from here on the caller may act on it


@pytest.mark.parametrize("delay", [0.0, 0.013, 0.05])
def test_a_killed_spender_leaves_a_valid_file_with_all_that_it_was_told(tmp_path, delay):
    path = tmp_path / "ledger.json"
    Ledger(3.0, 1e-5, path=path)
    told = SPAWN.Value("q", 0, lock=False)
    worker = SPAWN.Process(target=draw_until_killed, args=(path, told))
    worker.start()
    deadline = time.monotonic() + 60
    while told.value < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join(60)
    assert told.value >= 3
    ledger = Ledger.open(path)
    assert ledger.entries[0].count >= told.value
    ledger.raise_count(0, ledger.entries[0].count + 1)  # and the lock is free


def test_a_link_leads_to_the_same_account(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    ledger = Ledger(3.0, 1e-5, path=real)
    link.symlink_to(real)
    Ledger.open(link).spend(Gaussian(8.0), "through the link")
    ledger.spend(Gaussian(9.0), "through the file")
    assert link.is_symlink()
    assert [entry.what for entry in Ledger.open(link).entries] == ["through the link", "through the file"]


def test_a_relative_path_survives_a_change_of_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ledger = Ledger(3.0, 1e-5, path="ledger.json")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    ledger.spend(Gaussian(8.0), "look")
    assert len(Ledger.open(tmp_path / "ledger.json").entries) == 1


def test_threads_cannot_overspend_a_ledger_in_memory():
    for _ in range(10):
        ledger = Ledger(2.0, 1e-5)
        ledger.spend(Gaussian(8.0), "first")

        def spend_what_fits(ledger=ledger):
            for _ in range(8):
                with suppress(BudgetExceeded):
                    ledger.spend(Gaussian(9.0), "more")

        threads = [Thread(target=spend_what_fits) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ledger.entries) > 2
        assert ledger.epsilon() <= 2.0


def test_a_runs_entry_is_found_by_its_name_whatever_others_are_called(tmp_path):
    ledger = Ledger(5.0, 1e-5, path=tmp_path / "ledger.json")
    ledger.spend(Gaussian(30.0), "normalisation")
    ledger.spend(Gaussian(30.0), "normalisation", run="a")
    ledger.begin(Gaussian(30.0), 3, "normalisation", run="b")
    again = Ledger.open(tmp_path / "ledger.json")
    assert [again.number_of(name) for name in ("a", "b", "c", "")] == [1, 2, None, None]


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one", "add-remove"])
def test_what_uses_the_number_of_records_is_refused_under_add_remove(adjacency):
    ledger = Ledger(adjacency=adjacency)
    if adjacency == "add-remove":
        with pytest.raises(ValueError, match="add-remove"):
            ledger.refuse_add_remove()
    else:
        ledger.refuse_add_remove()


def test_a_mirror_shows_another_ledger_and_charges_nothing(path, tmp_path):
    kept = Ledger(2.0, 1e-5, path=path, planned=[(Repeated(STEP, 100), "training")])
    kept.spend(Gaussian(10.0), "a mean", "other")
    number = kept.begin(STEP, 100, "training", run="a run")
    kept.raise_count(number, 40)
    place = tmp_path / "elsewhere.json"
    shown = Ledger(1.0, 1e-6, path=place)
    before = place.read_bytes()
    shown.mirror(json.loads(json.dumps(kept.document())))
    assert (shown.epsilon(), shown.terms, shown.entries) == (kept.epsilon(), kept.terms, kept.entries)
    for spend in (
        lambda: shown.spend(Gaussian(10.0), "a mean"),
        lambda: shown.raise_count(number, 41),
        lambda: shown.announce(Gaussian(10.0), "a mean", "third"),
    ):
        with pytest.raises(LedgerError, match="rank 0 keeps this ledger"):
            spend()
    kept.raise_count(number, 100)
    shown.mirror(kept.document())
    assert shown.epsilon() == kept.epsilon()
    assert place.read_bytes() == before
