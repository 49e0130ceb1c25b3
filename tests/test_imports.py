"""Rooms of the house import one way only: each may use those before it in this list."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sordino

ROOMS = (
    *("budget", "mechanisms", "data", "features", "gradients", "models", "training"),
    *("selection", "audit", "papers", "report", "estimators", "cli"),
)
PACKAGE = Path(sordino.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    return {name.split(".")[1] for name in names if name.startswith("sordino.")} & set(ROOMS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        assert not imported_rooms(path)
        return
    allowed = ROOMS[: ROOMS.index(room) + 1]
    assert imported_rooms(path) <= set(allowed)


@pytest.mark.parametrize("room", ["budget", "mechanisms", "data"])
def test_accounting_and_data_need_no_torch(room: str) -> None:
    program = f"import sys, sordino.{room}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
