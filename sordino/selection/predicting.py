"""Predictions by the model of advice carried out: they read its folder and the rows, and nothing else."""

import json
from pathlib import Path

import numpy as np

from sordino.data import DataError
from sordino.data.schema import Schema, read_inputs
from sordino.selection.carrying_out import ADVICE, OUTCOME, USED
from sordino.selection.table_models import MODELS, classes_of, encoded_width
from sordino.training.run import Run, RunError


def holds_advice(folder: str | Path) -> bool:
    return any((Path(folder) / name).is_file() for name in (ADVICE, USED))


def classify(folder: str | Path, file: Path) -> list[str]:
    """The class of each row of a table."""
    run = Run(folder)
    path = run.folder / USED
    if not (run.folder / OUTCOME).exists():
        raise RunError(f"the workflow in {folder} is not finished: repeat its command with --out {folder} to go on")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        [model] = [each for each in MODELS if each.name == content["model"]]
        schema = Schema.from_json(content["schema"], path)
        kept = np.array(content["mask"], dtype=bool)
        classes = classes_of(schema)
        if kept.shape != (encoded_width(model.columns(schema)),) or not kept.any():
            raise ValueError("the mask is of other columns")
    except (OSError, ValueError, TypeError, KeyError, RecursionError, DataError):
        raise RunError(f"{path} cannot be read: it is damaged, or not a file of sordino") from None
    x = model.encode(schema, read_inputs(file, schema.columns), kept)
    try:
        # Learners are built around data, which play no part here.
        learner = model.learner(np.zeros((1, x.shape[1]), np.float32), np.zeros(1, np.int64), len(classes))
        return [classes[place] for place in learner.trained(run)(x)]
    except RunError:
        raise
    except (RuntimeError, ValueError, KeyError, IndexError):
        raise RunError(f"{run.model} does not hold the model of {path.name}") from None
