"""JSON nested 100,000 deep is damage like any other: one line to the user, wherever JSON is read."""

import ast
from pathlib import Path

import pytest

import sordino
from sordino.runs import Key, Run, RunError

DEEP = "[" * 100_000


def test_a_key_nested_too_deep_is_damaged(tmp_path: Path) -> None:
    run = Run.at(tmp_path)
    run.private.mkdir(exist_ok=True)
    (run.private / "key.json").write_text(DEEP)
    with pytest.raises(RunError, match="damaged"):
        Key.read(run)


def test_whoever_expects_damaged_json_expects_it_nested_too_deep() -> None:
    forgotten = []
    for path in Path(sordino.__file__).parent.rglob("*.py"):
        for block in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(block, ast.Try):
                continue
            reads = any("json.load" in ast.unparse(statement) for statement in block.body)
            caught = " ".join(ast.unparse(handler.type) for handler in block.handlers if handler.type)
            if reads and "ValueError" in caught and "RecursionError" not in caught:
                forgotten.append(f"{path.name}:{block.lineno}")
    assert forgotten == []
