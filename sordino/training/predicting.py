"""Predictions by a finished run: they read its folder and nothing else."""

from pathlib import Path
from typing import Any

import numpy as np

from sordino.data import DataError, Facts, read_examples
from sordino.features import as_array
from sordino.runs import Run, RunError
from sordino.training import normalising
from sordino.training.description import Description


def classify(folder: str | Path, examples: Any) -> list[str]:
    """The class of each example by the model of a finished run."""
    run = Run(folder)
    known = Description.read(run)
    if known.status != "finished":
        raise RunError(f"the run in {run.folder} is not finished: run `sordino resume {run.folder}` first")
    weights, _ = run.read_tensors(run.model)
    chosen, facts, classes = known.recipe, known.facts, known.facts.classes or ()
    scale = normalising.read(run) if chosen.moments is not None else None
    features = as_array(chosen.features(as_expected(examples, facts)))
    try:
        scores = chosen.head.scores(weights, normalising.standardised(scale, features), len(classes))
    except ValueError:
        raise RunError(f"{run.model} does not hold the model that run.json describes") from None
    return [classes[index] for index in scores.argmax(dim=1).tolist()]


def classify_file(folder: Path, file: Path) -> list[str]:
    """The class of each example in a file."""
    Description.read(Run(folder))  # a wrong folder is the likelier mistake: say it before a large file is read
    return classify(folder, read_examples(file))


def as_expected(examples: Any, facts: Facts) -> Any:
    """One example alone, or a colour picture of a grey thing, made into what the model was trained on."""
    if facts.kind == "table":
        if isinstance(examples, np.ndarray):
            raise DataError("the model expects a table with named columns: .csv with a header, or .parquet")
        return examples
    if not isinstance(examples, np.ndarray):
        raise DataError(f"the model expects arrays or images of shape {facts.shape}, not a table with words")
    if examples.shape == facts.shape:
        return examples[None]
    if examples.shape[1:-1] == facts.shape and examples.shape[-1] == 3:
        return examples.mean(axis=-1).round().astype(examples.dtype)
    if examples.shape[1:] != facts.shape:
        raise DataError(f"the model expects examples of shape {facts.shape}, not {examples.shape[1:]}")
    return examples
