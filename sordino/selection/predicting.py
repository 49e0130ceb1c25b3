"""Predictions by the model of advice carried out: they read its folder and the rows, and nothing else."""

import hashlib
from pathlib import Path

import numpy as np

from sordino.data import Schema, read_inputs
from sordino.runs import Run, RunError
from sordino.selection.carrying_out import ADVICE, OUTCOME, USED
from sordino.selection.table_models import MODELS, classes_of, encoded_width, touched


def holds_advice(folder: str | Path) -> bool:
    return any((Path(folder) / name).is_file() for name in (ADVICE, USED))


def classify_by_advice(folder: str | Path, file: Path) -> list[str]:
    """The class of each row of a table."""
    run = Run(folder)
    if not (run.folder / OUTCOME).exists():
        raise RunError(f"the workflow in {folder} is not finished: repeat its command with --out {folder} to go on")
    used = run.read_sealed(USED)
    try:
        [model] = [each for each in MODELS if each.name == used["model"]]
        schema, kept = Schema.from_json(used["schema"]), np.array(used["mask"])
        classes, columns = classes_of(schema), model.columns(schema)
        if kept.shape != (encoded_width(columns),) or kept.dtype != bool or not kept.any():
            raise ValueError("the mask is of other columns")
    except (ValueError, TypeError, KeyError):
        raise RunError(f"{run.folder / USED} cannot be read: it is damaged, or not a file of sordino") from None
    if not run.model.exists():
        raise RunError(f"{run.model} is missing")
    if hashlib.sha256(run.model.read_bytes()).hexdigest() != used.get("weights"):
        raise RunError(f"{run.model} is not the model that {USED} tells of")
    x = model.encode(schema, read_inputs(file, touched(columns, kept)), kept)
    # Learners are built around data, which play no part here.
    learner = model.learner(np.zeros((1, x.shape[1]), np.float32), np.zeros(1, np.int64), len(classes))
    return [classes[place] for place in learner.trained(run)(x)]
