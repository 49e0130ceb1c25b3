"""Named datasets, users' own files, and samplers."""

from sordino.data.catalogue import fetch, is_named, load, locate, names
from sordino.data.dataset import Column, Dataset, Facts, Split
from sordino.data.errors import DataError
from sordino.data.files import read_examples
from sordino.data.splits import Splits

__all__ = [
    "Column",
    "DataError",
    "Dataset",
    "Facts",
    "Split",
    "Splits",
    "fetch",
    "is_named",
    "load",
    "locate",
    "names",
    "read_examples",
]
