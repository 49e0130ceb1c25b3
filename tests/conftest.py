"""What tests of all rooms share."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Some virtual machines announce Intel's AMX and trap on its first instruction: bfloat16 in torch then ends the process.
# Set before torch is used, this leaves that one instruction set out; single precision does not know it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# Examples are random on a developer's machine, to find more, and fixed in CI, where landing must not be luck.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(autouse=True, scope="session")
def registry_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests note how far their ledgers have come in a folder of their own, never in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SORDINO_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def registry_of_this_test(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test has its own: what one does to a copy of a ledger is nothing to the next."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("SORDINO_STATE", str(folder))
    return folder


@pytest.fixture(autouse=True, scope="session")
def gradients_without_timing() -> Iterator[None]:
    """Gradients are formed in the first way that works: which is fastest differs from run to run, and takes longest."""
    from sordino.gradients import tape, tuning

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "_PATIENCE", 0.0)
        patch.setattr(tape, "_seconds", lambda gradient, route: 0.0)
        yield


@pytest.fixture
def without_times() -> Callable[[Path], dict[str, Any]]:
    """A ledger's content but for its name and when it was written."""

    def content(path: Path) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(path.read_text())
        for entry in document["entries"]:
            del entry["when"]
        del document["chain"], document["name"]
        return document

    return content
