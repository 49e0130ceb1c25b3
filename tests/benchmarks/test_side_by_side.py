"""The benchmark of trainings side by side runs, and its record is of what it prints. No time is asserted here."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_quick_form_compares_all_networks_and_records_nothing() -> None:
    record = ROOT / "results/benchmarks/side-by-side.json"
    before = record.read_bytes()
    command = [sys.executable, "-m", "benchmarks.side_by_side", "--quick"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    for network in ("64-10", "64-128-10", "64-512-64-10"):
        assert f"{network}, 2 trainings: engine " in done.stdout
    assert done.stdout.count("÷ side by side") == 6
    assert record.read_bytes() == before
