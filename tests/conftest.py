"""What tests of all rooms share."""

import json
import os
from collections.abc import Callable
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


@pytest.fixture
def without_times() -> Callable[[Path], dict[str, Any]]:
    """A ledger's content but for when it was written."""

    def content(path: Path) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(path.read_text())
        for entry in document["entries"]:
            del entry["when"]
        del document["chain"]
        return document

    return content
