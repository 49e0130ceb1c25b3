"""Kills at random points, resumed each time: the same weights bit for bit and the same ledger but for its times."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("victim", "kills"), [("train", 20), ("images", 10)])
def test_a_run_killed_at_many_points_ends_like_one_that_was_not(victim: str, kills: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.torture", "--only", victim, "--kills", f"{kills}", "--disks", "2"]
    done = subprocess.run(
        [*command, "--seed", "20"],
        cwd=ROOT,
        env=os.environ | {"SORDINO_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert f"{victim}, {kills} kills and 2 full disks: held" in done.stdout
