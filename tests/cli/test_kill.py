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
ARGUMENTS = ("train", "digits", "--epsilon", 3, "--delta", 1e-4, "--seed", 11)


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


def wait_until_it_trains(run: Path, process: "subprocess.Popen[bytes]") -> None:
    before = _count(run)
    deadline = time.monotonic() + 60
    while _count(run) == before and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


def killed(run: Path, delay: float, once_it_trains: bool) -> bool:
    """Start the run and kill it after a delay; False if it came to its end before."""
    process = start_process(run)
    if once_it_trains:
        wait_until_it_trains(run, process)
    try:
        errors = process.communicate(timeout=delay)[1]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
        return True
    # Killed after its last step but before it could say so, a run is finished.
    assert process.returncode == 0 or b"is finished" in errors, errors
    return False


def test_a_run_killed_at_twenty_points_ends_like_one_that_was_not(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    started = time.monotonic()
    process = start_process(whole)
    wait_until_it_trains(whole, process)
    ready = time.monotonic() - started
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 0, errors
    training = time.monotonic() - started - ready

    chance, kills, attempt = random.Random(20), 0, 0
    while kills < KILLS:
        attempt += 1
        broken = tmp_path / f"broken-{attempt}"
        while kills < KILLS:
            # Mostly amid the training; now and then at any moment from the very start.
            amid = kills % 5 != 0
            if not killed(broken, chance.uniform(0, training / 6 if amid else ready), once_it_trains=amid):
                break
            kills += 1
        else:
            assert not killed(broken, delay=120, once_it_trains=False)
        assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
        assert without_times(broken / "ledger.json") == without_times(whole / "ledger.json")
        assert not (broken / "private" / "key.json").exists()


def _count(run: Path) -> int:
    """Steps that the ledger holds; whatever moment the process died in, the file can be read."""
    path = run / "ledger.json"
    entries = Ledger.open(path).entries if path.exists() else ()
    return entries[0].count if entries else 0
