"""The benchmark runs and checks what it times; its page says what its record says. No time is asserted here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORD, PAGE = ROOT / "results/benchmarks/clipped-gradients.json", ROOT / "docs/benchmarks.md"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The quick form on three rows, in the main environment, where the peers are not installed."""
    path = tmp_path_factory.mktemp("bench") / "record.json"
    rows = ("mnist-cnn", "linear", "bilstm")
    done = run("benchmarks.clipped_gradients", "--quick", "--rows", *rows, "--record", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, path


def test_the_quick_form_runs_what_is_installed(quick: tuple[str, Path]) -> None:
    printed, path = quick
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        assert row["title"] in printed
        cells = row["contenders"]
        assert cells["sordino"]["deviation"] <= 1e-4
        assert cells["torch.func vmap"]["deviation"] <= 1e-4
        assert sum(cell.get("baseline", False) for cell in cells.values()) == 1
        assert all("ratio" in cell or cell["reason"] for cell in cells.values())


def test_a_part_of_the_benchmark_is_not_recorded(quick: tuple[str, Path]) -> None:
    before = RECORD.read_bytes() if RECORD.exists() else None
    done = run("benchmarks.clipped_gradients", "--quick", "--rows", "linear", "--contenders", "torch.func vmap")
    assert done.returncode == 0
    assert "sordino" not in done.stdout
    assert (RECORD.read_bytes() if RECORD.exists() else None) == before


def test_a_page_names_nothing_of_the_machine(quick: tuple[str, Path]) -> None:
    _, path = quick
    page = run("benchmarks.report", str(path)).stdout
    assert "| MNIST CNN | 8 | ≤ 1.3 |" in page
    assert str(ROOT) not in page
    assert "opacus is not installed" in page


def test_memory_is_measured_in_a_process_of_its_own() -> None:
    done = run("benchmarks.clipped_gradients", "--memory-of", "mnist-cnn", "torch.func vmap", "64")
    # 64 examples' gradients of 26,010 parameters, and not the whole of torch
    preparation, steps = map(int, done.stdout.split())
    assert preparation < 10e6
    assert 64 * 26_010 * 4 <= steps < 200e6


@pytest.mark.skipif(not RECORD.exists(), reason="the benchmark has not been run yet")
def test_the_page_is_the_records() -> None:
    assert run("benchmarks.report", str(RECORD)).stdout == PAGE.read_text(encoding="utf-8")
