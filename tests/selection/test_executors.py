"""Wherever trials run, a seeded search finds the same, and the ledger is charged here."""

import multiprocessing
import os
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from sordino.budget import Ledger
from sordino.runs import Run, RunError
from sordino.selection import (
    Dense,
    DenseLayer,
    Executor,
    GeneticSearch,
    Grid,
    InProcess,
    OnRay,
    Processes,
    RandomSearch,
    executors,
    search,
)
from sordino.training.dense import side_by_side


def found_by(executor: Executor | None, folder: Path, asked, data) -> tuple[bytes, bytes, list]:
    run = Run.at(folder)
    ledger = Ledger(50.0, 1e-4, path=run.ledger)
    search(run, asked, data, ledger, executor=executor, seed=4)
    entries = [replace(entry, when="now") for entry in ledger.entries]
    return run.model.read_bytes(), (run.folder / "search.json").read_bytes(), entries


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that all round alike; `Processes` gives each worker its share."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_processes_find_what_one_process_finds(tmp_path, data, search_plan) -> None:
    asked = search_plan(GeneticSearch(2, 3))
    here = found_by(None, tmp_path / "here", asked, data)
    assert found_by(Processes(2), tmp_path / "there", asked, data) == here


@pytest.mark.usefixtures("one_thread")
def test_trials_side_by_side_draw_what_they_draw_alone(tmp_path, data, search_plan, monkeypatch) -> None:
    sizes = ((0.3, 1.0), (0.5, 2.0), (1e38, 100.0), (0.7, 1.0))  # of which one diverges
    grid = Grid(tuple(Dense((DenseLayer(4),), rate, 0.0, l2_clip) for rate, l2_clip in sizes))
    asked = search_plan(GeneticSearch(1, 4), space=grid)
    together: list[int] = []
    monkeypatch.setattr(executors, "side_by_side", lambda made: together.append(len(made)) or side_by_side(made))
    shown: dict[str, list] = {}
    for name, executor in (("together", InProcess()), ("in pairs", InProcess(2)), ("alone", Processes(1))):
        run = Run.at(tmp_path / name)
        ledger = Ledger(50.0, 1e-4, path=run.ledger)
        shown[name] = []
        search(run, asked, data, ledger, executor=executor, seed=4, on_result=shown[name].append)
        assert {entry.count for entry in ledger.entries} == {4}
    assert together == [4, 2, 2]
    assert [result.candidate.learning_rate for result in shown["alone"] if result.diverged] == [1e38]
    assert shown["together"] == shown["in pairs"] == shown["alone"]
    weights = [load_file(tmp_path / name / "model.safetensors") for name in shown]
    for name, value in weights[0].items():
        np.testing.assert_allclose(value, weights[1][name], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(value, weights[2][name], rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("one_thread")
def test_ray_finds_what_one_process_finds(tmp_path, data, search_plan, monkeypatch) -> None:
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # before it is imported
    ray = pytest.importorskip("ray")
    asked = search_plan(GeneticSearch(1, 2))
    here = found_by(None, tmp_path / "here", asked, data)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with OnRay("local")._started(ray):
        folder = Path(ray._private.worker._global_node.get_session_dir_path()).parents[1]
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert ray.util.get_node_ip_address() == "127.0.0.1"
        assert found_by(OnRay("local"), tmp_path / "there", asked, data) == here
        assert ray.is_initialized(), "a Ray that was there before is left as it was"
    assert not ray.is_initialized()
    assert not folder.exists()


def kill_first_worker() -> None:
    while not multiprocessing.active_children():
        time.sleep(0.01)
    multiprocessing.active_children()[0].kill()


def test_a_worker_that_dies_is_told_of_and_the_search_goes_on(tmp_path, data, search_plan) -> None:
    asked, run = search_plan(RandomSearch(2.0)), Run.at(tmp_path)
    ledger = Ledger(50.0, 1e-4, path=run.ledger)
    threading.Thread(target=kill_first_worker).start()
    with pytest.raises(RunError, match="a worker died"):
        search(run, asked, data, ledger, executor=Processes(1))
    paid = ledger.entries
    assert {entry.count for entry in paid} == {1}
    search(run, asked, data, ledger)
    assert ledger.entries == paid


STOPPED = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from sordino.data.samplers import PoissonSampler
from sordino.selection import Dense, DenseLayer, Processes, TrialData
from sordino.selection.trials import TrialTask
from sordino.training import Plan

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background leaves it ignored
how, folder = sys.argv[1], Path(sys.argv[2])
x, y = np.zeros((4, 2), np.float32), np.zeros(4, np.int64)

def task(number, steps):
    plan, candidate = Plan(PoissonSampler(4, 2), 1.0, 100.0, steps), Dense((DenseLayer(3),), 0.1)
    return TrialTask(number, folder / str(number), candidate, plan, 0.0, "zero-out", None, bytes(16))

def tasks():
    yield task(0, 100_000)
    if how == "KILL":  # while the worker still imports
        os.kill(os.getpid(), signal.SIGKILL)
    yield task(1, 1)
    while not ((folder / "0" / "checkpoint.safetensors").exists() and (folder / "1" / "trial.json").exists()):
        time.sleep(0.01)
    os.killpg(0, signal.SIGINT)  # as Ctrl-C does, while one worker trains and another waits

with Processes(2).at_work(TrialData(x, y, x, y, 2)) as work:
    try:
        list(work(tasks()))
    except KeyboardInterrupt:
        print("interrupted")
        raise SystemExit
"""


@pytest.mark.parametrize(("how", "said"), [("KILL", ""), ("INT", "interrupted\n")])
def test_no_worker_outlives_its_search(tmp_path: Path, how: str, said: str) -> None:
    # Returns once nobody holds the output any more: no worker either.
    done = subprocess.run(
        [sys.executable, "-c", STOPPED, how, tmp_path / "trials"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        start_new_session=True,
    )
    assert done.stdout == said
    assert "Traceback" not in done.stderr
    assert how == "INT" or not (tmp_path / "trials").exists()


@pytest.mark.parametrize("workers", [0, -1, 1.5])
def test_a_number_of_workers_that_is_none_is_refused(workers) -> None:
    with pytest.raises(ValueError, match="workers"):
        Processes(workers)
