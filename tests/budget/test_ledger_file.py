import contextlib
import hashlib
import json
import multiprocessing
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sordino.budget import Composed, Gaussian, Ledger, LedgerError, PoissonGaussian, Pure, Repeated
from sordino.budget import ledger_file as files


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    path = tmp_path_factory.mktemp("valid") / "ledger.json"
    ledger = Ledger(3.0, 1e-5, path=path, planned=[(Repeated(Gaussian(20.0), 2), "Normalisierung: μ, σ")])
    ledger.spend(Repeated(Gaussian(20.0), 2), "Normalisierung: μ, σ")
    ledger.begin(PoissonGaussian(1e-3, 2.0), 10, "training", claimed=Pure(1e-5))
    ledger.raise_count(1, 4)
    ledger.spend(Composed((Gaussian(30.0),)), "score", "validation", seeded=True)
    return path.read_bytes()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "ledger.json"


def reading(path):
    ledger = Ledger.open(path)
    return ledger.terms, ledger.plan, ledger.entries


def chained(document):
    """A document whose chain is right, whatever it holds."""
    return document | {"chain": files._chain(document)}


def test_truncation_at_any_byte_is_found(valid, place):
    for length in range(len(valid)):
        place.write_bytes(valid[:length])
        with pytest.raises(LedgerError):
            Ledger.open(place)


def test_a_changed_byte_is_found_or_changes_nothing(valid, place):
    """Some bytes mean nothing to JSON (one blank for another, e for E in 1e-05): then the reading is the same."""
    place.write_bytes(valid)
    expected = reading(place)
    unnoticed = 0
    for position in range(len(valid)):
        damaged = bytearray(valid)
        damaged[position] ^= 1 if position % 2 else 0x20
        place.write_bytes(bytes(damaged))
        with contextlib.suppress(LedgerError):
            assert reading(place) == expected
            unnoticed += 1
    assert unnoticed < len(valid) / 100


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_several_changed_bytes_too(valid, place, data):
    place.write_bytes(valid)
    expected = reading(place)
    damaged = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(valid) - 1))] = data.draw(st.integers(0, 255))
    place.write_bytes(bytes(damaged))
    with contextlib.suppress(LedgerError):
        assert reading(place) == expected


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_ledger_error(place, content):
    place.write_bytes(content)
    with pytest.raises(LedgerError):
        Ledger.open(place)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_rightly_chained_file_of_anything_is_a_ledger_error(valid, place, data):
    document = json.loads(valid)
    del document["chain"]
    where = data.draw(st.sampled_from(["terms", "plan", "entries", "terms.x", "plan.x", "entries.x", "event"]))
    value = data.draw(json_values)
    if where in document:
        document[where] = value
    elif where == "terms.x":
        document["terms"][data.draw(st.sampled_from(sorted(document["terms"])))] = value
    elif where == "event":
        document["entries"][0]["event"] = value
    else:
        item = document[where.removesuffix(".x")][0]
        item[data.draw(st.sampled_from(sorted(item)))] = value
    try:
        document = chained(document)
    except (TypeError, ValueError):
        document["chain"] = []
    place.write_text(json.dumps(document))
    with contextlib.suppress(LedgerError):
        Ledger.open(place)


@pytest.mark.parametrize("depth", [500, 5_000, 200_000])
@pytest.mark.parametrize("bracket", ['{"type":"repeated","count":1,"event":', "["])
def test_deep_nesting_is_a_ledger_error(valid, place, depth, bracket):
    closing = "}" if bracket.startswith("{") else "]"
    deep = bracket * depth + "1" + closing * depth
    text = valid.decode()
    start = text.index('"entries": [') + len('"entries": [')
    for content in (deep, text[:start] + deep + "," + text[start:]):
        place.write_text(content)
        with pytest.raises(LedgerError):
            Ledger.open(place)


