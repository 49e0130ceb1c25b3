"""The task of Table III is the same at every input size."""

from pathlib import Path

import numpy as np
import pytest

from sordino.papers.privacy_aware.split_inputs import SIZES, SplitInputs, sums_of_parts
from sordino.papers.trials import TrialStore


@pytest.mark.parametrize("size", SIZES)
def test_inputs_sum_to_the_same_whatever_their_number(size: int) -> None:
    x, y = sums_of_parts(40, size, 3)
    base, labels = sums_of_parts(40, 10, 3)
    assert x.shape == (40, size)
    np.testing.assert_allclose(x.reshape(40, 10, -1).sum(axis=2), base, rtol=1e-5)
    assert np.array_equal(y, labels)
    assert np.array_equal(y == 1, base.sum(axis=1) > 5)


def test_distances_are_from_the_plain_weights_and_the_price_is_kept(tmp_path: Path) -> None:
    repeat = SplitInputs(10).quick()
    said: list[str] = []
    found = repeat.run(said.append, TrialStore(tmp_path))
    assert len(found["distances"]) == 2
    assert all(0 <= distance <= 2 for distance in found["distances"])
    assert 0.9 * 3 < found["epsilon"] <= 3
    assert repeat.run(said.append, TrialStore(tmp_path)) == found
    assert len(said) == 1
