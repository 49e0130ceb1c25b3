"""What a part of an experiment found, computed once and kept on disk under a key of all its choices."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sordino.budget.ledger_file import write_durably
from sordino.data.places import cache_folder
from sordino.training.run import Run, RunBusy, RunError


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


def begun_or_anew(folder: Path, train: Callable[[Run], dict[str, Any]]) -> dict[str, Any]:
    """A seeded training in this folder: from where it was stopped, or where that cannot be, from its start."""
    try:
        return train(Run.at(folder))
    except RunBusy:
        raise
    except RunError:  # begun in another environment; under a seed there is no privacy to lose
        shutil.rmtree(folder)
        return train(Run.at(folder))
