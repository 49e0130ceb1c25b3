"""The short form of `make torture`, and that it sees what it is there to see."""

import subprocess
import sys
from pathlib import Path

import pytest

from sordino.budget import Gaussian, Ledger

ROOT = Path(__file__).parents[2]
CHECK = "import sys; from pathlib import Path; from benchmarks import torture as t; p = Path(sys.argv[1]); "


def tortured(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


def test_a_training_and_a_ledger_hold() -> None:
    done = tortured("-m", "benchmarks.torture", "--quick", "--seed", "3")
    assert done.returncode == 0, done.stderr
    assert "fit, 6 kills and 2 full disks: held" in done.stdout
    assert "12 racing spends: held" in done.stdout


@pytest.mark.parametrize(
    ("log", "fault"),
    [
        ("step k 0\ta\nstep k 0\tb\n", "same noise on 2 inputs"),
        ("step k 0\ta\nstep k 1\ta\n", "2 draws, 1 charged"),
        ("step k 0\ta\nstep k 0\ta\n", ""),
    ],
)
def test_its_checks_see_reused_noise_and_draws_that_were_not_charged(tmp_path: Path, log: str, fault: str) -> None:
    Ledger(path=tmp_path / "ledger.json").spend(Gaussian(1.0), "one step")
    (tmp_path / "log").write_text(log)
    done = tortured("-c", CHECK + "t.check_log(p / 'log', p, steps=True)", str(tmp_path))
    assert (done.returncode == 0) is (not fault)
    assert fault in done.stderr
