"""Tables with a schema as Records: encoded row by row, bound to a run, trained on, refused without showing a value."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import sordino
from sordino.budget import Ledger
from sordino.data import Column, DataError, PoissonSampler, Records, TableRecords, as_records, files, in_memory
from sordino.features import OneHot
from sordino.mechanisms import memory
from sordino.runs import RunError
from sordino.training import Plan

KEY = b"k" * 16
SCHEMA = sordino.Schema(
    (Column("age", bounds=(0.0, 100.0)), Column("work", categories=("office", "field", "7"))),
    Column("ill", categories=("no", "yes")),
)
REGRESSION = sordino.Schema(SCHEMA.columns, Column("days", bounds=(0.0, 365.0)))
FRAME = pd.DataFrame(
    {
        "days": [1.5, 400.0, 30.0],
        "work": ["field", " office ", "7"],
        "unused": [None, object(), [1]],
        "age": [25, 50, 1000],
        "ill": ["yes", "no", "yes"],
    }
)
SECRET = "s3cret"
ROWS = st.lists(
    st.tuples(st.floats(-1e300, 1e300), st.sampled_from(["office", "field", "7"]), st.sampled_from(["no", "yes"])),
    min_size=1,
    max_size=8,
)
LOSS = nn.CrossEntropyLoss(reduction="none")


def frame_of(rows: list[tuple[float, str, str]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["age", "work", "ill"])


def whole(records: Records) -> tuple[Any, Any]:
    return records.batch(np.arange(len(records)))


def test_rows_are_one_hot_inputs_and_class_indices() -> None:
    records = SCHEMA.records(FRAME)
    assert isinstance(records, Records)
    assert isinstance(records, TableRecords)
    assert as_records(records) is records
    assert len(records) == 3
    assert SCHEMA.width == 4
    x, y = records.batch(np.array([2, 0]))
    assert torch.equal(x, torch.tensor([[1.0, 0, 0, 1], [0.25, 0, 1, 0]]))
    assert torch.equal(y, torch.tensor([1, 1]))
    empty = records.batch(np.array([], np.int64))
    assert (empty[0].shape, empty[1].dtype) == ((0, 4), torch.int64)
    assert torch.equal(in_memory(records)[0], whole(records)[0])
    tidy = FRAME.assign(work=FRAME.work.str.strip())
    np.testing.assert_array_equal(OneHot(SCHEMA.columns)(tidy), whole(records)[0].numpy())


def test_a_number_to_predict_is_cut_at_its_bounds() -> None:
    _, y = whole(REGRESSION.records(FRAME))
    assert torch.equal(y, torch.tensor([1.5, 365.0, 30.0]))


def test_rows_to_predict_are_encoded_alike_without_a_target() -> None:
    new = SCHEMA.encode(FRAME[["work", "age"]])
    np.testing.assert_array_equal(new, whole(SCHEMA.records(FRAME))[0].numpy())


def test_a_table_too_large_to_encode_at_once_still_has_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only whole tables are refused: a refusal must not depend on the size of a secret batch."""
    records = SCHEMA.records(FRAME)
    monkeypatch.setattr(memory, "available", lambda: 10.0)
    assert records.batch(np.array([0]))[0].shape == (1, 4)
    with pytest.raises(memory.NotEnoughMemory, match="column 'work' becomes 3 numbers a row; merge its categories"):
        SCHEMA.encode(FRAME)


@given(rows=ROWS, others=ROWS, place=st.integers(0, 7))
def test_a_record_is_encoded_alike_whatever_the_other_rows(rows: Any, others: Any, place: int) -> None:
    """The guarantee that makes encoding free: nothing of one row reaches another's encoding."""
    place %= len(rows)
    alone = whole(SCHEMA.records(frame_of([rows[place]])))
    among = SCHEMA.records(frame_of(rows)).batch(np.array([place]))
    replaced = SCHEMA.records(frame_of([*others, rows[place], *others])).batch(np.array([len(others)]))
    for other in (among, replaced):
        assert torch.equal(alone[0], other[0])
        assert torch.equal(alone[1], other[1])
    assert SCHEMA.records(frame_of(rows)).batch(np.array([place, place]))[0].unique(dim=0).shape == (1, 4)


