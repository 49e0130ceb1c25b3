"""What was computed once is not computed again, and what took long outlives the cache."""

from pathlib import Path
from typing import Any

import pytest

from sordino.papers import keeping
from sordino.papers.keeping import Store


def test_what_took_long_is_kept_beside_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "cache", tmp_path / "records")
    assert store.kept("short", lambda folder: {"accuracy": 0.5}) == {"accuracy": 0.5}
    assert not (tmp_path / "records").exists()
    monkeypatch.setattr(keeping, "_LONG", 0.0)
    assert store.kept("long", lambda folder: {"accuracy": 0.9}) == {"accuracy": 0.9}
    assert [file.name for file in (tmp_path / "records" / "trials").iterdir()] == ["long.json"]
    elsewhere = Store(tmp_path / "another cache", tmp_path / "records")
    assert elsewhere.kept("long", _never) == {"accuracy": 0.9}


def test_what_was_begun_and_stopped_counts_as_long(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", tmp_path / "records")

    def stopped(folder: Path) -> dict[str, Any]:
        folder.mkdir(parents=True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.kept("trial", stopped)
    store.kept("trial", lambda folder: {})
    assert (tmp_path / "records" / "trials" / "trial.json").exists()


def test_a_damaged_result_says_what_to_delete(tmp_path: Path) -> None:
    (tmp_path / "trials").mkdir()
    (tmp_path / "trials" / "trial.json").write_text("{")
    with pytest.raises(ValueError, match=r"trial\.json is damaged: delete it, and"):
        Store(tmp_path / "cache", tmp_path).kept("trial", _never)


def _never(folder: Path) -> dict[str, Any]:
    raise AssertionError("it was computed again")
