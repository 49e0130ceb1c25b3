"""Ledgers of many entries: lines after a document, sums that grow, and what a crash leaves."""

import json
import multiprocessing
import os
from contextlib import suppress
from pathlib import Path

import pytest

from sordino.budget import BudgetExceeded, Gaussian, Ledger, LedgerError, PoissonGaussian, Repeated, marks
from sordino.budget import ledger_file as files
from sordino.budget.entries import Entry, Totals

SPAWN = multiprocessing.get_context("spawn")
OLD = Path(__file__).with_name("ledger_of_version_1.json")


@pytest.fixture
def large(tmp_path):
    """One more than makes a ledger large, and a few lines after its document."""
    ledger = Ledger(3.0, 1e-5, path=tmp_path / "ledger.json")
    for number in range(files.LARGE + 3):
        ledger.spend(Gaussian(400.0 + number % 2), f"look {number}")
    ledger.raise_count(ledger.begin(PoissonGaussian(1e-3, 4.0), 9, "training"), 4)
    return ledger


def reading(path):
    ledger = Ledger.open(path)
    return ledger.terms, ledger.plan, ledger.entries


def test_lines_say_what_a_document_would(large):
    assert large.path.read_bytes().count(b"\n") > 2
    assert reading(large.path) == (large.terms, large.plan, large.entries)
    assert [entry.count for entry in large.entries[-2:]] == [1, 4]


def test_a_charge_writes_as_much_to_a_large_ledger_as_to_a_small_one(large, monkeypatch):
    monkeypatch.setattr(files, "write", lambda *_: pytest.fail("the whole ledger was written"))
    before = large.path.stat().st_size
    large.spend(Gaussian(400.0), "one more look")
    assert large.path.stat().st_size - before < 600


def test_a_charge_reads_and_prices_only_what_is_new(large, monkeypatch):
    large.spend(Gaussian(400.0), "a look")
    seen = []
    monkeypatch.setattr(Totals, "add", lambda self, entries, add=Totals.add: (seen.extend(entries), add(self, entries)))
    monkeypatch.setattr(files, "_chain", lambda _: pytest.fail("the whole ledger was read"))
    large.spend(Gaussian(400.0), "one more look")
    assert [entry.what for entry in seen] == ["one more look"]


def test_lines_become_a_document_again(large):
    for number in range(2 * files.LARGE):
        large.spend(Gaussian(500.0), f"more {number}")
        assert 2 * large._seen.lines <= len(large.entries) + 1
    assert reading(large.path) == (large.terms, large.plan, large.entries)


def test_another_object_sees_what_was_appended_and_what_was_rewritten(large):
    other = Ledger.open(large.path)
    for number in range(2 * files.LARGE):
        (large if number % 2 else other).spend(Gaussian(500.0), f"more {number}")
    other.reload()
    large.reload()
    assert other.entries == large.entries
    assert len(large.entries) == 3 * files.LARGE + 4
    assert other.epsilon() == pytest.approx(Ledger.open(large.path).epsilon(), rel=1e-12)


def test_a_torn_line_was_never_charged_and_is_written_over(large):
    whole = large.path.read_bytes()
    expected = reading(large.path)
    line = json.dumps({"entry": {}, "link": "x" * 64}).encode()
    for cut in (1, 5, len(line)):
        large.path.write_bytes(whole + line[:cut])
        assert reading(large.path) == expected
        again = Ledger.open(large.path)
        again.spend(Gaussian(400.0), "after the crash")
        assert [entry.what for entry in Ledger.open(large.path).entries[-1:]] == ["after the crash"]
        marks.in_registry(again._name).unlink()  # the next round begins before this one's charge