@given(rows=ROWS)
def test_encodings_lie_in_the_public_domain(rows: Any) -> None:
    x, y = whole(SCHEMA.records(frame_of(rows)))
    assert x.shape == (len(rows), SCHEMA.width)
    assert ((x >= 0) & (x <= 1)).all()
    assert (x[:, 1:].sum(dim=1) == 1).all()
    assert set(y.tolist()) <= {0, 1}


def test_a_frame_and_its_files_are_the_same_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = FRAME.drop(columns="unused")
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    records = SCHEMA.records(frame)
    monkeypatch.setattr(files, "_ROWS", 2)  # in several blocks
    others = [frame, tmp_path / "a.csv", str(tmp_path / "a.parquet"), frame.set_index("days")]
    others.append(frame.astype({"work": "category", "age": "Int64"}))
    for other in map(SCHEMA.records, others):
        assert torch.equal(whole(other)[0], whole(records)[0])
        assert other.fingerprint(KEY) == records.fingerprint(KEY)


def test_records_keep_their_values_when_the_frame_changes() -> None:
    frame = FRAME.copy()
    records = SCHEMA.records(frame)
    before = records.fingerprint(KEY)
    frame.loc[:, "age"] = 1
    assert records.fingerprint(KEY) == before


def test_the_fingerprint_binds_schema_columns_and_every_value() -> None:
    wider = Column("age", bounds=(0.0, 101.0))
    swapped = SCHEMA.columns[::-1]
    renamed = (Column("years", bounds=(0.0, 100.0)), SCHEMA.columns[1])
    reordered = (SCHEMA.columns[0], Column("work", categories=("field", "office", "7")))
    found = [
        SCHEMA.records(FRAME).fingerprint(KEY),
        SCHEMA.records(FRAME).fingerprint(b"j" * 16),
        REGRESSION.records(FRAME).fingerprint(KEY),
        sordino.Schema((wider, SCHEMA.columns[1]), SCHEMA.target).records(FRAME).fingerprint(KEY),
        sordino.Schema(swapped, SCHEMA.target).records(FRAME).fingerprint(KEY),
        sordino.Schema(reordered, SCHEMA.target).records(FRAME).fingerprint(KEY),
        sordino.Schema(renamed, SCHEMA.target).records(FRAME.rename(columns={"age": "years"})).fingerprint(KEY),
        SCHEMA.records(FRAME.iloc[::-1]).fingerprint(KEY),
        SCHEMA.records(FRAME.iloc[:2]).fingerprint(KEY),
        SCHEMA.records(FRAME.assign(ill="no")).fingerprint(KEY),
        SCHEMA.records(FRAME.assign(work="7")).fingerprint(KEY),
        SCHEMA.records(FRAME.assign(age=[25, 50, 1001])).fingerprint(KEY),
    ]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"work": ["field", SECRET, "7"]}, "the table, row 2, column 'work': none of the 3 declared categories"),
        ({"work": ["field", "7", None]}, "the table, row 3, column 'work': none of the 3"),
        ({"work": [["field"], SECRET, "7"]}, "the table, row 1, column 'work': none of the 3"),
        ({"work": [SECRET.encode(), {SECRET: 1}, "7"]}, "the table, row 1, column 'work': none of the 3"),
        ({"age": [1, SECRET, 2]}, "the table, row 2, column 'age': not a finite number"),
        ({"age": [1, [SECRET], 2]}, "the table, row 2, column 'age': not a finite number"),
        ({"age": [1.0, np.inf, np.nan]}, "the table, row 2, column 'age': not a finite number"),
        ({"age": pd.to_datetime(["2020-01-01"] * 3)}, "the table, row 1, column 'age': not a finite number"),
        ({"age": [1 + 2j, 1, 2]}, "the table, row 1, column 'age': not a finite number"),
        ({"ill": ["no", "yes", SECRET]}, "the table, row 3, column 'ill': none of the 2"),
    ],
)
@pytest.mark.parametrize("index", [[0, 1, 2], [SECRET, SECRET, SECRET]], ids=["numbered", "named"])
def test_a_row_that_breaks_the_schema_is_named_by_its_place(changed: Any, said: str, index: Any) -> None:
    with pytest.raises(DataError, match=said) as raised:
        SCHEMA.records(FRAME.assign(**changed).set_index(pd.Index(index)))
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None


