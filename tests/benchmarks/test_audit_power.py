"""The command that measures the power of audits repeats the tests of faults, and counts those that fail."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_fault_is_planted_and_caught_again_and_again() -> None:
    command = [sys.executable, "-m", "benchmarks.audit_power", "--quick", "--only", "realised batch"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    # Under fresh keys an audit misses a fault now and then: that both of two do is a matter of a thousandth.
    assert re.search(r"\| division by the realised batch size \| [12] \|", done.stdout), done.stdout
    assert re.search(r"\| means that move by the realised batch size \| [12] \|", done.stdout), done.stdout
    assert "half the noise" not in done.stdout
