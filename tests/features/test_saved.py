"""Saved features are taken for the dataset's only where they can be."""

from pathlib import Path

import numpy as np
import pytest

from sordino.data import DataError
from sordino.features.saved import saved


def rows(n: int = 5000) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)


def test_a_row_for_each_example(tmp_path: Path) -> None:
    np.save(tmp_path / "plain.npy", rows())
    np.savez(tmp_path / "one.npz", rows())
    np.savez_compressed(tmp_path / "two.npz", train=rows(), test=rows(7))
    plain = saved(tmp_path / "plain.npy", 5000)
    assert isinstance(plain, np.memmap)
    for found in (plain, saved(tmp_path / "one.npz", 5000), saved(str(tmp_path / "two.npz"), 5000, key="train")):
        assert np.array_equal(found, rows())
    assert len(saved(tmp_path / "two.npz", 7, key="test")) == 7


def broken() -> np.ndarray:
    values = rows()
    values[4321, 1] = np.nan
    return values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (rows(4999), "features of 4999 rows, but the data has 5000"),
        (broken(), "row 4322: a feature is not a finite number"),
        (rows().ravel(), r"shape \(15000,\), not features"),
        (rows()[:, :0], r"shape \(5000, 0\), not features"),
        (np.zeros((5000, 3), np.int64), "holds int64, not floating-point"),
        (np.array([object()] * 5000), r"not a readable \.npy file"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(tmp_path: Path, values: np.ndarray, message: str) -> None:
    np.save(tmp_path / "features.npy", values)
    with pytest.raises(DataError, match=message) as caught:
        saved(tmp_path / "features.npy", 5000)
    assert "\n" not in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        saved(tmp_path / "none.npy", 1)
    with pytest.raises(DataError, match=r"neither an \.npy nor an \.npz"):
        saved(tmp_path / "features.csv", 1)
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(DataError, match=r"not a readable \.npz file"):
        saved(tmp_path / "cut.npz", 1)
    np.savez(tmp_path / "two.npz", train=rows(3), test=rows(3))
    for key in (None, "validation"):
        with pytest.raises(DataError, match="holds the arrays test, train: say which by key"):
            saved(tmp_path / "two.npz", 3, key=key)
