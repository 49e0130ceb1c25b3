"""Stored features are computed once for the same examples and constants; saved ones are checked against the data."""

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from sordino.data import DataError
from sordino.features import Feature, GroupNorm, Pixels, saved, storage, stored

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
    assert len(list((tmp_path / "features").iterdir())) == 3
    with pytest.raises(ValueError, match="float32 or uint8"):
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


def only_file(cache: Path) -> Path:
    [path] = (cache / "features").iterdir()
    return path


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "short": lambda content: content[:20],
    "truncated": lambda content: content[: len(content) // 2],
    "without its end": lambda content: content[:-1],
    "longer": lambda content: content + b"0",
    "one bit": lambda content: content[:3000] + bytes([content[3000] ^ 1]) + content[3001:],
    "not numbers": lambda content: content[:2000] + np.full(500, np.nan, np.float32).tobytes() + content[4000:],
    "another file": lambda content: b"hello" * 1000,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_what_is_damaged_is_said_to_be_so_and_computed_again(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    good = np.array(stored(Pixels() >> Counted(), images(), cache=tmp_path))
    path = only_file(tmp_path)
    content = path.read_bytes()
    path.write_bytes(damage(content))
    with pytest.warns(UserWarning, match="damaged: they are computed again"):
        again = stored(Pixels() >> Counted(), images(), cache=tmp_path)
    assert np.array_equal(again, good)
    assert only_file(tmp_path).read_bytes() == content


def test_a_chain_does_not_go_on_from_what_is_damaged(tmp_path: Path) -> None:
    stored(Pixels() >> Counted(), images(), cache=tmp_path)
    path = only_file(tmp_path)
    path.write_bytes(DAMAGES["one bit"](path.read_bytes()))
    with pytest.warns(UserWarning, match="damaged"):
        found = stored(Pixels() >> Counted() >> Counted(2), images(), cache=tmp_path)
    assert np.array_equal(found, (Pixels() >> Counted() >> Counted(2))(images()).numpy())


def test_the_name_confirms_no_guess_of_the_examples(tmp_path: Path) -> None:
    for cache in (tmp_path / "one", tmp_path / "other"):
        stored(Pixels(), images(), cache=cache)
    assert only_file(tmp_path / "one").name != only_file(tmp_path / "other").name  # under another secret
    content = images().tobytes()
    for method in ("blake2b", "sha256", "sha1", "md5"):
        assert hashlib.new(method, content).hexdigest()[:16] not in only_file(tmp_path / "one").name
    key = tmp_path / "one/features.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.stat().st_size == 32


def test_the_users_secret_is_kept_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SORDINO_STATE", str(tmp_path / "state"))
    CALLS.clear()
    for _ in range(2):
        stored(Pixels() >> Counted(), images())
    assert sum(CALLS) == 1203
    assert (tmp_path / "state/features.key").exists()
    assert only_file(tmp_path / "cache").suffix == ".npy"
    (tmp_path / "state/features.key").write_bytes(b"")  # as after a crash of the machine: a new one is made
    stored(Pixels() >> Counted(), images())
    assert sum(CALLS) == 2 * 1203
    (tmp_path / "file").touch()
    monkeypatch.setenv("SORDINO_STATE", str(tmp_path / "file/state"))
    with pytest.raises(DataError, match="set SORDINO_STATE to a folder"):
        stored(Pixels(), images())


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DataError, match="0 MiB are needed and 0 free; make room there, or set SORDINO_CACHE"):
        stored(Pixels(), images(), cache=tmp_path)
    assert list((tmp_path / "features").iterdir()) == []


def test_a_disk_that_fills_up_meanwhile_is_one_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(storage.os, "fsync", full)
    (tmp_path / "features.key").write_bytes(bytes(32))
    with pytest.raises(DataError, match="No space left on device; make room"):
        stored(Pixels(), images(), cache=tmp_path)
    assert list((tmp_path / "features").iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    stored(Pixels(), images(1), cache=tmp_path)
    abandoned = tmp_path / "features" / f"{storage._PARTS}abandoned.part"
    abandoned.write_bytes(b"half")
    with storage._part(tmp_path / "features") as (_, name):
        stored(Pixels(), images(), cache=tmp_path)
        assert not abandoned.exists()
        assert Path(name).exists()


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
