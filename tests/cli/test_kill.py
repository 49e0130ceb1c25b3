"""kill -9 at random points, resume each time: the same weights bit for bit and the same ledger but for its times."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sordino.budget import Ledger

KILLS = 20
ARGUMENTS = ("train", "mnist-5k", "--epsilon", 3, "--delta", 1e-5, "--seed", 11)


def start_process(out: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", "from sordino.cli.main import run; run()", *map(str, ARGUMENTS), "--out", str(out)]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=out.parent, env=os.environ | {"OMP_NUM_THREADS": "1"}, **quiet)


def without_times(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text())
    for entry in document["entries"]:
        del entry["when"]
    del document["chain"]
    return document


def wait_for_first_draw(run: Path, process: "subprocess.Popen[bytes]") -> None:
    """Until the process has set up: a run killed before that has nothing to lose."""
    deadline = time.monotonic() + 60
    while not (run / "private" / "lock").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_run_killed_at_twenty_points_ends_like_one_that_was_not(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    started = time.monotonic()
    process = start_process(whole)
    wait_for_first_draw(whole, process)
    ready = time.monotonic() - started
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 0, errors
    training = time.monotonic() - started - ready

    chance = random.Random(20)
    kills = attempt = progressed = 0
    while kills < KILLS:
        attempt += 1
        broken = tmp_path / f"broken-{attempt}"
        while True:
            counts_before = _count(broken)
            process = start_process(broken)
            # Mostly amid the training, where each kill costs little; now and then at any moment from the start.
            limit = chance.uniform(0, training / 4) + (chance.uniform(0.5, 1) * ready if kills % 5 else 0)
            try:
                errors = process.communicate(timeout=limit)[1]
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
                kills += 1
                progressed += _count(broken) > counts_before
                if kills < KILLS:
                    continue
                process = start_process(broken)
                errors = process.communicate(timeout=120)[1]
            # Killed after its last step but before it left, a run is finished.
            assert process.returncode == 0 or b"is finished" in errors, errors
            break
        assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
        assert without_times(broken / "ledger.json") == without_times(whole / "ledger.json")
        assert not (broken / "private" / "key.json").exists()
    assert progressed >= 3, "the kills must fall amid training to mean anything"


def _count(run: Path) -> int:
    """Steps that the ledger holds; whatever moment the process died in, the file can be read."""
    path = run / "ledger.json"
    entries = Ledger.open(path).entries if path.exists() else ()
    return entries[0].count if entries else 0
