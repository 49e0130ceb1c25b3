"""Users' tables under a schema: what fits is read, what does not is named by its place, no domain is read off rows."""

import json
import tracemalloc

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sordino.budget import BudgetExceeded, Ledger
from sordino.data import Column, DataError, files
from sordino.data.schema import Schema
from sordino.data.tables import read_table
from sordino.features import OneHot

DOCUMENT = {
    "columns": {"age": {"bounds": [17, 90]}, "work": {"categories": ["NA", "007", "self"]}},
    "target": {"income": {"categories": ["<=50K", ">50K"]}},
}
SCHEMA = Schema.from_json(DOCUMENT)
CSV = "id,income,work,age\nx, >50K, 007, 30\ny, <=50K, NA, 1000\n"
SECRET = "s3cret"


def write(folder, text, name="a.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_csv_file(tmp_path):
    split = read_table(write(tmp_path, CSV), SCHEMA)
    assert list(split.x) == ["age", "work"]
    assert split.x["work"].tolist() == ["007", "NA"]
    assert split.y.dtype == np.int64
    np.testing.assert_array_equal(split.y, [1, 0])
    np.testing.assert_allclose(OneHot(SCHEMA.columns)(split.x), [[13 / 73, 0, 1, 0], [1, 1, 0, 0]], rtol=1e-6)


def test_a_parquet_file_and_a_number_to_predict(tmp_path):
    schema = Schema(
        (Column("kind", categories=("1", "2")), Column("weight", bounds=(0, 9))), Column("y", bounds=(0, 5))
    )
    frame = pd.DataFrame({"kind": [2, 1], "weight": pd.array([3, 4], "Int64"), "y": [1.5, 2.0]})
    frame.to_parquet(tmp_path / "a.parquet")
    split = read_table(tmp_path / "a.parquet", schema)
    assert split.x["kind"].tolist() == ["2", "1"]
    assert split.y.dtype == np.float64
    assert schema.facts(2, "a").task == "regression"
    assert schema.facts(2, "a").target_range == (0, 5)


def test_the_facts_of_a_table():
    facts = SCHEMA.facts(10, "mine")
    assert (facts.task, facts.kind, facts.classes, facts.n_train) == ("classification", "table", ("<=50K", ">50K"), 10)
    assert Schema.of(facts, "income") == SCHEMA


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"age,work,income\n30,self,>50K\n30,{SECRET},>50K\n", "row 2, column 'work': none of the 3 declared"),
        (f"age,work,income\n30,self,{SECRET}\n", "row 1, column 'income': none of the 2 declared"),
        (f"age,work,income\n{SECRET},self,>50K\n", "row 1, column 'age': not a finite number"),
        ("age,work,income\ninf,self,>50K\n", "row 1, column 'age': not a finite number"),
        ("age,work,income\n,self,>50K\n", "row 1, column 'age': not a finite number"),
        ("age,work,income\n3,self\n", "row 1, column 'income': none of"),
        ("age,work\n30,self\n", r"lacks the column 'income' \(the target\) of"),
        ("age,income\n30,>50K\n", "lacks the column 'work' of"),
        ("work\nself\n", "lacks the columns 'age', 'income'"),
        ("1,2,3\n4,5,6\n", "does not name its columns"),
        ("age,work,income\n", "no rows"),
    ],
)
def test_what_does_not_fit_is_named_by_its_place(tmp_path, text, said):
    with pytest.raises(DataError, match=said) as raised:
        read_table(write(tmp_path, text), SCHEMA)
    assert SECRET not in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("words", [("", "1", "2"), ("", "1.0", "2.0"), ("", " 1", "2 ")])
def test_words_are_the_same_in_every_format(tmp_path, words):
    """Whole numbers become floats in a column with gaps, a gap is the empty word, and blanks around a word are none."""
    schema = Schema((Column("a", categories=words),), Column("t", categories=("0", "1")))
    frame = pd.DataFrame({"a": [1.0, None, 2.0], "t": [0.0, 1.0, 1.0]})
    frame.to_parquet(tmp_path / "a.parquet")
    found = read_table(tmp_path / "a.parquet", schema)
    assert (found.x["a"].cat.codes.tolist(), found.y.tolist()) == ([1, 0, 2], [0, 1, 1])
    found = read_table(write(tmp_path, "a,t\n1.0,0.0\n,1\n2,1.0\n"), schema)
    assert (found.x["a"].cat.codes.tolist(), found.y.tolist()) == ([1, 0, 2], [0, 1, 1])
    inferred = Schema.inferred(write(tmp_path, "a,t\n0.5,0\n1,1\n"), "t")
    frame.assign(a=[0.5, 1.0, 1.0]).to_parquet(tmp_path / "public.parquet")
    assert Schema.inferred(tmp_path / "public.parquet", "t") == inferred


def test_words_that_are_no_numbers_are_the_same_only_to_the_letter(tmp_path):
    schema = Schema((Column("a", categories=("v1.0", "v2")),), Column("t", categories=("0", "1")))
    with pytest.raises(DataError, match="row 2, column 'a': none of the 2 declared"):
        read_table(write(tmp_path, "a,t\nv1.0,0\nv1,1\n"), schema)


