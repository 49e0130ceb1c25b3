"""What was computed once is not computed again, and what took long outlives the cache."""

from pathlib import Path
from typing import Any

import pytest

from sordino.papers import trials
from sordino.papers.trials import TrialStore


def test_what_took_long_is_kept_beside_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TrialStore(tmp_path / "cache", tmp_path / "records")
    assert store.get("short", lambda folder: {"accuracy": 0.5}) == {"accuracy": 0.5}
    assert not (tmp_path / "records").exists()
    monkeypatch.setattr(trials, "_LONG", 0.0)
    assert store.get("long", lambda folder: {"accuracy": 0.9}) == {"accuracy": 0.9}
    assert [file.name for file in (tmp_path / "records" / "trials").iterdir()] == ["long.json"]
    elsewhere = TrialStore(tmp_path / "another cache", tmp_path / "records")
    assert elsewhere.get("long", _never) == {"accuracy": 0.9}


def test_what_was_begun_and_stopped_counts_as_long(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "cache", tmp_path / "records")

    def stopped(folder: Path) -> dict[str, Any]:
        folder.mkdir(parents=True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.get("trial", stopped)
    store.get("trial", lambda folder: {})
    assert (tmp_path / "records" / "trials" / "trial.json").exists()


def test_a_damaged_result_says_what_to_delete(tmp_path: Path) -> None:
    (tmp_path / "trials").mkdir()
    (tmp_path / "trials" / "trial.json").write_text("{")
    with pytest.raises(ValueError, match=r"trial\.json is damaged: delete it, and"):
        TrialStore(tmp_path / "cache", tmp_path).get("trial", _never)


def _never(folder: Path) -> dict[str, Any]:
    raise AssertionError("it was computed again")