def test_tables_without_rows_or_columns_are_refused() -> None:
    with pytest.raises(DataError, match=r"the table holds no rows \(n=0\)"):
        SCHEMA.records(FRAME.iloc[:0])
    with pytest.raises(DataError, match=r"the table lacks the column 'ill' \(the target\) of the schema"):
        SCHEMA.records(FRAME.drop(columns="ill"))
    with pytest.raises(DataError, match="the table: two columns have the same name; rename one"):
        SCHEMA.records(pd.concat([FRAME, FRAME], axis=1))
    with pytest.raises(DataError, match="the table does not name its columns; give each a name"):
        SCHEMA.records(pd.DataFrame(np.zeros((2, 3))))


@pytest.mark.parametrize("table", [FRAME, FRAME.age], ids=["frame", "series"])
def test_a_table_without_a_schema_is_refused_with_the_remedy(table: Any) -> None:
    with pytest.raises(TypeError, match=r"does not say what is public.*schema\.records\(table\)"):
        as_records(table)


def people(n: int = 120) -> pd.DataFrame:
    generator = np.random.default_rng(3)
    frame = pd.DataFrame({"age": generator.integers(0, 100, n), "work": generator.choice(["office", "field"], n)})
    return frame.assign(ill=np.where(frame.age > 50, "yes", "no"), days=frame.age / 2)


def module(outputs: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SCHEMA.width, 8), nn.Tanh(), nn.Linear(8, outputs))


PLAN = Plan(PoissonSampler(120, 12), l2_clip=0.5, noise_multiplier=2.0, steps=20)
TRAIN = """
import os, signal, sys
import torch
from torch import nn
import sordino
from sordino.data import PoissonSampler
from sordino.training import Plan

schema = sordino.Schema.read("schema.json")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(schema.width, 8), nn.Tanh(), nn.Linear(8, 2))
plan = Plan(PoissonSampler(120, 12), l2_clip=0.5, noise_multiplier=2.0, steps=20)
run = sordino.Run.at("run")
ledger = sordino.Ledger(50.0, 1e-5, path=run.ledger, planned=[(plan.event, "training", "train")])

def progress(done, total):
    if done >= 8:
        os.kill(os.getpid(), signal.SIGKILL)

sordino.fit(
    plan, model, schema.records("table.csv"), optimiser=sordino.SGD(0.5, momentum=0.9), ledger=ledger, run=run,
    loss=nn.CrossEntropyLoss(reduction="none"), seed=1, checkpoint_every=4, on_progress=progress,
)
"""


def trained(run: sordino.Run, table: pd.DataFrame) -> Any:
    ledger = Ledger(50.0, 1e-5, path=run.ledger, planned=[(PLAN.event, "training", "train")])
    optimiser = sordino.SGD(0.5, momentum=0.9)
    records = SCHEMA.records(table)
    fitted = sordino.fit(
        PLAN, module(), records, optimiser=optimiser, ledger=ledger, run=run, loss=LOSS, seed=1, checkpoint_every=4
    )
    return fitted, ledger.epsilon()


def test_a_killed_run_on_a_table_resumes_bit_for_bit_and_refuses_another_table(tmp_path: Path) -> None:
    people().to_csv(tmp_path / "table.csv", index=False)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA.to_json()), encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", TRAIN], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    run = sordino.Run(tmp_path / "run")
    with pytest.raises(RunError, match="started with other data"):
        trained(run, people().assign(age=1))
    resumed, epsilon = trained(run, people())  # the file's rows as a DataFrame are the same records
    straight, price = trained(sordino.Run.at(tmp_path / "straight"), people())
    assert epsilon == price
    for name, weight in straight.weights.items():
        assert torch.equal(weight, resumed.weights[name])


def test_a_loop_of_ones_own_reads_a_table() -> None:
    model = module(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = sordino.make_private(
        model,
        optimizer,
        lambda output, target: (output.squeeze(-1) - target).square(),
        REGRESSION.records(people()),
        epochs=2,
        expected_batch_size=12,
        l2_clip=1.0,
        target_epsilon=5,
        target_delta=1e-3,
    )
    for x, y in private.batches():
        assert x.shape == (len(y), SCHEMA.width)
        private.step(x, y)
    assert 0 < private.epsilon() <= 5
