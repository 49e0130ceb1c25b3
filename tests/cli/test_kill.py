"""kill -9 at random points, resume each time: the same weights bit for bit and the same ledger but for its times."""

import multiprocessing
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sordino.budget import Ledger

KILLS = 20
PROGRAM = """
import os, sys
os.dup2(os.open(os.devnull, os.O_RDWR), 1)
os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
sys.argv = ["sordino", "train", "digits", "--epsilon", "3", "--delta", "1e-4", "--seed", "11", "--out", out]
from sordino.cli.main import run
run()
"""
"""Forked from a process that has imported everything once: twenty starts would else take longer than all else here."""


@dataclass
class Started:
    """A run in a process of its own."""

    out: Path

    def __post_init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["sordino.cli.main", "sordino.training.train", "torch._dynamo"])
        self._errors = self.out.with_suffix(".errors")
        names = {"out": str(self.out), "errors": str(self._errors)}
        self._process = context.Process(target=exec, args=(PROGRAM, names))
        self._process.start()

    @property
    def ended(self) -> bool:
        return self._process.exitcode is not None

    def ends_within(self, seconds: float) -> bool:
        """False if it had to be killed."""
        self._process.join(seconds)
        if not self.ended:
            self._process.kill()
            self._process.join()
            return False
        errors = self._errors.read_text()
        # Killed after its last step but before it could say so, a run is finished.
        assert self._process.exitcode == 0 or "is finished" in errors, errors
        return True


def wait_until_it_trains(started: Started) -> None:
    before = _count(started.out)
    deadline = time.monotonic() + 60
    while _count(started.out) == before and not started.ended and time.monotonic() < deadline:
        time.sleep(0.005)


def test_a_run_killed_at_twenty_points_ends_like_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_times: Callable[[Path], dict[str, Any]]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert Started(tmp_path / "first").ends_within(120)  # what only the first start takes
    began, whole = time.monotonic(), tmp_path / "whole"
    process = Started(whole)
    wait_until_it_trains(process)
    ready = time.monotonic() - began
    assert process.ends_within(120)
    training = time.monotonic() - began - ready

    chance, kills, attempt = random.Random(20), 0, 0
    while kills < KILLS:
        attempt += 1
        broken = tmp_path / f"broken-{attempt}"
        while kills < KILLS:
            # Mostly amid the training; now and then at any moment from the very start.
            amid = kills % 5 != 0
            process = Started(broken)
            if amid:
                wait_until_it_trains(process)
            if process.ends_within(chance.uniform(0, training / 6 if amid else ready)):
                break
            kills += 1
        else:
            assert Started(broken).ends_within(120)
        assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
        assert without_times(broken / "ledger.json") == without_times(whole / "ledger.json")
        assert not (broken / "private" / "key.json").exists()


def _count(run: Path) -> int:
    """Steps that the ledger holds; whatever moment the process died in, the file can be read."""
    path = run / "ledger.json"
    entries = Ledger.open(path).entries if path.exists() else ()
    return entries[0].count if entries else 0
