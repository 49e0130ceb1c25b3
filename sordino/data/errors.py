"""The one error of this package: a line that says what is wrong with the data and what to do."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DataError(ValueError):
    """Data that is missing, damaged or not what it should be, said in one line that holds no private value."""


@contextmanager
def reading(where: str | Path, kind: str) -> Iterator[None]:
    """Turns whatever a decoder raises on damaged bytes into one DataError.

    The cause is dropped on purpose: parsers quote the offending cell, and a cell is private.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{where} does not exist; check the path") from None
    except IsADirectoryError:
        raise DataError(f"{where} is a folder, not a {kind} file") from None
    except PermissionError:
        raise DataError(f"{where} may not be read; check its permissions") from None
    except MemoryError:
        raise DataError(f"{where} announces more data than fits in memory; it is damaged or too large") from None
    except Exception:
        raise DataError(
            f"{where} is not a readable {kind} file: it is truncated, damaged or of another format"
        ) from None
