"""`sordino.load`: the model of any finished folder, with what it cost."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import sordino
from sordino.cli.main import run as command
from sordino.data import PoissonSampler, load
from sordino.runs import Run, RunError
from sordino.runs.run import RunBusy
from sordino.training import LinearPlan, LogisticPlan

OLD = Path(__file__).parents[1] / "fixtures/version-0.1"
CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")
X = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
PLAN = sordino.Plan(PoissonSampler(60, 20), l2_clip=1.0, noise_multiplier=2.0, steps=6)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 2))


def fitted(folder: Path, plan: sordino.Plan = PLAN) -> nn.Module:
    ledger = sordino.Ledger(50.0, 1e-3, path=folder / "ledger.json")
    optimiser = sordino.SGD(0.5)
    found = sordino.fit(plan, network, (X, Y), optimiser=optimiser, loss=CROSS_ENTROPY, ledger=ledger, run=folder)
    module: nn.Module = found.model
    return module


def test_a_fitted_module_predicts(tmp_path: Path) -> None:
    trained = fitted(tmp_path).eval()
    loaded = sordino.load(tmp_path, model=network().train())
    assert loaded.predict(X) == trained(X).argmax(1).tolist()
    assert loaded.predict_proba(X) == pytest.approx(trained(X).softmax(1).detach().numpy(), abs=1e-6)
    for rows in (X.double().numpy(), pd.DataFrame(X.numpy())):  # as NumPy and pandas have them
        assert loaded.predict(rows) == trained(X).argmax(1).tolist()
    assert loaded.module.training  # as it was given
    assert loaded.statement["epsilon"] == sordino.Ledger.open(tmp_path / "ledger.json").epsilon()


def test_a_private_loop_predicts(tmp_path: Path) -> None:
    model = network()
    private = sordino.make_private(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        CROSS_ENTROPY,
        (X, Y),
        expected_batch_size=20,
        epochs=1,
        l2_clip=1.0,
        target_epsilon=20.0,
        target_delta=1e-3,
        run=tmp_path,
    )
    with pytest.raises(RunError, match="is not finished: run the program that called it again"):
        sordino.load(tmp_path, network())
    for x, y in private.batches():
        private.step(x, y)
    assert sordino.load(tmp_path, network()).predict(X.numpy()) == model.eval()(X).argmax(1).tolist()


def test_regressions_load_into_a_linear_layer(tmp_path: Path) -> None:
    rows = (X / X.norm(dim=1, keepdim=True)).double().numpy()
    logistic = LogisticPlan.calibrated(n=60, width=6, target_epsilon=5.0, target_delta=1e-3, data_norm=2.0, classes=3)
    linear = LinearPlan.calibrated(n=60, data_norm=2.0, target_epsilon=5.0, target_delta=1e-3, target_range=(-1.0, 1.0))
    for name, plan, y, outputs in (("a", logistic, np.arange(60) % 3, 3), ("b", linear, rows.sum(1), 1)):
        ledger = sordino.Ledger(5.0, 1e-3, path=tmp_path / name / "ledger.json")
        given = nn.Linear(5, outputs).double()
        sordino.fit(plan, given, (rows, y), ledger=ledger, run=tmp_path / name)
        loaded = sordino.load(tmp_path / name, nn.Linear(5, outputs).double())
        assert torch.equal(loaded.module.weight, given.weight)
        assert loaded.outputs(rows) == pytest.approx(given(torch.from_numpy(rows)).detach().numpy(), rel=1e-5)
        with pytest.raises(RunError, match="another model"):
            sordino.load(tmp_path / name, nn.Linear(4, outputs))
    with pytest.raises(RunError, match="no output for each class: use its `outputs`"):
        loaded.predict(rows)


def test_tables_predict_from_files_and_frames(tmp_path: Path) -> None:
    for name in ("advise", "tune"):
        loaded = sordino.load(OLD / name)
        from_file = loaded.predict(OLD / "table.csv")
        assert from_file == sordino.predict(OLD / name, OLD / "table.csv")
        assert from_file == loaded.predict(pd.read_csv(OLD / "table.csv"))
        assert loaded.classes == ("no", "yes")
        assert loaded.columns is not None
        chances = loaded.predict_proba(OLD / "table.csv")
        assert chances.sum(1) == pytest.approx(np.ones(120))
        assert [loaded.classes[place] for place in chances.argmax(1)] == from_file


def test_old_folders_load() -> None:
    x = load("digits").test.x
    trained = sordino.load(OLD / "train")
    accuracy = np.mean(np.array(trained.predict(x)).astype(int) == load("digits").test.y)
    assert accuracy == pytest.approx(json.loads((OLD / "train/metrics.json").read_text())["test_accuracy"])
    own = sordino.load(OLD / "fit", nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)))
    assert set(own.predict(X)) == {0, 1}


def test_what_cannot_be_loaded_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fitted(tmp_path)
    with pytest.raises(RunError, match="weights of another model than this Linear"):
        sordino.load(tmp_path, nn.Linear(5, 2))
    with pytest.raises(RunError, match=r"into an nn\.Module, not function: build the model first"):
        sordino.load(tmp_path, network)
    with pytest.raises(RunError, match="has its own model"):
        sordino.load(OLD / "train", nn.Linear(5, 2))
    with pytest.raises(RunError, match="holds no model"):
        sordino.load(OLD / "select")
    with pytest.raises(SystemExit):
        command(["predict", str(tmp_path), str(OLD / "table.csv")])
    assert "predict in Python with sordino.load(folder, model)" in " ".join(capsys.readouterr().err.split())


def test_a_plan_that_differs_by_rounding_is_the_same_run(tmp_path: Path) -> None:
    before = fitted(tmp_path)
    other = replace(PLAN, noise_multiplier=float(np.nextafter(PLAN.noise_multiplier, 3)))
    after = fitted(tmp_path, other)  # as another processor might calibrate it
    assert all(torch.equal(*pair) for pair in zip(before.parameters(), after.parameters(), strict=True))
    [entry] = sordino.Ledger.open(tmp_path / "ledger.json").entries
    assert entry.event.noise_multiplier == PLAN.noise_multiplier
    with pytest.raises(RunError, match="another plan"):
        fitted(tmp_path, replace(PLAN, noise_multiplier=2.001))


def test_a_run_folder_needs_a_ledger_that_survives_a_kill(tmp_path: Path) -> None:
    ledger, model = sordino.Ledger(50.0, 1e-3), network()
    with pytest.raises(ValueError, match=r"path='.*/run/ledger\.json'"):
        sordino.fit(
            PLAN, model, (X, Y), optimiser=sordino.SGD(0.5), loss=CROSS_ENTROPY, ledger=ledger, run=tmp_path / "run"
        )
    with pytest.raises(ValueError, match=r"path='.*/run/ledger\.json'"):
        sordino.make_private(
            model,
            torch.optim.SGD(model.parameters(), 0.1),
            CROSS_ENTROPY,
            (X, Y),
            expected_batch_size=20,
            epochs=1,
            l2_clip=1.0,
            ledger=ledger,
            run=tmp_path / "run",
        )
    assert not (tmp_path / "run/run.json").exists()


def test_a_folder_in_which_another_process_trains_keeps_its_description(tmp_path: Path) -> None:
    with Run.at(tmp_path).alone(), pytest.raises(RunBusy):
        fitted(tmp_path, replace(PLAN, noise_multiplier=3.0))
    assert not (tmp_path / "run.json").exists()
