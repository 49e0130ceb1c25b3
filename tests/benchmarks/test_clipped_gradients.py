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
    """The quick form on four rows, in the main environment, where the peers are not installed."""
    path = tmp_path_factory.mktemp("bench") / "record.json"
    rows = ("mnist-cnn", "linear", "bilstm", "small-fcn")
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
        dense = row["title"] in ("linear 3969×10", "FCN 64-128-10")
        closed = cells["sordino, closed form"]
        assert closed["deviation"] <= 1e-4 if dense else closed["reason"] == "not a dense network"
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


def test_rows_measured_anew_and_for_the_first_time_join_the_record() -> None:
    from benchmarks.clipped_gradients import updated

    facts = dict.fromkeys(("processor", "threads", "python", "versions", "tolerance"), 0)
    before = {**facts, "rows": [{"title": "MNIST CNN", "old": True}, {"title": "LeNet-5", "old": True}]}
    now = {**facts, "rows": [{"title": "FCN 64-128-10"}, {"title": "LeNet-5"}]}
    rows = updated(before, now)["rows"]
    assert rows == [{"title": "MNIST CNN", "old": True}, {"title": "LeNet-5"}, {"title": "FCN 64-128-10"}]
    with pytest.raises(SystemExit):
        updated(before | {"threads": 1}, now)
