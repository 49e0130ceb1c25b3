"""kill -9 around every write to the disk, and go on: the result and ledger of a workflow that was not killed."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import itertools, os, signal, sys
from pathlib import Path
import numpy as np
import pandas as pd
from sordino.budget import Ledger
from sordino.data import Column, Split
from sordino.data.samplers import PoissonSampler
from sordino.data.schema import Schema
from sordino.data import set_aside
from sordino.mechanisms.streams import secret_from_seed
from sordino.selection.advised_training import AdvisedPlan, carry_out
from sordino.selection.crossover_measurement import CrossoverPlan, measure_privately
from sordino.selection.proxy_rows import PublicRows
from sordino.selection.table_models import models_named
from sordino.runs import key
from sordino.training import Plan
from sordino.training.convex import GaussianObjective, LogisticPlan

FOLDER = Path(sys.argv[1])
schema = Schema(
    (Column("a", bounds=(0.0, 1.0)), Column("b", bounds=(0.0, 1.0)), Column("c", categories=("x", "y"))),
    Column("t", categories=("no", "yes")),
)
rng = np.random.default_rng(0)
x = pd.DataFrame({"a": rng.uniform(size=60), "b": rng.uniform(size=60), "c": rng.choice(["x", "y"], 60)})
table = Split(x, (x["a"] > 0.5).to_numpy(np.int64))
logistic = LogisticPlan(2.0, 5.0, GaussianObjective(4.0))
simple, complex = models_named("logistic-numeric,logistic")
linear = models_named("logistic,linear")[1]
measurement = CrossoverPlan(
    (simple, complex), {model.name: (logistic,) for model in (simple, complex)}, (0.5,), 48, 1, 3.0
)
rates = {model.name: (1.0,) for model in (simple, complex)}


def advised(model, training):
    steps = AdvisedPlan(schema, model, 5.0, (), training, 48, 3.0)
    return steps, lambda ledger, out: carry_out(steps, table, PublicRows(table, 40), ledger, out)


WORKFLOWS = {
    "logistic": advised(complex, logistic),
    "sgd": advised(linear, Plan(PoissonSampler(48, 48), 1.0, 9.0, 2)),
    "crossover": (
        measurement,
        lambda ledger, out: measure_privately(measurement, schema, set_aside(table), rates, ledger, out),
    ),
}
replace = os.replace


def go(out):
    plan, work = WORKFLOWS[out.parent.name]
    # The same keys in both folders, but another one if a key that was written is not found again.
    def secret():
        if (out / "private" / "steps.json").exists():  # a training within the workflow
            return secret_from_seed(2)
        return os.urandom(16) if (out / ".key").exists() else secret_from_seed(1)

    key.new_secret = secret
    out.mkdir(parents=True, exist_ok=True)
    work(Ledger(50.0, 1e-4, path=out / "ledger.json", planned=plan.announcements()), out)


def killed(at_write, before, out):
    "Work in a child that kills itself before or after its so-many-th write; whether it was."
    child = os.fork()
    if child == 0:
        writes = iter(range(1, 10**6))
        def counted(source, target):
            number = next(writes)
            if number == at_write and before:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)
            if Path(target) == out / "private" / "steps.json":
                (out / ".key").touch()
            if number == at_write:
                os.kill(os.getpid(), signal.SIGKILL)
        os.replace = counted
        go(out)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status == signal.SIGKILL


for name in WORKFLOWS:
    go(FOLDER / name / "whole")  # here: what it imports and computes of public things, children have already
    # Every write is killed before it takes its name and right after; a charge is followed by its mark in the registry,
    # and a training's first is its charge once more.
    points = [(1, True), (1, False), (2, True), (2, False)] + [(3, True), (3, False)] * (name == "sgd")
    kills = 0
    for point in itertools.cycle(points):
        if not killed(*point, FOLDER / name / "broken"):
            break
        kills += 1
        assert kills < 200
    (FOLDER / name / "kills").write_text(str(kills))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return folder


@pytest.mark.parametrize(("workflow", "entries"), [("logistic", 3), ("sgd", 3), ("crossover", 4)])
def test_a_workflow_killed_at_every_write_ends_like_one_that_was_not(
    folders: Path, workflow: str, entries: int, without_times: Callable[[Path], dict[str, Any]]
) -> None:
    here = folders / workflow
    assert int((here / "kills").read_text()) >= 4 * entries  # each step is at least reserved, charged, marked and kept
    whole, broken = here / "whole", here / "broken"
    ledger = without_times(whole / "ledger.json")
    assert len(ledger["entries"]) == entries
    assert without_times(broken / "ledger.json") == ledger
    kept = [path.relative_to(whole) for path in whole.rglob("*") if path.name.endswith((".json", ".safetensors"))]
    kept = [path for path in kept if path.name != "ledger.mark.json"]
    assert len(kept) == (1 + 2 * 2 if workflow == "crossover" else 7)
    for name in kept:
        assert name == Path("ledger.json") or (broken / name).read_bytes() == (whole / name).read_bytes()
    left = {path.name for path in (broken / "private").iterdir() if not path.name.startswith(".ledger.mark.json.")}
    assert left <= {"lock", "steps.lock", "ledger.mark.json"}