def test_cells_of_a_wrong_kind_in_parquet(tmp_path):
    good = pd.DataFrame({"age": [30.0], "work": ["self"], "income": [">50K"]})
    for wrong in ({"age": pd.to_datetime(["2020-01-01"])}, {"age": [[1, 2]]}, {"work": [None]}):
        good.assign(**wrong).to_parquet(tmp_path / "a.parquet")
        with pytest.raises(DataError, match=f"row 1, column '{next(iter(wrong))}'"):
            read_table(tmp_path / "a.parquet", SCHEMA)


def test_a_file_that_is_no_table(tmp_path):
    with pytest.raises(DataError, match=r"use \.csv or \.parquet"):
        read_table(write(tmp_path, "x", "a.txt"), SCHEMA)
    with pytest.raises(DataError, match="does not exist"):
        read_table(tmp_path / "absent.csv", SCHEMA)


def test_a_schema_file_round_trips(tmp_path):
    path = write(tmp_path, json.dumps(DOCUMENT), "schema.json")
    assert Schema.read(path) == SCHEMA
    assert Schema.from_json(SCHEMA.to_json()) == SCHEMA
    with_absent = Schema((Column("a", ("x", "y"), absent=("y",)),), SCHEMA.target)
    assert Schema.from_json(with_absent.to_json()) == with_absent
    assert with_absent.without_absent().columns == (Column("a", ("x",)),)
    assert SCHEMA.without_absent() == SCHEMA


def test_a_schema_file_of_other_programs(tmp_path):
    assert Schema.read(write(tmp_path, "\ufeff" + json.dumps(DOCUMENT), "schema.json")) == SCHEMA
    twice = '{"columns": {"a": {"bounds": [0, 1]}, "a": {"bounds": [0, 9]}}, "target": {"y": {"bounds": [0, 1]}}}'
    with pytest.raises(DataError, match="has 'a' twice"):
        Schema.read(write(tmp_path, twice, "schema.json"))


def test_two_columns_of_one_name_are_refused(tmp_path):
    with pytest.raises(DataError, match="two columns have the same name"):
        read_table(write(tmp_path, "a, b,a\n1,2,3\n", "table.csv"), SCHEMA)


TARGET = {"y": {"bounds": [0, 1]}}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"columns": {"a": {}}, "target": TARGET}, "neither categories nor bounds.*public bounds.*--private-bounds.*"),
        ({"columns": {"a": {"bounds": [0, 1], "categories": ["x"]}}, "target": TARGET}, "both"),
        ({"columns": {"a": {"bounds": [1, 0]}}, "target": TARGET}, "the lower one first"),
        ({"columns": {"a": {"bounds": [0, 1e999]}}, "target": TARGET}, "finite"),
        ({"columns": {"a": {"bounds": [0, 10**400]}}, "target": TARGET}, "domain of 'a'"),
        ({"columns": {"a": {"bounds": [0, True]}}, "target": TARGET}, "domain of 'a'"),
        ({"columns": {"a": {"bounds": "01"}}, "target": TARGET}, "domain of 'a'"),
        ({"columns": {"a": {"categories": ["x", "x"]}}, "target": TARGET}, "different words"),
        ({"columns": {"a": {"categories": []}}, "target": TARGET}, "different words"),
        ({"columns": {"a": {"categories": [1]}}, "target": TARGET}, "domain of 'a'"),
        ({"columns": {"a": {"categories": ["x"], "absent": ["y"]}}, "target": TARGET}, "absent"),
        ({"columns": {"a": {"range": [0, 1]}}, "target": TARGET}, "domain of 'a'"),
        ({"columns": {"y": {"bounds": [0, 1]}}, "target": TARGET}, "twice"),
        ({"columns": {"a": {"bounds": [0, 1]}}, "target": {"y": {"categories": ["x"]}}}, "single class"),
        ({"columns": {}, "target": TARGET}, "not a schema"),
        ({"columns": {"a": {"bounds": [0, 1]}}}, "not a schema"),
        ([], "not a schema"),
    ],
)
def test_a_schema_that_is_none(document, said):
    with pytest.raises(DataError, match=said) as raised:
        Schema.from_json(document)
    assert "\n" not in str(raised.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["bounds", "categories", "a"]), inner),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(columns=json_values, target=json_values)
def test_whatever_a_schema_file_holds(tmp_path, columns, target):
    path = write(tmp_path, json.dumps({"columns": columns, "target": target}), "schema.json")
    try:
        schema = Schema.read(path)
    except DataError as problem:
        assert "\n" not in str(problem)  # noqa: PT017
    else:
        assert Schema.from_json(schema.to_json()) == schema


