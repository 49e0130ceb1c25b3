"""An older copy of a ledger does not regain budget."""

import json
import logging
import os
import shutil
import stat

import pytest

from sordino.budget import Gaussian, Ledger, LedgerError, PoissonGaussian, marks
from sordino.budget import ledger_file as files


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(3.0, 1e-5, path=tmp_path / "ledger.json")
    ledger.spend(Gaussian(20.0), "a look")
    return ledger


def copied(ledger, name="copy.json"):
    return shutil.copy(ledger.path, ledger.path.with_name(name))


def attempts(ledger):
    return [
        lambda: ledger.spend(Gaussian(20.0), "again"),
        lambda: ledger.begin(Gaussian(20.0), 3, "again"),
        lambda: ledger.announce(Gaussian(20.0), "again", "another part"),
        lambda: ledger.raise_count(0, 1),
    ]


def test_an_old_copy_is_refused_wherever_it_lies(ledger):
    old = copied(ledger)
    ledger.spend(Gaussian(20.0), "counted")
    os.replace(old, ledger.path)  # in its place
    for attempt in attempts(Ledger.open(ledger.path)):
        with pytest.raises(LedgerError, match=r"old copy: it has 1 entries .* has had 2 entries .*newest copy"):
            attempt()
    elsewhere = copied(ledger, "elsewhere.json")
    with pytest.raises(LedgerError, match="old copy"):
        Ledger.open(elsewhere).spend(Gaussian(20.0), "again")
    assert len(Ledger.open(elsewhere).entries) == 1  # it can still be looked at


def test_nothing_is_stated_of_an_old_copy(ledger):
    stated = ledger.statement()["epsilon"]
    old = copied(ledger)
    ledger.spend(Gaussian(20.0), "counted")
    with pytest.raises(LedgerError, match=r"old copy: it has 1 entries .* has had 2 entries .*newest copy"):
        Ledger.open(old).statement()
    assert ledger.statement()["epsilon"] > stated


def test_a_statement_counts_what_others_have_spent_meanwhile(ledger):
    """Which is not an old copy: the file is read again first."""
    other = Ledger.open(ledger.path)
    other.spend(Gaussian(20.0), "elsewhere")
    assert ledger.statement() == other.statement()


def test_the_folder_of_a_ledger_knows_how_far_it_was(ledger, tmp_path, monkeypatch):
    ledger.mark_in(marks.in_folder(tmp_path))
    old = ledger.path.read_bytes()
    ledger.spend(Gaussian(20.0), "counted")
    ledger.path.write_bytes(old)
    monkeypatch.setenv("SORDINO_STATE", str(tmp_path / "another computer"))
    again = Ledger.open(ledger.path)
    for attempt in (again.statement, lambda: again.spend(Gaussian(20.0), "again")):
        with pytest.raises(LedgerError, match="old copy"):
            attempt()


