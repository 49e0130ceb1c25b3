"""The examples in docstrings run as printed, and every public name has one."""

import ast
import doctest
import inspect
from importlib import import_module
from pathlib import Path

import pytest

import sordino

PACKAGE = Path(sordino.__file__).parent
WITH_EXAMPLES = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]


def module_name(path: Path) -> str:
    return ".".join(("sordino", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=module_name)
def test_examples_run_as_printed(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(import_module(module_name(path)), optionflags=doctest.ELLIPSIS)
    assert found.attempted
    assert not found.failed


@pytest.mark.parametrize("name", sordino.__all__)
def test_every_public_name_is_explained_with_an_example(name: str) -> None:
    thing = getattr(sordino, name)
    assert ">>> " in (inspect.getdoc(thing) or ""), f"sordino.{name} has no example"


def test_the_front_door_is_listed_once() -> None:
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    listed = [alias.name for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(listed) == sorted(sordino.__all__)
