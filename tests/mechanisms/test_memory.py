"""How much memory is left, by the system, its control groups and ulimit; and refusals that come before a charge."""

import resource
from pathlib import Path

import numpy as np
import pytest

from sordino.budget import Ledger
from sordino.mechanisms import memory
from sordino.mechanisms.contingency import PairTables
from sordino.mechanisms.moments import SecondMoments

GIB = 2**30


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8 GiB free, no control groups and no ulimit."""
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    groups.mkdir()
    (proc / "meminfo").write_text(f"MemTotal: {16 * 2**20} kB\nMemAvailable: {8 * 2**20} kB\n")
    (proc / "self/status").write_text(f"Name: python\nVmSize: {2**20} kB\n")
    monkeypatch.setattr(memory, "_PROC", proc)
    monkeypatch.setattr(memory, "_CGROUP", groups)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return tmp_path


def group(folder: Path, **content: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in content.items():
        (folder / f"memory.{name}").write_text(f"{text}\n")


def test_what_the_system_says(system: Path) -> None:
    assert memory.available() == 8 * GIB


def test_the_tightest_of_all_groups_above_the_process(system: Path) -> None:
    (system / "proc/self/cgroup").write_text("0::/job/step\n")
    group(system / "cgroup/job", max=4 * GIB, current=3 * GIB, stat=f"anon 5\ninactive_file {GIB}")
    group(system / "cgroup/job/step", max="max", current=GIB)
    assert memory.available() == 2 * GIB
    group(system / "cgroup/job/step", max=2 * GIB, current=GIB)
    assert memory.available() == GIB


def test_groups_of_the_first_version(system: Path) -> None:
    (system / "proc/self/cgroup").write_text("4:memory:/docker/0f3e\n1:cpu:/\n0::/\n")
    # In a container the path is the host's, and what counts lies at the root.
    group(system / "cgroup/memory", limit_in_bytes=3 * GIB, usage_in_bytes=GIB, stat="total_inactive_file 0")
    assert memory.available() == 2 * GIB


def test_ulimit(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (3 * GIB, resource.RLIM_INFINITY))
    assert memory.available() == 2 * GIB


def test_another_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_PROC", tmp_path)
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory.available() == float("inf")


def test_here() -> None:
    assert 0 < memory.available() < 2**50


def test_a_refusal_is_one_line_that_says_what_to_do(system: Path) -> None:
    memory.require(8 * GIB, "this", "use less")
    with pytest.raises(memory.NotEnoughMemory) as refused:
        memory.require(298 * GIB, "this", "use less")
    assert str(refused.value) == "this needs about 298 GiB of memory and 8 GiB are free: use less"


def test_mechanisms_refuse_before_they_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: 1e6)
    ledger = Ledger()
    with pytest.raises(memory.NotEnoughMemory, match="most values"):
        PairTables((2000, 2000), 1.0).release(np.zeros((5, 2), int), ledger)
    with pytest.raises(memory.NotEnoughMemory, match="fewer numbers"):
        SecondMoments(1.0, 1.0).release(np.zeros((5, 400)), ledger)
    assert not ledger.entries
