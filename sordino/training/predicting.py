"""Predictions by a finished run: they read its folder and nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from sordino.data import DataError, Facts
from sordino.training.description import Description
from sordino.training.linear import predict
from sordino.training.recipes import recipe
from sordino.training.run import Run, RunError


def classify(folder: str | Path, examples: Any) -> list[str]:
    """The class of each example by the model of a finished run."""
    run = Run(folder)
    known = Description.read(run)
    if known.status != "finished":
        raise RunError(f"the run in {run.folder} is not finished: run `sordino resume {run.folder}` first")
    parameters, _ = run.read_tensors(run.model)
    facts, classes = known.facts, known.facts.classes or ()
    if set(parameters) != {"weight", "bias"} or len(parameters["bias"]) != len(classes):
        raise RunError(f"{run.model} does not hold the model that run.json describes")
    vectors = recipe(known.request.recipe).features(facts)(_fitting(examples, facts))
    if vectors.shape[1] != parameters["weight"].shape[1]:
        raise DataError(f"the model expects examples of shape {facts.shape}, as in {known.request.dataset}")
    return [classes[index] for index in predict(parameters, torch.from_numpy(vectors)).argmax(dim=1).tolist()]


def _fitting(examples: Any, facts: Facts) -> Any:
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
