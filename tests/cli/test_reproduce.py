"""`sordino reproduce`: which items there are, a record and a table for one, and one line for what is not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_the_command(sordino: Callable[..., Any], tmp_path: Path) -> None:
    listed = sordino("reproduce", "better-features")
    assert listed.code == 0
    assert "table-1" in listed.out.split()
    done = sordino("reproduce", "better-features", "table-4", "--out", tmp_path, "--json")
    assert done.code == 0
    assert json.loads(done.out)["rows"] == json.loads((tmp_path / "better-features/table-4.json").read_text())["rows"]
    for wrong in (
        ("better-features", "table-99"),
        ("worse-features", "table-1"),
        ("better-features", "table-4", "--quick", "--full"),
        ("better-features", "table-4", "--seeds", "0"),
    ):
        refused = sordino("reproduce", *wrong, "--out", tmp_path)
        assert refused.code == 2
        assert len(refused.err.strip().splitlines()) == 1
