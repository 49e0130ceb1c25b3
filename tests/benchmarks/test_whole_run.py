"""The benchmark of whole trainings runs in its quick form. No time is asserted here."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_quick_form_times_ours_beside_the_plain_loop_and_records_nothing() -> None:
    page = (ROOT / "docs/benchmarks.md").read_bytes()
    ours = ["sordino fit", "sordino make_private"]
    command = [sys.executable, "-m", "benchmarks.whole_run", "--quick", "--only", *ours]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert (row["steps"], row["base"]) == (30, "plain loop")
    assert set(row["contenders"]) == {"plain loop", *ours}
    for cell in row["contenders"].values():
        assert min(cell["ratio_of_steps"], cell["ratio_of_whole"], *cell["seconds"].values()) > 0
    assert (ROOT / "docs/benchmarks.md").read_bytes() == page
