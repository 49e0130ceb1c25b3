"""Features are computed once for the same examples and constants, and never taken for others."""

import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sordino.features.feature import Feature
from sordino.features.normalisation import GroupNorm
from sordino.features.pixels import Pixels
from sordino.features.stored import stored

CALLS: list[int] = []


@dataclass(frozen=True)
class Counted(Feature):
    power: int = 1

    def __call__(self, batch: Tensor) -> Tensor:
        CALLS.append(len(batch))
        return batch**self.power


def images(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (1203, 2, 2), dtype=np.uint8)


def test_a_second_time_is_read_from_disk(tmp_path: Path) -> None:
    CALLS.clear()
    seen: list[int] = []
    feature = Pixels() >> Counted()
    first = stored(feature, images(), cache=tmp_path, on_progress=seen.append)
    assert seen == [500, 1000, 1203]
    assert sum(CALLS) == 1203
    again = stored(feature, images(), cache=tmp_path)
    assert sum(CALLS) == 1203
    assert isinstance(again, np.memmap)
    assert np.array_equal(first, again)
    assert np.array_equal(again, feature(images()).numpy())
    with pytest.raises(ValueError, match="read-only"):
        again[0] = 0


def test_other_examples_constants_or_types_are_other_files(tmp_path: Path) -> None:
    squares = stored(Pixels() >> Counted(2), images(), cache=tmp_path)
    assert np.allclose(squares, stored(Pixels() >> Counted(), images(), cache=tmp_path) ** 2)
    assert not np.array_equal(squares, stored(Pixels() >> Counted(2), images(1), cache=tmp_path))
    halves = stored(Pixels() >> Counted(2), images(), dtype="float16", cache=tmp_path)
    assert halves.dtype == np.float16
    assert np.allclose(halves, squares, atol=1e-3)
    assert len(list((tmp_path / "features").iterdir())) == 4
    with pytest.raises(ValueError, match="float32 or float16"):
        stored(Counted(), images(), dtype="int8", cache=tmp_path)


def test_the_last_steps_of_a_chain_go_on_from_what_is_stored(tmp_path: Path) -> None:
    base, chain = Pixels() >> Counted(), Pixels() >> Counted() >> GroupNorm(1) >> Counted(2)
    afresh = stored(chain, images(), cache=tmp_path / "empty")
    kept = stored(base, images(), cache=tmp_path).copy()
    CALLS.clear()
    assert np.array_equal(stored(chain, images(), cache=tmp_path), afresh)
    assert sum(CALLS) == 1203  # of the last step alone
    assert np.array_equal(stored(base, images(), cache=tmp_path), kept)
    other = stored(chain, images(1), cache=tmp_path)
    assert np.array_equal(other, chain(images(1)).numpy())


def test_what_is_stored_is_the_owners_only(tmp_path: Path) -> None:
    stored(Pixels(), images(), cache=tmp_path)
    assert stat.S_IMODE((tmp_path / "features").stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 for path in (tmp_path / "features").iterdir())


def test_a_failure_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Breaking(Feature):
        def __call__(self, batch: Tensor) -> Tensor:
            if len(batch) < 500:
                raise MemoryError
            return torch.zeros(len(batch), 1)

    with pytest.raises(MemoryError):
        stored(Pixels() >> Breaking(), images(), cache=tmp_path)
    assert list((tmp_path / "features").iterdir()) == []
