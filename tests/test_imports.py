"""Rooms of the house import one way only: each may use those before it in this list."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sordino

ROOMS = (
    *("budget", "mechanisms", "runs", "data", "features", "gradients", "models", "training"),
    *("selection", "audit", "papers", "report", "estimators", "cli"),
)
PACKAGE = Path(sordino.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    room = relative.parts[0].removesuffix(".py")
    return "cli" if room == "__main__" else room


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


def exported_by(room: str) -> set[str]:
    stub = ast.parse((PACKAGE / room / "__init__.pyi").read_text(encoding="utf-8"))
    return {alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_other_rooms_are_entered_by_the_front_door(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sordino."):
            room = (node.module or "").split(".")[1]
            if room != room_of(path):
                assert node.module == f"sordino.{room}", f"{node.module} is private to {room}"
                assert {alias.name for alias in node.names} <= exported_by(room)


@pytest.mark.parametrize("room", [room for room in ROOMS if (PACKAGE / room / "__init__.pyi").exists()])
def test_what_a_room_exports_exists(room: str) -> None:
    program = f"from importlib import import_module as i; r = i('sordino.{room}'); [getattr(r, n) for n in r.__all__]"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("room", ["budget", "mechanisms", "data"])
def test_accounting_and_data_need_no_torch(room: str) -> None:
    program = f"import sys, sordino.{room}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("room", [room for room in ROOMS if (PACKAGE / room / "__init__.pyi").exists()])
def test_no_export_is_hidden_by_a_file_of_its_name(room: str) -> None:
    for node in ast.parse((PACKAGE / room / "__init__.pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                own = node.module.split(".")[0] == alias.name  # lazy_loader keeps these apart
                assert own or not (PACKAGE / room / f"{alias.name}.py").exists(), f"rename {alias.name} or its file"