def test_a_schema_inferred_from_a_public_file(tmp_path):
    path = write(tmp_path, "a,b,c,y\n1,x,2,0\n3,w,2.5,1\n2,x,9,1\n")
    schema = Schema.inferred(path, "y")
    assert schema.columns == (
        Column("a", bounds=(1, 3)),
        Column("b", categories=("w", "x")),
        Column("c", bounds=(2, 9)),
    )
    assert schema.target == Column("y", categories=("0", "1"))
    assert Schema.inferred(path, "c").target == Column("c", bounds=(2, 9))
    assert read_table(path, schema).y.tolist() == [0, 1, 1]
    with pytest.raises(DataError, match="no column 'z' to predict; it has a, b, c, y"):
        Schema.inferred(path, "z")
    with pytest.raises(DataError, match="row 2, column 'a': missing"):
        Schema.inferred(write(tmp_path, "a,y\n1,0\n,1\n"), "y")
    with pytest.raises(DataError, match="one value everywhere"):
        Schema.inferred(write(tmp_path, "a,y\n1,0\n1,1\n"), "y")
    with pytest.raises(DataError, match="1,001 different words"):
        Schema.inferred(write(tmp_path, "a,y\n" + "".join(f"w{i},{i % 2}\n" for i in range(1001))), "y")


def test_bounds_narrowed_out_of_the_budget():
    ages = np.random.default_rng(0).normal(50, 5, 40_000)
    table = pd.DataFrame({"age": ages, "work": ["self"] * len(ages)})
    wide = Schema((Column("age", bounds=(-1000, 1000)), SCHEMA.columns[1]), SCHEMA.target)
    ledger = Ledger(1.0, 1e-6)
    narrow = wide.narrowed(table, ledger, 0.8)
    low, high = narrow.columns[0].bounds
    assert 30 < low < 45
    assert 55 < high < 70
    assert narrow.columns[1] == wide.columns[1]
    assert ledger.epsilon() == pytest.approx(0.8, abs=1e-3)
    with pytest.raises(BudgetExceeded):
        wide.narrowed(table, ledger, 0.8)
    with pytest.raises(DataError, match="no column of numbers"):
        Schema(SCHEMA.columns[1:], SCHEMA.target).narrowed(table, ledger, 0.1)


@pytest.mark.parametrize("opening", ["[", '{"columns":'])
def test_a_schema_file_of_endless_depth(tmp_path, opening):
    path = tmp_path / "deep.json"
    path.write_text(opening * 100_000)
    with pytest.raises(DataError, match=r"deep\.json is not a readable schema file"):
        Schema.read(path)


@pytest.mark.parametrize("ending", ["csv", "parquet", "csv.gz"])
def test_a_table_is_read_block_by_block(tmp_path, monkeypatch, ending):
    generator, n = np.random.default_rng(0), 1000
    table = pd.DataFrame({"age": generator.random(n), "work": generator.choice(["a", "b"], n), "y": range(n)})
    path = tmp_path / f"table.{ending}"
    save = table.to_parquet if ending == "parquet" else lambda path: table.to_csv(path, index=False)
    save(path)
    schema = Schema((Column("age", bounds=(0, 1)), Column("work", ("a", "b"))), Column("y", bounds=(0, n)))
    whole = read_table(path, schema)
    monkeypatch.setattr(files, "_ROWS", 37)
    in_blocks = read_table(path, schema)
    pd.testing.assert_frame_equal(in_blocks.x, whole.x)
    np.testing.assert_array_equal(in_blocks.y, np.arange(n))
    table.loc[500, "work"] = "c"
    save(path)
    with pytest.raises(DataError, match="row 501, column 'work': none of the 2 declared categories"):
        read_table(path, schema)


def test_a_table_of_numbers_is_never_all_words(tmp_path, monkeypatch):
    n = 10_000
    monkeypatch.setattr(files, "_ROWS", 500)
    table = pd.DataFrame(np.random.default_rng(0).random((n, 10)), columns=list("abcdefghij"))
    table.to_csv(tmp_path / "table.csv", index=False)
    schema = Schema(tuple(Column(name, bounds=(0, 1)) for name in "abcdefghi"), Column("j", bounds=(0, 1)))
    tracemalloc.start()
    read_table(tmp_path / "table.csv", schema)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The file, the numbers, and some more; its text in four bytes a letter was as much as the file four times.
    assert peak < 2 * (tmp_path / "table.csv").stat().st_size + 2 * 8 * n * 10


def test_a_missing_cell_changes_no_other_record(tmp_path):
    """With a gap, pandas would make floats of a column of whole numbers, and long ones would run together."""
    long = [str(2**53 + 1), str(2**53)]
    schema = Schema.from_json({"columns": {"id": {"categories": [*long, ""]}}, "target": {"y": {"bounds": [0, 1]}}})
    for cells in ([int(long[0]), int(long[1])], [int(long[0]), None]):
        columns = {"id": pa.array(cells, type=pa.int64()), "y": [0.0, 1.0]}
        pq.write_table(pa.table(columns), tmp_path / "table.parquet")
        assert read_table(tmp_path / "table.parquet", schema).x["id"][0] == long[0]
