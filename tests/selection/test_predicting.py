"""Predictions by a workflow's model."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sordino.budget import Ledger
from sordino.data import Column, DataError, Split
from sordino.data.samplers import PoissonSampler
from sordino.data.schema import Schema
from sordino.runs import Run, RunError
from sordino.selection.carrying_out import Steps, carry_out
from sordino.selection.predicting import classify_by_advice, holds_advice
from sordino.selection.stand_ins import PublicRows
from sordino.selection.table_models import MODELS
from sordino.training import Plan
from sordino.training.convex import GaussianObjective, LogisticPlan

SCHEMA = Schema(
    (Column("a", bounds=(0.0, 1.0)), Column("b", bounds=(0.0, 1.0)), Column("c", categories=("x", "y"))),
    Column("t", categories=("no", "yes")),
)
QUIET = LogisticPlan(2.0, 1.0, GaussianObjective(0.5))
PLANS = {
    "logistic": QUIET,
    "logistic-binned": QUIET,
    "linear": Plan(PoissonSampler(400, 400), 1.0, 0.5, 30),
    "network-small": Plan(PoissonSampler(400, 400), 1.0, 0.5, 60),
}


def rows(seed: int, n: int = 500) -> Split:
    rng = np.random.default_rng(seed)
    x = pd.DataFrame({"a": rng.uniform(size=n), "b": rng.uniform(size=n), "c": rng.choice(["x", "y"], n)})
    return Split(x, (x["a"] > 0.5).to_numpy(np.int64))


@pytest.mark.parametrize("name", PLANS)
def test_the_model_of_a_workflow_tells_classes(name: str, tmp_path: Path) -> None:
    [model] = [each for each in MODELS if each.name == name]
    steps = Steps(SCHEMA, model, None, ("a", "c"), PLANS[name], 400, 3.0)
    ledger = Ledger(path=tmp_path / "ledger.json")
    carry_out(steps, rows(0), PublicRows(rows(1), 100), ledger, tmp_path)
    new = rows(2)
    file = tmp_path / "new.csv"
    new.x.iloc[:, ::-1].assign(more=1).to_csv(file, index=False)
    assert holds_advice(tmp_path)
    told = np.array(classify_by_advice(tmp_path, file))
    assert set(told) == {"no", "yes"}
    assert (told == np.where(new.y == 1, "yes", "no")).mean() > 0.85
    new.x[["a", "c"]].to_csv(file, index=False)  # it does not use b
    assert classify_by_advice(tmp_path, file) == told.tolist()
    new.x[["a", "b"]].to_csv(file, index=False)
    with pytest.raises(DataError, match="'c'"):
        classify_by_advice(tmp_path, file)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(RunError, match="is not the model"):
        classify_by_advice(tmp_path, file)


def test_unfinished_and_damaged_folders(tmp_path: Path) -> None:
    assert not holds_advice(tmp_path)
    (tmp_path / "advice.json").write_text("{}")
    assert holds_advice(tmp_path)
    file = tmp_path / "new.csv"
    rows(0, 5).x.to_csv(file, index=False)
    with pytest.raises(RunError, match="is not finished"):
        classify_by_advice(tmp_path, file)
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(RunError, match=r"used\.json is missing"):
        classify_by_advice(tmp_path, file)
    used = tmp_path / "used.json"
    whole = {"model": "logistic", "schema": SCHEMA.to_json(), "mask": [True] * 4}
    for text in (json.dumps(whole), "[]", "null", ""):
        used.write_text(text)
        with pytest.raises(RunError, match=r"used\.json cannot be read"):
            classify_by_advice(tmp_path, file)
    numbers = {"columns": whole["schema"]["columns"], "target": {"t": {"bounds": [0, 1]}}}  # type: ignore[index]
    for change in (
        *({"model": "tree"}, {"schema": {}}, {"schema": numbers}),
        *({"mask": "x"}, {"mask": [0.5] * 4}, {"mask": [True] * 3}, {"mask": [False] * 4}),
    ):
        Run(tmp_path).write_sealed("used.json", whole | change)
        with pytest.raises(RunError, match=r"used\.json cannot be read"):
            classify_by_advice(tmp_path, file)
    Run(tmp_path).write_sealed("used.json", whole)
    with pytest.raises(RunError, match=r"model\.safetensors is missing"):
        classify_by_advice(tmp_path, file)