def test_marks_of_another_user_are_not_needed_to_read_a_ledger(ledger, tmp_path, monkeypatch, caplog):
    def read_text(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    again = Ledger.open(ledger.path)
    monkeypatch.setattr("pathlib.Path.read_text", read_text)
    assert again.statement()["epsilon"] > 0
    assert "an older copy of the ledger would not be noticed" in caplog.text


def test_an_old_copy_of_a_run_that_has_drawn_more_is_refused(ledger):
    number = ledger.begin(PoissonGaussian(1e-3, 2.0), 10, "training")
    ledger.raise_count(number, 3)
    old = copied(ledger)
    ledger.raise_count(number, 7)
    with pytest.raises(LedgerError, match=r"with 4 draws, and .* with 8 draws"):
        Ledger.open(old).raise_count(number, 4)


def test_the_newest_copy_goes_on_and_the_original_is_then_old(ledger):
    copy = Ledger.open(copied(ledger))
    copy.spend(Gaussian(20.0), "in the copy")
    with pytest.raises(LedgerError, match=r"old copy.*copy\.json"):
        ledger.spend(Gaussian(20.0), "in the original")
    copy.spend(Gaussian(20.0), "in the copy")


def test_a_copy_that_was_spent_from_elsewhere_is_refused(ledger, tmp_path, monkeypatch):
    other = copied(ledger)
    ledger.spend(Gaussian(20.0), "here")
    with monkeypatch.context() as patch:
        patch.setenv("SORDINO_STATE", str(tmp_path / "another computer"))
        away = Ledger.open(other)
        away.spend(Gaussian(21.0), "there")
        away.spend(Gaussian(21.0), "there")
    with pytest.raises(LedgerError, match="without some entries of its original"):
        Ledger.open(other).spend(Gaussian(20.0), "back here")


def test_a_folder_that_drew_from_a_ledger_knows_how_far_it_was(ledger, tmp_path, monkeypatch):
    place = tmp_path / "run" / "private" / "ledger.mark.json"
    ledger.mark_in(place)
    old = copied(ledger)
    ledger.spend(Gaussian(20.0), "drawn by the run")
    monkeypatch.setenv("SORDINO_STATE", str(tmp_path / "another computer"))
    again = Ledger.open(old)
    with pytest.raises(LedgerError, match="old copy"):
        again.mark_in(place)
    Ledger.open(ledger.path).mark_in(place)
    another = Ledger(3.0, 1e-5, path=tmp_path / "another.json")
    another.mark_in(place)  # a folder may begin with another ledger, which has a mark of its own then
    assert marks.noted(place).ledger == another._name


def test_a_mark_is_of_one_ledger(ledger, tmp_path):
    place, other = tmp_path / "run" / "ledger.mark.json", Ledger(path=tmp_path / "other.json")
    assert not ledger.is_other_than(place)
    with ledger.marking(place):
        ledger.spend(Gaussian(20.0), "drawn by the run")
    entries = len(ledger.entries)
    ledger.spend(Gaussian(20.0), "drawn by another")
    assert marks.noted(place).entries == entries
    assert other.is_other_than(place)
    assert Ledger().is_other_than(place)
    assert not Ledger.open(ledger.path).is_other_than(place)


def test_a_folder_of_its_own_does_not_make_an_old_copy_new(ledger, tmp_path):
    old = copied(ledger)
    ledger.spend(Gaussian(20.0), "counted")
    again = Ledger.open(old)
    with pytest.raises(LedgerError, match="old copy"):
        again.mark_in(tmp_path / "new" / "ledger.mark.json")
    with pytest.raises(LedgerError, match="old copy"):
        again.spend(Gaussian(20.0), "again")


def test_a_folders_mark_is_checked_at_every_charge(ledger, tmp_path):
    place = tmp_path / "run" / "ledger.mark.json"
    ledger.mark_in(place)
    mark = json.loads(place.read_text())
    place.write_text(json.dumps(mark | {"drawn": mark["drawn"] + 1}))
    with pytest.raises(LedgerError, match="old copy"):
        ledger.spend(Gaussian(20.0), "again")


def test_a_large_ledger_is_bound_as_well(ledger):
    for number in range(files.LARGE):
        ledger.spend(Gaussian(400.0), f"look {number}")
    old = copied(ledger)
    ledger.spend(Gaussian(400.0), "counted")
    with pytest.raises(LedgerError, match="old copy"):
        Ledger.open(old).spend(Gaussian(400.0), "again")


def test_truncated_lines_with_a_forged_slot_are_an_old_copy(ledger):
    for number in range(files.LARGE + 3):
        ledger.spend(Gaussian(400.0), f"look {number}")
    content = ledger.path.read_bytes()
    slot = ledger._seen.slot + files._SLOT_PLACE
    shorter = content[: content[:-1].rindex(b"\n") + 1]
    lines = b"%010d" % (ledger._seen.lines - 1)
    ledger.path.write_bytes(shorter[:slot] + lines + shorter[slot + 10 :])
    with pytest.raises(LedgerError, match="old copy"):
        Ledger.open(ledger.path).spend(Gaussian(400.0), "again")


def test_the_registry_is_its_owners_alone_and_holds_one_file_a_ledger(ledger, registry_of_this_test):
    ledger.spend(Gaussian(20.0), "again")
    folder = registry_of_this_test / "ledgers"
    [kept] = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert json.loads(kept.read_text())["entries"] == 2


def test_without_a_variable_the_registry_is_the_users_state_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("SORDINO_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert marks.registry() == tmp_path / "sordino" / "ledgers"


def test_a_registry_that_cannot_be_written_is_reported_and_the_charge_stands(ledger, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SORDINO_STATE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        ledger.spend(Gaussian(20.0), "charged")
    assert "cannot be written" in caplog.text
    assert len(Ledger.open(ledger.path).entries) == 2


@pytest.mark.parametrize("content", ["", "{}", "[1]", "[" * 100_000, '{"ledger": 1}'])
def test_a_damaged_mark_is_one_line(ledger, content):
    marks.in_registry(ledger._name).write_text(content)
    with pytest.raises(LedgerError, match="damaged"):
        ledger.spend(Gaussian(20.0), "again")
