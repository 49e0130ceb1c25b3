"""Kills at random points, resumed each time: the same weights bit for bit and the same ledger but for its times."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_run_killed_at_twenty_points_ends_like_one_that_was_not() -> None:
    command = [sys.executable, "-m", "benchmarks.torture", "--only", "train", "--kills", "20", "--disks", "2"]
    done = subprocess.run(
        [*command, "--seed", "20"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "train, 20 kills and 2 full disks: held" in done.stdout
