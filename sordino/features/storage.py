"""Features on disk: computed once into memory-mapped files that later runs only open, or saved by the user."""

import errno
import fcntl
import hashlib
import hmac
import io
import math
import os
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from platformdirs import user_state_dir

from sordino.budget import write_durably
from sordino.data import CACHE_VARIABLE, DataError, cache_folder, reading
from sordino.features.base import Chain, Feature, as_array
from sordino.mechanisms import data_tag

STATE = "SORDINO_STATE"
"""The environment variable that names the folder of the user's secret."""
_FORMAT = 3
_BLOCK = 500
_PARTS = f"v{_FORMAT}-"  # those of other versions may be held without a lock
_SECRET, _TAG = 32, 32
_READ = 2**22
_CHECKED_ROWS = 4096


def stored(
    feature: Feature,
    examples: Any,
    *,
    dtype: str = "float32",
    cache: Path | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> NDArray[Any]:
    """The examples' features, read-only, from the cache or else computed into it.

    Examples are an array, or whatever has a length, blocks by slice and a keyed fingerprint. The file is named by an
    HMAC of the examples, the feature's constants, the type and the version of this package, and ends in an HMAC of its
    content, both under the user's secret: the name does not confirm a guess of the examples, and
    a damaged file is found and computed again. The content reveals as much as the examples themselves: folder and files
    are readable by their owner only.

    >>> import tempfile, numpy as np
    >>> from sordino.features import Pixels
    >>> with tempfile.TemporaryDirectory() as cache:
    ...     stored(Pixels(), np.zeros((10, 4, 4), np.uint8), cache=cache).shape
    (10, 1, 4, 4)
    """
    if dtype not in ("float32", "uint8"):
        raise ValueError(f"features are stored in float32 or uint8, not {dtype}")
    folder = cache_folder(cache) / "features"
    secret = _secret(cache)
    path = _path(folder, secret, feature, examples, dtype)
    if not _intact(path, secret):
        with _room_on_disk(folder):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)  # whatever the umask is, and also if it was there before
            _remove_abandoned(folder)
            _compute(*_remaining(feature, examples, folder, secret), np.dtype(dtype), path, secret, on_progress)
    return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _secret(cache: Path | None) -> bytes:
    """The user's secret, made at its first use; a cache folder that is given has its own."""
    folder = Path(os.environ.get(STATE) or user_state_dir("sordino")) if cache is None else Path(cache)
    path = folder / "features.key"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".features.key.lock", mode=0o600):
            if not path.exists() or path.stat().st_size != _SECRET:  # without it, nothing stored is found
                write_durably(path, secrets.token_bytes(_SECRET), mode=0o600)
            path.chmod(0o600)
            return path.read_bytes()
    except OSError as problem:
        raise DataError(
            f"{path}: {problem.strerror or problem}; set {STATE} to a folder that may be written to: features are "
            "stored under a secret that is kept there"
        ) from None


def _path(folder: Path, secret: bytes, feature: Feature, examples: Any, dtype: str) -> Path:
    words = f"{_FORMAT} {version('sordino')} {feature.identity} {dtype}"
    fingerprint = getattr(examples, "fingerprint", None)
    if fingerprint is not None:
        examples = np.frombuffer(fingerprint(secret).encode(), np.uint8)
    return folder / f"{data_tag(secret, np.frombuffer(words.encode(), np.uint8), examples)[:40]}.npy"


def _intact(path: Path, secret: bytes) -> bool:
    """Whether the file exists and holds what was written; warns of a damaged one."""
    try:
        left = path.stat().st_size - _TAG
        mac = hmac.new(secret, digestmod=hashlib.sha256)
        with path.open("rb") as file:
            while left > 0:
                block = file.read(min(left, _READ))
                if not block:
                    break
                mac.update(block)
                left -= len(block)
            if left == 0 and hmac.compare_digest(mac.digest(), file.read()):
                return True
    except FileNotFoundError:
        return False
    except OSError as problem:
        raise DataError(f"{path}: {problem.strerror or problem}; correct its permissions, or delete it") from None
    warnings.warn(f"the stored features {path} are damaged: they are computed again", stacklevel=3)
    return False