def test_deep_nesting_with_a_right_chain_is_a_ledger_error(valid, place):
    """A forger can hash: nesting within what json reads, but beyond what an event may hold."""
    document = json.loads(valid)
    del document["chain"]
    event = document["entries"][0]["event"]
    for _ in range(200):
        event = {"type": "repeated", "event": event, "count": 1}
    document["entries"][0]["event"] = event
    place.write_text(json.dumps(chained(document)))
    with pytest.raises(LedgerError, match="nested"):
        Ledger.open(place)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"1e999",
        b'"\\ud800"',
        b'{"format": "sordino-ledger", "version": 1, "entries": ["\\ud800"], "chain": []}',
        b'{"format": "sordino-ledger", "version": 1, "\\ud800": 1, "entries": [], "chain": []}',
        b'{"format": "sordino-ledger", "version": 1, "entries": [' + b"9" * 5000 + b'], "chain": []}',
        b'{"format": "sordino-ledger", "version": 1, "entries": {}, "chain": []}',
        b'{"format": "sordino-ledger", "version": 2, "entries": [], "chain": []}',
        b'{"format": "other", "version": 1, "entries": [], "chain": []}',
        b"\xff\xfe\x00",
    ],
)
def test_odd_files_are_ledger_errors(place, content):
    place.write_bytes(content)
    with pytest.raises(LedgerError):
        Ledger.open(place)


def test_missing_files_and_folders_say_so(tmp_path):
    with pytest.raises(LedgerError, match="no ledger"):
        Ledger.open(tmp_path / "absent.json")
    with pytest.raises(LedgerError, match="cannot be read"):
        Ledger.open(tmp_path)


def test_the_version_is_part_of_the_error(place):
    place.write_text(json.dumps({"format": files.FORMAT, "version": 7, "entries": []}))
    with pytest.raises(LedgerError, match="version 7"):
        files.read(place)


def test_entries_cannot_be_dropped_swapped_or_changed_without_a_trace(valid, place):
    def drop(document):
        del document["entries"][-1], document["chain"][-1]

    def swap(document):
        document["entries"][0], document["entries"][1] = document["entries"][1], document["entries"][0]

    def lower(document):
        document["entries"][1]["count"] = 0

    def loosen(document):
        document["terms"]["target_epsilon"] = 100.0

    for damage in (swap, lower, loosen):
        document = json.loads(valid)
        damage(document)
        place.write_text(json.dumps(document))
        with pytest.raises(LedgerError, match="damaged"):
            Ledger.open(place)
    # Dropping the last entry together with its hash is what a chain cannot see: it finds accidents, not forgers.
    document = json.loads(valid)
    drop(document)
    place.write_text(json.dumps(document))
    assert len(Ledger.open(place).entries) == 2


def test_the_chain_is_sha256_over_what_came_before():
    document = {"format": "x", "entries": [{"a": 1}]}
    head = hashlib.sha256(b'{"format":"x"}').hexdigest()
    assert files._chain(document) == [head, hashlib.sha256(head.encode() + b'{"a":1}').hexdigest()]


def test_writing_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "ledger.json"
    files.write(path, {"entries": []})
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="disk full"):
            files.write(path, {"entries": [{"more": 1, "longer": "x" * 10_000}]})
    assert path.read_bytes() == before
    files.write(path, {"entries": [{"more": 2}]})  # takes over what the failed write left
    document, _, _ = files.read(path)
    assert document["entries"] == [{"more": 2}]
    assert os.listdir(tmp_path) == ["ledger.json"]


def test_numbers_that_json_does_not_have_are_not_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        files.write(tmp_path / "ledger.json", {"entries": [float("nan")]})
    assert not (tmp_path / "ledger.json").exists()


def hold(path, ready, done):
    with files.locked(path):
        ready.set()
        done.wait(60)


def test_a_lock_held_elsewhere_is_reported_and_given_up(tmp_path, monkeypatch, caplog):
    """A stopped process never lets go: say who it is and where, and end after a bounded time."""
    path = tmp_path / "ledger.json"
    ledger = Ledger(3.0, 1e-5, path=path)
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    holder = context.Process(target=hold, args=(path, ready, done))
    holder.start()
    try:
        assert ready.wait(60)
        monkeypatch.setattr(files, "_WARN_AFTER", 0.01)
        monkeypatch.setattr(files, "_GIVE_UP_AFTER", 0.01)
        with pytest.raises(LedgerError, match=rf"{path}\.lock is held by process {holder.pid} .*Nothing was recorded"):
            ledger.spend(Gaussian(9.0), "look")
        assert f"held by process {holder.pid}" in caplog.text
        assert ledger.entries == ()
    finally:
        done.set()
        holder.join()
    ledger.spend(Gaussian(9.0), "look")
