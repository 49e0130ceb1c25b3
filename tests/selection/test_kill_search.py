"""kill -9 around every few writes to the disk, and resume: the outcome and ledger of a search that was not killed."""

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
from sordino.budget import Laplace, Ledger
from sordino.data.samplers import PoissonSampler
from sordino.selection import *
from sordino.runs import Run
from sordino.training import Plan

METHOD, space, FOLDER = eval(sys.argv[1]), eval(sys.argv[2]), Path(sys.argv[3])
x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
y = (x[:, 0] > 0).astype(np.int64)
plan = Plan(PoissonSampler(40, 10), 1.0, 4.0, 4)
search_plan = SearchPlan(METHOD, space, plan, Laplace(2.0))


def work(folder):
    run = Run.at(folder)
    ledger = Ledger(50.0, 1e-4, path=run.ledger)
    search(run, search_plan, TrialData(x[:40], y[:40], x[40:], y[40:], 2), ledger, seed=5)


def killed_at(write, folder):
    "Search in a child that kills itself before or after its so-many-th write; whether it was."
    child = os.fork()
    if child == 0:
        replace, writes = os.replace, itertools.count(1)
        def counted(source, target):
            number = next(writes)
            if number == write and write % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)
            if number == write:
                os.kill(os.getpid(), signal.SIGKILL)
        os.replace = counted
        work(folder)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status == signal.SIGKILL


work(FOLDER / "whole")  # here: what it imports, children have already
kills = 0
for write in itertools.cycle((1, 2, 5, 4, 7, 6, 9, 8)):
    if not killed_at(write, FOLDER / "broken"):
        break
    kills += 1
print(kills)
"""
SPACE = "DenseSpace(widths=((4, 6), (3,)), freezing=True, learning_rates=(0.5,))"
SIDE_BY_SIDE = "Grid(tuple(Dense((DenseLayer(4),), *more) for more in ((0.1, 0.0), (0.5, 0.0), (1e38, 0.0, 100.0))))"
SEARCHES = (
    ("GeneticSearch(2, 2)", SPACE),
    ("RandomSearch(3.0)", SPACE),
    ("GenerationalSearch((2.0, 2.0))", SPACE),
    ("GeneticSearch(1, 3)", SIDE_BY_SIDE),  # of which one diverges
)


@pytest.mark.parametrize(("method", "space"), SEARCHES)
def test_a_search_killed_again_and_again_ends_like_one_that_was_not(
    tmp_path: Path, method: str, space: str, without_times: Callable[[Path], dict[str, Any]]
) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, method, space, str(tmp_path)],
        env=environment,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert int(done.stdout) >= 6
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for name in ("model.safetensors", "search.json"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()
    assert without_times(broken / "ledger.json") == without_times(whole / "ledger.json")
    left = {path.name for path in (broken / "private").iterdir() if not path.name.startswith(".ledger.mark.json.")}
    assert left == {"lock", "ledger.mark.json"}