def _remaining(feature: Feature, examples: Any, folder: Path, secret: bytes) -> tuple[Feature, Any]:
    """The steps still to do, and their input: the result of a chain's first steps may be on disk already."""
    steps = feature.steps if isinstance(feature, Chain) else ()
    for done in range(len(steps) - 1, 0, -1):
        path = _path(folder, secret, Chain(steps[:done]), examples, "float32")
        if _intact(path, secret):
            # Copy on write: torch wants writable memory.
            return Chain(steps[done:]), torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
    return feature, examples


def _compute(
    feature: Feature,
    examples: Any,
    dtype: np.dtype[Any],
    path: Path,
    secret: bytes,
    on_progress: Callable[[int], None],
) -> None:
    """Written under another name until complete, so that a killed process leaves nothing that looks finished."""
    first = as_array(feature(examples[:_BLOCK]))
    shape = (len(examples), *first.shape[1:])
    needed, free = math.prod(shape) * dtype.itemsize, shutil.disk_usage(path.parent).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"{needed / 2**20:,.0f} MiB are needed and {free / 2**20:,.0f} free", path.parent)
    mac = hmac.new(secret, digestmod=hashlib.sha256)
    with _part(path.parent) as (file, name):

        def write(content: Any) -> None:
            mac.update(content)
            file.write(content)

        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        )
        write(header.getvalue())
        for start in range(0, len(examples), _BLOCK):
            block = first if start == 0 else as_array(feature(examples[start : start + _BLOCK]))
            write(np.ascontiguousarray(block, dtype).data.cast("B"))
            on_progress(min(start + _BLOCK, len(examples)))
        file.write(mac.digest())
        file.flush()
        os.fsync(file.fileno())
        os.replace(name, path)


@contextmanager
def _part(folder: Path) -> Iterator[tuple[IO[bytes], str]]:
    """A file to write, readable by its owner only and locked for as long as its writer lives."""
    while True:
        handle, name = tempfile.mkstemp(dir=folder, prefix=_PARTS, suffix=".part")
        with suppress(OSError):  # not every file system has locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            break
        os.close(handle)  # removed as abandoned before it was locked
    with os.fdopen(handle, "wb") as file:
        try:
            yield file, name
        finally:
            Path(name).unlink(missing_ok=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed processes were writing: files without a lock."""
    for path in folder.glob(f"{_PARTS}*.part"):
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


@contextmanager
def _room_on_disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise DataError(
            f"features cannot be stored in {folder}: {problem.strerror or problem}; make room there, or set "
            f"{CACHE_VARIABLE} to another folder"
        ) from None


def saved(path: str | Path, rows: int, *, key: str | None = None) -> NDArray[Any]:
    """The array (rows, D) in an .npy file, read-only and mapped, or under `key` (or alone) in an .npz file.

    Guarantee: only that there is a finite row for each of the dataset's. The caller vouches that each row is a function
    of its example and of public weights alone: then it costs no privacy.
    """
    path = Path(path)
    if path.suffix not in (".npy", ".npz"):
        raise DataError(f"{path} is neither an .npy nor an .npz file: save features with numpy.save or numpy.savez")
    with reading(path, path.suffix):
        found = _member(path, key) if path.suffix == ".npz" else np.load(path, mmap_mode="r", allow_pickle=False)
    if found.ndim != 2 or not found.shape[1]:
        raise DataError(f"{path} holds an array of shape {found.shape}, not features (rows, D)")
    if not np.issubdtype(found.dtype, np.floating):
        raise DataError(f"{path} holds {found.dtype}, not floating-point features")
    if len(found) != rows:
        raise DataError(f"{path} holds features of {len(found)} rows, but the data has {rows}: one for each is needed")
    for start in range(0, rows, _CHECKED_ROWS):
        wrong = ~np.isfinite(found[start : start + _CHECKED_ROWS]).all(axis=1)
        if wrong.any():
            raise DataError(f"{path}, row {start + int(wrong.argmax()) + 1}: a feature is not a finite number")
    return found


def _member(path: Path, key: str | None) -> NDArray[Any]:
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
        names = content.files
        if key is None and len(names) == 1:
            key = names[0]
        if key not in names:
            raise DataError(f"{path} holds the arrays {', '.join(sorted(names)) or '(none)'}: say which by key")
        return np.asarray(content[key])
