"""What a part of an experiment found, computed once and kept on disk under a key of all its choices."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sordino.budget.ledger_file import write_durably
from sordino.data.places import cache_folder


def kept(key: str, store: Path | None, compute: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The result under this key: from the store, or else computed now, with a folder of its own to work in."""
    folder = (cache_folder() / "trials" if store is None else store) / key
    result = folder / "result.json"
    if not result.exists():
        found = compute(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_durably(result, (json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    try:
        return dict(json.loads(result.read_text(encoding="utf-8")))
    except ValueError:
        raise ValueError(f"{result} is damaged: delete its folder, and the trial is trained again") from None
