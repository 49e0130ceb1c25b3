"""Advice carried out in a folder: what is refused there, what an interruption leaves, and predictions."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sordino.budget import Ledger
from sordino.data import Column, DataError, Split
from sordino.data.samplers import PoissonSampler
from sordino.data.schema import Schema
from sordino.mechanisms.streams import secret_from_seed
from sordino.runs import Run, RunError, key, kind_of
from sordino.selection.advised_training import AdvisedPlan, carry_out, loaded_advice
from sordino.selection.proxy_rows import PublicRows
from sordino.selection.table_models import MODELS
from sordino.training import Plan
from sordino.training.convex import GaussianObjective, LogisticPlan

SCHEMA = Schema(
    (Column("a", bounds=(0.0, 1.0)), Column("b", bounds=(0.0, 1.0)), Column("c", categories=("x", "y"))),
    Column("t", categories=("no", "yes")),
)
MODEL = {model.name: model for model in MODELS}
LOGISTIC = AdvisedPlan(SCHEMA, MODEL["logistic"], 5.0, (), LogisticPlan(2.0, 5.0, GaussianObjective(4.0)), 80, 3.0)
BINNED = replace(LOGISTIC, model=MODEL["logistic-binned"])
LINEAR = replace(LOGISTIC, model=MODEL["linear"], training=Plan(PoissonSampler(80, 80), 1.0, 9.0, 2))


def rows(seed: int, n: int = 100) -> Split:
    rng = np.random.default_rng(seed)
    x = pd.DataFrame({"a": rng.uniform(size=n), "b": rng.uniform(size=n), "c": rng.choice(["x", "y"], n)})
    return Split(x, (x["a"] > 0.5).to_numpy(np.int64))


TABLE, PUBLIC = rows(0), rows(1)


def done(folder: Path, steps: AdvisedPlan = LOGISTIC, table: Split = TABLE, public: Split = PUBLIC) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    path = folder / "ledger.json"
    ledger = Ledger.open(path) if path.exists() else Ledger(20.0, 1e-5, path=path, planned=steps.announcements())
    return carry_out(steps, table, PublicRows(public, 40), ledger, folder)


def killed(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, steps: AdvisedPlan = LOGISTIC) -> None:
    """An exception in place of the write of this file: all before it has happened, its charge included."""
    with monkeypatch.context() as broken:
        for method in ("write_json", "write_tensors"):
            write = getattr(Run, method)

            def fails(self: Run, target: Any, *content: Any, write: Any = write) -> None:
                if Path(target).name == name:
                    raise OSError("no space left on device")
                write(self, target, *content)

            broken.setattr(Run, method, fails)
        with pytest.raises(OSError, match="no space"):
            done(folder, steps)


@pytest.mark.parametrize("name", ["features.json", "model.safetensors", "score.json", "used.json", "result.json"])
@pytest.mark.parametrize("steps", [LOGISTIC, BINNED, LINEAR], ids=["logistic", "binned", "linear"])
def test_goes_on_after_any_failed_write_and_pays_once(
    tmp_path: Path, name: str, steps: AdvisedPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    killed(folder, name, monkeypatch, steps)
    # The same noise whether the lost step is repeated here or in a copy: nothing is drawn anew.
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    result = done(folder, steps)
    # A training that had not begun before the copy was made has another key in each.
    if steps is not LINEAR or name != "features.json":
        with monkeypatch.context() as elsewhere:  # here the copy's ledger would be refused as an old one
            elsewhere.setenv("SORDINO_STATE", str(tmp_path / "another computer"))
            assert done(copy, steps) == result
    ledger = Ledger.open(folder / "ledger.json")
    assert [entry.what for entry in ledger.entries] == ["feature selection", "training", "final score"]
    assert all(entry.count == entry.committed for entry in ledger.entries)
    assert not ledger.adaptive
    assert not (folder / "private" / "steps.json").exists()
    assert done(folder, steps) == result


def test_another_table_schema_or_noise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(tmp_path, "score.json", monkeypatch)
    before = Ledger.open(tmp_path / "ledger.json").entries
    flipped = Split(TABLE.x, np.where(np.arange(100) == 7, 1 - TABLE.y, TABLE.y))
    wider = Schema((Column("a", bounds=(0.0, 2.0)), *SCHEMA.columns[1:]), SCHEMA.target)
    for change, words in (
        ({"table": rows(2)}, "other data"),
        ({"table": flipped}, "other data"),
        ({"public": rows(3)}, "other data"),
        ({"steps": replace(LOGISTIC, score_noise=2.9)}, "other settings"),
        ({"steps": replace(LOGISTIC, schema=wider)}, "other settings"),
        ({"steps": replace(LOGISTIC, training=replace(LOGISTIC.training, ridge=6.0))}, "other settings"),
    ):
        with pytest.raises(RunError, match=words):
            done(tmp_path, **change)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="records to train on"):
        done(tmp_path, table=rows(0, 90))
    assert Ledger.open(tmp_path / "ledger.json").entries == before
    done(tmp_path)


def test_features_of_public_rows_are_bound_to_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that no rehearsal draws select features, too: with others the model would be of other columns."""
    steps = replace(LOGISTIC, selection_noise=None, selects_freely=True)
    killed(tmp_path, "score.json", monkeypatch, steps)
    chosen = (tmp_path / "features.json").read_bytes()
    for row in range(len(PUBLIC)):
        changed = Split(PUBLIC.x, np.where(np.arange(len(PUBLIC)) == row, 1 - PUBLIC.y, PUBLIC.y))
        with pytest.raises(RunError, match="other data"):
            done(tmp_path, steps, public=changed)
    assert (tmp_path / "features.json").read_bytes() == chosen
    result = done(tmp_path, steps)
    done(tmp_path, steps, public=rows(3))  # finished: nothing is drawn, nor written
    assert (tmp_path / "features.json").read_bytes() == chosen
    assert result["features"] == ["a"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    done(folder)
    return folder


@pytest.mark.parametrize("name", ["features.json", "score.json", "used.json", "result.json"])
@pytest.mark.parametrize("content", ["", "{}", "[1]", "null", '{"accuracy": 1}', '{"mask": 3, "seal": 3}'])
def test_damaged_files_of_a_finished_folder(finished: Path, tmp_path: Path, name: str, content: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    (folder / name).write_text(content, encoding="utf-8")
    with pytest.raises(RunError, match=rf"{name} cannot be read"):
        done(folder)


def test_a_finished_folder_answers_for_its_own_ledger_and_noise_only(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="another plan"):
        done(finished, replace(LOGISTIC, score_noise=2.9))
    kept = (finished / "features.json").read_bytes()
    narrower = Schema(SCHEMA.columns[1:], SCHEMA.target)
    for change in ({"schema": narrower}, {"schema": narrower, "selection_noise": None}, {"model": MODEL["linear"]}):
        with pytest.raises(RunError, match="another model or schema"):
            done(finished, replace(LOGISTIC, **change))  # type: ignore[arg-type]
    assert (finished / "features.json").read_bytes() == kept
    other = Ledger(20.0, 1e-5, planned=LOGISTIC.announcements())
    with pytest.raises(RunError, match="another plan"):
        carry_out(LOGISTIC, TABLE, PublicRows(PUBLIC, 40), other, finished)
    assert other.entries == ()


def test_two_folders_do_not_share_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = []
    for seed in range(2):
        monkeypatch.setattr(key, "new_secret", partial(secret_from_seed, seed))
        folder = tmp_path / str(seed)
        done(folder, replace(LOGISTIC, selection_noise=None, kept=("a", "b", "c")))
        weights.append(Run(folder).read_tensors(Run(folder).model)[0]["weights"])
    assert weights[0].shape == (5,)
    assert not (weights[0] == weights[1]).any()


QUIET = LogisticPlan(2.0, 1.0, GaussianObjective(0.5))
PLANS = {
    "logistic": QUIET,
    "logistic-binned": QUIET,
    "linear": Plan(PoissonSampler(400, 400), 1.0, 0.5, 30),
    "network-small": Plan(PoissonSampler(400, 400), 1.0, 0.5, 60),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_model_of_a_workflow_tells_classes(name: str, tmp_path: Path) -> None:
    [model] = [each for each in MODELS if each.name == name]
    steps = AdvisedPlan(SCHEMA, model, None, ("a", "c"), PLANS[name], 400, 3.0)
    ledger = Ledger(path=tmp_path / "ledger.json")
    carry_out(steps, rows(0, 500), PublicRows(rows(1, 500), 100), ledger, tmp_path)
    new = rows(2, 500)
    file = tmp_path / "new.csv"
    new.x.iloc[:, ::-1].assign(more=1).to_csv(file, index=False)
    assert kind_of(tmp_path).name == "advice"
    told = np.array(loaded_advice(tmp_path).predict(file))
    assert set(told) == {"no", "yes"}
    assert (told == np.where(new.y == 1, "yes", "no")).mean() > 0.85
    new.x[["a", "c"]].to_csv(file, index=False)  # it does not use b
    assert loaded_advice(tmp_path).predict(file) == told.tolist()
    new.x[["a", "b"]].to_csv(file, index=False)
    with pytest.raises(DataError, match="'c'"):
        loaded_advice(tmp_path).predict(file)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(RunError, match="is not the model"):
        loaded_advice(tmp_path).predict(file)


def test_unfinished_and_damaged_folders(tmp_path: Path) -> None:
    (tmp_path / "advice.json").write_text("{}")
    assert kind_of(tmp_path).name == "advice"
    file = tmp_path / "new.csv"
    rows(0, 5).x.to_csv(file, index=False)
    with pytest.raises(RunError, match="is not finished"):
        loaded_advice(tmp_path).predict(file)
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(RunError, match=r"used\.json is missing"):
        loaded_advice(tmp_path).predict(file)
    used = tmp_path / "used.json"
    whole = {"model": "logistic", "schema": SCHEMA.to_json(), "mask": [True] * 4}
    for text in (json.dumps(whole), "[]", "null", ""):
        used.write_text(text)
        with pytest.raises(RunError, match=r"used\.json cannot be read"):
            loaded_advice(tmp_path).predict(file)
    numbers = {"columns": whole["schema"]["columns"], "target": {"t": {"bounds": [0, 1]}}}  # type: ignore[index]
    for change in (
        *({"model": "tree"}, {"schema": {}}, {"schema": numbers}),
        *({"mask": "x"}, {"mask": [0.5] * 4}, {"mask": [True] * 3}, {"mask": [False] * 4}),
    ):
        Run(tmp_path).write_sealed("used.json", whole | change)
        with pytest.raises(RunError, match=r"used\.json cannot be read"):
            loaded_advice(tmp_path).predict(file)
    Run(tmp_path).write_sealed("used.json", whole)
    with pytest.raises(RunError, match=r"model\.safetensors is missing"):
        loaded_advice(tmp_path).predict(file)
