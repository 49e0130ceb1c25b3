"""What a part of an experiment found, computed once and kept on disk under a key of all its choices."""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.budget import write_durably
from sordino.data import cache_folder
from sordino.runs import Run, RunBusy, RunError

_RESULT = "result.json"
_LONG = 300.0
"""Seconds from which a result is worth a file beside the records."""


@dataclass(frozen=True)
class Store:
    """Where parts of experiments work and leave their results: in the user's cache folder, unless it says otherwise.

    Results that took long lie beside the records as well, where there is such a place: an hour of training is then as
    safe as the record that will be made of it, and whoever has the records can go on with them elsewhere.
    """

    folder: Path | None = None
    records: Path | None = None

    def kept(self, key: str, compute: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """The result under this key: as it was found before, or computed now, with a folder of its own to work in."""
        (found,) = self.kept_together([key], lambda missing: [compute(folder) for folder in missing.values()])
        return found

    def kept_together(
        self, keys: Sequence[str], compute: Callable[[dict[str, Path]], Sequence[dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        """The results under these keys; those that are missing are computed in one go, each in its folder."""
        missing = {key: self._folder(key) for key in keys if self._found(key) is None}
        if missing:
            gone_on, begun = any(folder.exists() for folder in missing.values()), time.monotonic()
            computed = compute(missing)
            long = gone_on or time.monotonic() - begun >= _LONG
            for key, found in zip(missing, computed, strict=True):
                self._keep(key, found, long)
        return [_read(self._found(key) or self._folder(key) / _RESULT) for key in keys]

    def _folder(self, key: str) -> Path:
        return (self.folder or cache_folder() / "trials") / key

    def _lasting(self, key: str) -> Path | None:
        return self.records and self.records / "trials" / f"{key}.json"

    def _found(self, key: str) -> Path | None:
        places = (self._folder(key) / _RESULT, self._lasting(key))
        return next((place for place in places if place is not None and place.exists()), None)

    def _keep(self, key: str, found: dict[str, Any], long: bool) -> None:
        content = (json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
        for place in (self._lasting(key) if long else None, self._folder(key) / _RESULT):
            if place is not None:
                place.parent.mkdir(parents=True, exist_ok=True)
                write_durably(place, content)


CACHE = Store()


def _read(result: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(result.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError):
        what = "its folder" if result.name == _RESULT else "it"
        raise ValueError(f"{result} is damaged: delete {what}, and the trial is trained again") from None


def begun_or_anew(folder: Path, train: Callable[[Run], dict[str, Any]]) -> dict[str, Any]:
    """A seeded training in this folder: from where it was stopped, or where that cannot be, from its start."""
    try:
        return train(Run.at(folder))
    except RunBusy:
        raise
    except RunError:  # begun in another environment; under a seed there is no privacy to lose
        shutil.rmtree(folder)
        return train(Run.at(folder))
