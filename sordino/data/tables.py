"""The named tables. Domains are those of the documentation, so that encoding them looks at no row."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sordino.data.dataset import Column, Split
from sordino.data.definition import Definition, Files, Form, Parts
from sordino.data.errors import DataError
from sordino.data.fetching import Download
from sordino.data.formats import csv_rows
from sordino.data.splits import cut

if TYPE_CHECKING:
    import pandas as pd

UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
PERSON = "one person's row"
Rows = list[tuple[int, list[str]]]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Bounds: the census file's own top codes where it has them (age, capital-gain, hours), else round numbers.
ADULT_COLUMNS = (
    Column("age", bounds=(17, 90)),
    Column("workclass", _words("Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay "
                               "Never-worked ?")),
    Column("fnlwgt", bounds=(0, 1_500_000)),
    Column("education", _words("Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th "
                               "Masters 1st-4th 10th Doctorate 5th-6th Preschool")),
    Column("education-num", bounds=(1, 16)),
    Column("marital-status", _words("Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
                                    "Married-AF-spouse")),
    Column("occupation", _words("Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
                                "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
                                "Priv-house-serv Protective-serv Armed-Forces ?")),
    Column("relationship", _words("Wife Own-child Husband Not-in-family Other-relative Unmarried")),
    Column("race", _words("White Asian-Pac-Islander Amer-Indian-Eskimo Other Black")),
    Column("sex", _words("Female Male")),
    Column("capital-gain", bounds=(0, 99_999)),
    Column("capital-loss", bounds=(0, 5000)),
    Column("hours-per-week", bounds=(1, 99)),
    Column("native-country", _words("United-States Cambodia England Puerto-Rico Canada Germany "
                                    "Outlying-US(Guam-USVI-etc) India Japan Greece South China Cuba Iran Honduras "
                                    "Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
                                    "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua "
                                    "Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong "
                                    "Holand-Netherlands ?")),
)  # fmt: skip
INCOME = ("<=50K", ">50K")

BREAST_CANCER_COLUMNS = (
    Column("age", _words("10-19 20-29 30-39 40-49 50-59 60-69 70-79 80-89 90-99"), absent=_words("10-19 80-89 90-99")),
    Column("menopause", _words("lt40 ge40 premeno")),
    Column("tumor-size", _words("0-4 5-9 10-14 15-19 20-24 25-29 30-34 35-39 40-44 45-49 50-54 55-59"),
           absent=("55-59",)),
    Column("inv-nodes", _words("0-2 3-5 6-8 9-11 12-14 15-17 18-20 21-23 24-26 27-29 30-32 33-35 36-39"),
           absent=_words("18-20 21-23 27-29 30-32 33-35 36-39")),
    Column("node-caps", _words("yes no ?")),
    Column("deg-malig", _words("1 2 3")),
    Column("breast", _words("left right")),
    Column("breast-quad", _words("left_up left_low right_up right_low central ?")),
    Column("irradiat", _words("yes no")),
)  # fmt: skip
RECURRENCE = ("no-recurrence-events", "recurrence-events")

MEDICAL_COST_COLUMNS = (
    Column("age", bounds=(18, 64)),
    Column("sex", _words("female male")),
    Column("bmi", bounds=(10, 60)),
    Column("children", bounds=(0, 10)),
    Column("smoker", _words("no yes")),
    Column("region", _words("northeast northwest southeast southwest")),
)


def _number(cell: str, line: int, column: str, where: object) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{where}, line {line}, column {column!r}: not a finite number; correct or drop the row")
    return value


def _frame(rows: Rows, columns: tuple[Column, ...], where: object) -> pd.DataFrame:
    """Numeric columns as float64, the others categorical with the documented categories in their order."""
    import pandas as pd

    content: dict[str, object] = {}
    for i, column in enumerate(columns):
        if column.categories is None:
            content[column.name] = np.array([_number(row[i], line, column.name, where) for line, row in rows])
            continue
        known = set(column.categories)
        for line, row in rows:
            if row[i] not in known:
                raise DataError(
                    f"{where}, line {line}, column {column.name!r}: not one of the {len(known)} documented categories; "
                    "correct or drop the row"
                )
        content[column.name] = pd.Categorical([row[i] for _, row in rows], categories=list(column.categories))
    return pd.DataFrame(content)


def _classes(cells: list[str], rows: Rows, classes: tuple[str, ...], where: object) -> NDArray[np.int64]:
    index = {name: i for i, name in enumerate(classes)}
    for cell, (line, _) in zip(cells, rows, strict=True):
        if cell not in index:
            raise DataError(f"{where}, line {line}: the label is none of {', '.join(classes)}; correct or drop the row")
    return np.array([index[cell] for cell in cells], np.int64)


def _adult_split(files: Files, name: str) -> Split:
    """adult.test opens with a comment line and ends each label with a full stop."""
    where = files.folder / name
    data = files.read(name)
    if data.startswith(b"|"):
        data = b"\n" + data.partition(b"\n")[2]
    rows = csv_rows(data, where, 15)
    labels = _classes([row[14].rstrip(".") for _, row in rows], rows, INCOME, where)
    return Split(_frame(rows, ADULT_COLUMNS, where), labels)


def _adult(files: Files) -> Parts:
    return Parts(_adult_split(files, "adult.data"), _adult_split(files, "adult.test"))


def _breast_cancer(files: Files) -> Parts:
    where = files.folder / "breast-cancer.data"
    rows = csv_rows(files.read("breast-cancer.data"), where, 10)
    labels = _classes([row[0] for _, row in rows], rows, RECURRENCE, where)
    pool = Split(_frame([(line, row[1:]) for line, row in rows], BREAST_CANCER_COLUMNS, where), labels)
    return Parts(*cut(pool, 95))


def _medical_cost(files: Files) -> Parts:
    where = files.folder / "insurance.csv"
    header, *rows = csv_rows(files.read("insurance.csv"), where, 7)
    expected = [*(column.name for column in MEDICAL_COST_COLUMNS), "charges"]
    if header[1] != expected:
        raise DataError(f"{where}: the first line must name the columns {', '.join(expected)}")
    if not rows:
        raise DataError(f"{where} holds no rows (n=0)")
    charges = np.array([_number(row[6], line, "charges", where) for line, row in rows])
    return Parts(*cut(Split(_frame(rows, MEDICAL_COST_COLUMNS, where), charges), 300))


ADULT = Definition(
    name="adult",
    what="census rows, income over 50K",
    task="classification",
    kind="table",
    classes=INCOME,
    shape=(14,),
    value_range=None,
    n_train=32_561,
    n_test=16_281,
    source="https://archive.ics.uci.edu/dataset/2/adult",
    licence="CC BY 4.0",
    protected=PERSON,
    note="? (unknown) is a category of its own",
    columns=ADULT_COLUMNS,
    forms=(
        Form(
            "adult",
            ("adult.data", "adult.test"),
            _adult,
            train="8425f53716d9c5cae3c2cc6998e315e7f44b45e0d916fe49c427a2d7fc3ce846",
            test="e74ee35231a29688dfb7b45847aef8e353a3c4f7dc870022dabccadb686ab2a8",
        ),
    ),
    sources=(Download(UCI + "adult/", ("adult.data", "adult.test")),),
)

BREAST_CANCER = Definition(
    name="breast-cancer",
    what="recurrence of breast cancer (Ljubljana)",
    task="classification",
    kind="table",
    classes=RECURRENCE,
    shape=(9,),
    value_range=None,
    n_train=191,
    n_test=95,
    source="https://archive.ics.uci.edu/dataset/14/breast+cancer",
    licence="CC BY 4.0; credit the Institute of Oncology, Ljubljana, M. Zwitter and M. Soklic",
    protected=PERSON,
    note="published without a test part: 95 rows drawn once and for all; ? (unknown) is a category of its own",
    columns=BREAST_CANCER_COLUMNS,
    forms=(
        Form(
            "breast-cancer",
            ("breast-cancer.data",),
            _breast_cancer,
            train="e45e1bd3537da8d277a30df35051c0511b5997afbdb59156c9823f7592b2a538",
            test="ea37475be56ef497a404042cfd0db2028fc7138c6bbe2f9a2ff903bca1890e91",
        ),
    ),
    sources=(Download(UCI + "breast-cancer/", ("breast-cancer.data",)),),
)

MEDICAL_COST = Definition(
    name="medical-cost",
    what="insurance charges",
    task="regression",
    kind="table",
    classes=None,
    shape=(6,),
    value_range=None,
    n_train=1038,
    n_test=300,
    source="https://github.com/stedy/Machine-Learning-with-R-datasets",
    licence="Database Contents License 1.0 as usually listed",
    protected=PERSON,
    note="published without a test part: 300 rows drawn once and for all",
    columns=MEDICAL_COST_COLUMNS,
    target_range=(0.0, 100_000.0),
    forms=(
        Form(
            "medical-cost",
            ("insurance.csv",),
            _medical_cost,
            train="fa4d70585e30d6fd2fd643c86c11bad6b7d53b3aa25d6e4fe6718ddac3005e4b",
            test="c139d77f012006340988b9161a7bb97b9cb8240e03d634f0eb8c5502e76816dc",
        ),
    ),
    sources=(
        Download(
            "https://raw.githubusercontent.com/stedy/Machine-Learning-with-R-datasets/master/", ("insurance.csv",)
        ),
    ),
)
