"""The named text datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.data.dataset import Split
from sordino.data.definition import Definition, Files, Form, Parts
from sordino.data.errors import DataError
from sordino.data.fetching import ArchiveDownload, Download
from sordino.data.formats import csv_rows, text
from sordino.data.splits import cut

HAM_OR_SPAM = ("ham", "spam")
TOPICS = ("World", "Sports", "Business", "Sci/Tech")


def _strings(rows: list[str]) -> NDArray[Any]:
    array = np.empty(len(rows), object)
    array[:] = rows
    return array


def _sms(files: Files) -> Parts:
    where = files.folder / "SMSSpamCollection"
    labels, messages = [], []
    lines = text(files.read("SMSSpamCollection"), where).split("\n")
    for number, line in enumerate(lines, start=1):
        if not line and number == len(lines):
            continue
        label, tab, message = line.rstrip("\r").partition("\t")
        if not tab or label not in HAM_OR_SPAM:
            raise DataError(
                f"{where}, line {number}: expected ham or spam, a tab and a message; correct or drop the line"
            )
        labels.append(HAM_OR_SPAM.index(label))
        messages.append(message)
    if not labels:
        raise DataError(f"{where} holds no messages (n=0)")
    return Parts(*cut(Split(_strings(messages), np.array(labels, np.int64)), 836))


def _ag_split(files: Files, name: str) -> Split:
    """Class 1 to 4, title, description; the text is title and description on two lines."""
    where = files.folder / name
    rows = csv_rows(files.read(name), where, 3)
    known = {str(i + 1): i for i in range(len(TOPICS))}
    for line, row in rows:
        if row[0] not in known:
            raise DataError(
                f"{where}, line {line}: the label is outside the classes 1 to {len(TOPICS)}; correct the row"
            )
    return Split(_strings([f"{row[1]}\n{row[2]}" for _, row in rows]), np.array([known[row[0]] for _, row in rows]))


def _ag_news(files: Files) -> Parts:
    return Parts(_ag_split(files, "train.csv"), _ag_split(files, "test.csv"))


def _ag_news_part(files: Files) -> Parts:
    return Parts(_ag_split(files, "train_subset.csv"), _ag_split(files, "test.csv"))


SMS_SPAM = Definition(
    name="sms-spam",
    what="text messages, ham or spam",
    task="text",
    kind="text",
    classes=HAM_OR_SPAM,
    shape=(),
    value_range=None,
    n_train=4738,
    n_test=836,
    source="https://archive.ics.uci.edu/dataset/228/sms+spam+collection",
    licence="CC BY 4.0",
    protected="one message; a sender may have written several",
    note="published without a test part: 836 rows drawn once and for all",
    forms=(
        Form(
            "sms-spam",
            ("SMSSpamCollection",),
            _sms,
            train="95d392136c3225008af0980fa70ae515b77d27b27c8c9a00137f6388b877bc48",
            test="585e3ae8e947a9aa1720c884891d1cec2e5357842e6f0510b6c1cd9b4b2b5e7d",
        ),
    ),
    sources=(
        ArchiveDownload(
            "https://archive.ics.uci.edu/ml/machine-learning-databases/00228/smsspamcollection.zip",
            {"SMSSpamCollection": "SMSSpamCollection"},
        ),
    ),
)

AG_NEWS = Definition(
    name="ag-news",
    what="news, four topics",
    task="text",
    kind="text",
    classes=TOPICS,
    shape=(),
    value_range=None,
    n_train=120_000,
    n_test=7600,
    source="https://github.com/mhjabreel/CharCnn_Keras",
    licence="research, non-commercial",
    protected="one article",
    forms=(
        Form(
            "ag-news",
            ("train.csv", "test.csv"),
            _ag_news,
            test="897802055e674886755726edf255d2caf0150a7c20b4c7ac8bd63ab51f3178e3",
            published={
                "train.csv": "md5:b1a00f826fdfbd249f79597b59e1dc12",
            },
        ),
        Form(
            "ag-news",
            ("train_subset.csv", "test.csv"),
            _ag_news_part,
            train="37c42b8ed2f4aa0541f6f38c506e58bc458679000ded397a588f9cdf496e14c4",
            test="897802055e674886755726edf255d2caf0150a7c20b4c7ac8bd63ab51f3178e3",
            missing="37,453 of 120,000 training rows",
        ),
    ),
    sources=(
        Download(
            "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/",
            ("train.csv", "test.csv"),
        ),
    ),
)
