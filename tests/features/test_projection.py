"""Principal components: scikit-learn's from public vectors, near them from private ones, charged as what they are."""

import math

import numpy as np
import pytest
from sklearn.decomposition import PCA

from sordino.budget import BudgetExceeded, Gaussian, Ledger, cost
from sordino.data import DataError
from sordino.features import Projection
from sordino.mechanisms.moments import SecondMoments


def vectors(n=5000):
    generator = np.random.default_rng(0)
    return (generator.normal(size=(n, 3)) * [3, 2, 0.1]) @ np.linalg.qr(generator.normal(size=(6, 6)))[0][:3] + 5


def test_of_public_vectors_they_are_those_of_scikit_learn():
    rows = vectors()
    ours, theirs = Projection.of_public(rows, 2), PCA(2).fit(rows)
    np.testing.assert_allclose(np.abs(np.sum(ours.components * theirs.components_, axis=1)), 1, atol=1e-9)
    np.testing.assert_allclose(ours.mean, theirs.mean_)
    assert ours(rows).shape == (5000, 2)
    np.testing.assert_allclose(np.abs(ours(rows)), np.abs(theirs.transform(rows)), atol=1e-4)
    images = rows.reshape(-1, 1, 2, 3)
    np.testing.assert_array_equal(Projection.of_public(images, 2)(images), ours(rows))


def test_of_private_vectors_they_are_near_and_cost_one_gaussian():
    rows = vectors(20_000) - 5
    ledger = Ledger(1.0, 1e-5)
    moments = SecondMoments(l2_clip=10.0, noise_multiplier=5.0, with_mean=True)
    ours = Projection.of_private(rows, 2, moments, ledger)
    assert ledger.epsilon() == cost(Gaussian(5.0), 1e-5).epsilon
    cosines = np.linalg.svd(ours.components @ PCA(2).fit(rows).components_.T)[1]
    assert cosines.min() > 0.99
    np.testing.assert_allclose(ours.components @ ours.components.T, np.eye(2), atol=1e-9)
    with pytest.raises(BudgetExceeded):
        Projection.of_private(rows, 2, SecondMoments(1.0, 0.5), Ledger(0.5, 1e-5))


def test_exact_ones_of_private_vectors_are_charged_as_not_private():
    ledger = Ledger(target_delta=1e-5)
    exact = Projection.not_private(vectors(), 2, ledger)
    assert ledger.epsilon() == math.inf
    np.testing.assert_array_equal(exact.components, Projection.of_public(vectors(), 2).components)
    with pytest.raises(BudgetExceeded):
        Projection.not_private(vectors(), 2, Ledger(10.0, 1e-5))


def test_the_identity_names_every_constant():
    first, second = (Projection.of_public(vectors(n), 2) for n in (4000, 5000))
    assert first.identity != second.identity
    assert first.identity == Projection.of_public(vectors(4000), 2).identity


def test_what_cannot_be():
    ledger = Ledger()
    for wrong in (0, 7):
        with pytest.raises(ValueError, match="1 to 6"):
            Projection.of_private(vectors(), wrong, SecondMoments(1.0, 1.0), ledger)
    assert not ledger.entries
    with pytest.raises(DataError, match="vectors"):
        Projection.of_public(np.zeros(3), 1)
    with pytest.raises(DataError, match="finite"):
        Projection.of_public(np.full((3, 2), np.nan), 1)
    with pytest.raises(DataError, match="6 numbers, not of 5"):
        Projection.of_public(vectors(), 1)(np.zeros((2, 5)))
