"""The named datasets of binary vectors, as published for membership-inference research."""

from __future__ import annotations

import io
import tarfile

import numpy as np

from sordino.data.dataset import Split, check_labels
from sordino.data.definition import Definition, Files, Form, Parts
from sordino.data.errors import DataError, reading
from sordino.data.fetching import ArchiveDownload, Download
from sordino.data.formats import labelled_bits, limited, npz
from sordino.data.splits import cut

PLACES = tuple(f"place type {i}" for i in range(1, 31))
SHOPPERS = tuple(f"shopping style {i}" for i in range(1, 101))
REPOSITORY = "https://github.com/privacytrustlab/datasets/raw/master/"


def _in_canonical_order(pool: Split) -> Split:
    """Sorted by label, then features: copies of this set circulate in several orders."""
    return pool.take(np.lexsort((*pool.x.T[::-1], pool.y)))


def _location_npz(files: Files) -> Parts:
    where = files.folder / "location-30.npz"
    x, y = npz(files.read("location-30.npz"), ("x", "y"), where)
    if x.ndim != 2 or x.shape[1] != 446:
        raise DataError(f"{where}: each row needs 446 features; check the file")
    pool = Split(x.astype(np.uint8), check_labels(y, PLACES, where))
    return Parts(*cut(_in_canonical_order(pool), 1000))


def _location_csv(files: Files) -> Parts:
    where = files.folder / "bangkok"
    x, y = labelled_bits(files.read("bangkok"), where, bits=446)
    return Parts(*cut(_in_canonical_order(Split(x, check_labels(y - 1, PLACES, where))), 1000))


def _purchase(files: Files) -> Parts:
    """The archive holds one CSV file; it is read in place, since its checksum was never published."""
    where = files.path("dataset_purchase.tgz")
    with reading(where, "archive"), tarfile.open(fileobj=io.BytesIO(where.read_bytes())) as content:
        tables = [member for member in content.getmembers() if member.isfile()]
        stream = content.extractfile(tables[0])
        data = limited(stream, where) if stream else b""
    x, y = labelled_bits(data, where, bits=600)
    if len(y) != 197_324:
        raise DataError(f"{where}: {len(y):,} rows where 197,324 are expected; get the original file again")
    return Parts(*cut(Split(x, check_labels(y - 1, SHOPPERS, where)), 39_324))


LOCATION_30 = Definition(
    name="location-30",
    what="places visited, 446 bits",
    task="classification",
    kind="vector",
    classes=PLACES,
    shape=(446,),
    value_range=(0.0, 1.0),
    n_train=4010,
    n_test=1000,
    source=REPOSITORY + "dataset_location.tgz",
    licence="none stated",
    protected="one user's visits and their label",
    note="published without a test part: 1,000 rows drawn once and for all",
    forms=(
        Form(
            "location-30",
            ("bangkok",),
            _location_csv,
            train="dc8b2dbc4997320d2891f013bf1ca665dc4f3e67e20217bccf4c4617ee6e8a97",
            test="8b319ca40315ec25c455833e3c2cd8ae1596a310edd15e0a1b10399baccfdd3c",
        ),
        Form(
            "location-30",
            ("location-30.npz",),
            _location_npz,
            train="dc8b2dbc4997320d2891f013bf1ca665dc4f3e67e20217bccf4c4617ee6e8a97",
            test="8b319ca40315ec25c455833e3c2cd8ae1596a310edd15e0a1b10399baccfdd3c",
        ),
    ),
    sources=(ArchiveDownload(REPOSITORY + "dataset_location.tgz", {"bangkok": "bangkok"}),),
)

PURCHASE_100 = Definition(
    name="purchase-100",
    what="shoppers' purchases, 600 bits",
    task="classification",
    kind="vector",
    classes=SHOPPERS,
    shape=(600,),
    value_range=(0.0, 1.0),
    n_train=158_000,
    n_test=39_324,
    source=REPOSITORY + "dataset_purchase.tgz",
    licence="none stated; from a Kaggle competition",
    protected="one shopper's purchases and their label",
    note="published without a test part: 39,324 rows drawn once and for all; "
    "no checksum is published, so only sizes and ranges are checked",
    forms=(Form("purchase-100", ("dataset_purchase.tgz",), _purchase),),
    sources=(Download(REPOSITORY, ("dataset_purchase.tgz",)),),
)