def test_a_line_that_was_not_counted_before_a_crash_counts(large, monkeypatch):
    """The line is on the disk and its process was killed before the next write: at worst too much is counted."""
    before, writes = len(large.entries), files.os.fsync

    def killed(descriptor):
        writes(descriptor)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            large.spend(Gaussian(400.0), "killed")
    again = Ledger.open(large.path)
    assert len(again.entries) == before + 1
    again.spend(Gaussian(400.0), "after the crash")
    assert [entry.what for entry in Ledger.open(large.path).entries[-2:]] == ["killed", "after the crash"]


def test_truncation_at_any_line_or_byte_of_the_lines_is_found(large):
    whole = large.path.read_bytes()
    start = whole.index(b"\n") + 1
    for length in range(start - 1, len(whole), 7):
        large.path.write_bytes(whole[:length])
        with pytest.raises(LedgerError):
            Ledger.open(large.path)
    for end in (place for place in range(start, len(whole) - 1) if whole[place : place + 1] == b"\n"):
        large.path.write_bytes(whole[: end + 1])
        with pytest.raises(LedgerError, match="damaged"):
            Ledger.open(large.path)


def test_a_changed_byte_in_the_lines_is_found_or_changes_nothing(large):
    whole, expected = large.path.read_bytes(), reading(large.path)
    start = whole.index(b"\n") + 1
    for position in range(start, len(whole), 3):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        large.path.write_bytes(bytes(damaged))
        try:
            assert reading(large.path) == expected
        except LedgerError:
            continue


def test_a_full_disk_leaves_a_large_ledger_as_it_was(large, monkeypatch):
    before, entries = large.path.read_bytes(), large.entries

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            large.spend(Gaussian(400.0), "too much")
    assert large.entries == entries
    assert large.path.read_bytes() == before


def spend(path, state, what):
    os.environ["SORDINO_STATE"] = state
    ledger = Ledger.open(path)
    for number in range(20):
        ledger.spend(Gaussian(900.0), f"{what} {number}")


def test_processes_that_append_lose_nothing(large):
    state = os.environ["SORDINO_STATE"]
    before = len(large.entries)
    workers = [SPAWN.Process(target=spend, args=(large.path, state, name)) for name in ("one", "two")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len(Ledger.open(large.path).entries) == before + 40


def test_a_large_ledger_refuses_what_a_small_one_would(tmp_path):
    ledgers = [Ledger(1.0, 1e-5), Ledger(1.0, 1e-5, path=tmp_path / "ledger.json")]
    for ledger in ledgers:
        with suppress(BudgetExceeded):
            for number in range(1000):
                ledger.spend(Gaussian(45.0), f"look {number}")
    assert files.LARGE < len(ledgers[1].entries) == len(ledgers[0].entries) < 1000
    everything = Ledger(None, 1e-5, planned=[(Repeated(Gaussian(45.0), len(ledgers[1].entries)), "all")])
    assert everything.cost(reserved=True).epsilon <= ledgers[1].epsilon() <= 1.0


def test_a_ledger_of_the_first_format_opens_and_goes_on(tmp_path):
    path = tmp_path / "ledger.json"
    path.write_bytes(OLD.read_bytes())
    ledger = Ledger.open(path)
    assert [(entry.what, entry.count, entry.committed, entry.run) for entry in ledger.entries] == [
        ("normalisation", 2, 2, ""),
        ("training", 4, 10, "a run"),
        ("score", 1, 1, ""),
    ]
    assert "name" not in json.loads(path.read_text())
    before = ledger.cost(reserved=True).epsilon
    ledger.raise_count(1, 5)
    again = Ledger.open(path)
    assert isinstance(again.entries[1], Entry)
    assert again.entries[1].count == 5
    assert again.cost(reserved=True).epsilon == pytest.approx(before)
    assert json.loads(path.read_text())["name"]


def test_a_ledger_of_the_first_format_has_a_name_before_it_is_marked(tmp_path):
    path, mark = tmp_path / "ledger.json", tmp_path / "run" / "ledger.mark.json"
    path.write_bytes(OLD.read_bytes())
    Ledger.open(path).mark_in(mark)
    assert not Ledger.open(path).is_other_than(mark)
