"""Predictions by a finished search: they read its folder and the examples, and nothing else."""

import json
from pathlib import Path

from sordino.data import read_examples, read_inputs
from sordino.features import as_array
from sordino.runs import Run, RunError
from sordino.selection.search.candidates import predicted
from sordino.selection.search.convolutional import Convolutional
from sordino.selection.search.dense import Dense
from sordino.selection.search.records import feature_of
from sordino.selection.search.searching import OUTCOME
from sordino.selection.search.workflow import WORKFLOW, Settled
from sordino.training import as_expected


def holds_search(folder: str | Path) -> bool:
    return (Path(folder) / WORKFLOW).is_file()


def classify_by_search(folder: str | Path, file: Path) -> list[str]:
    """The class of each example in the file by the model that a search has chosen."""
    run = Run(folder)
    begun = Settled.read(run)
    if begun is None or not (run.folder / OUTCOME).exists():
        raise RunError(f"the search in {folder} is not finished: repeat its command with --out {folder} to go on")
    try:
        chosen = json.loads((run.folder / OUTCOME).read_text(encoding="utf-8"))["chosen"]
        networks: dict[str, type[Dense] | type[Convolutional]] = {"dense": Dense, "convolutional": Convolutional}
        candidate = networks[chosen["candidate"]["network"]].from_json(chosen["candidate"])
        diverged = bool(chosen["diverged"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise RunError(f"{run.folder / OUTCOME} cannot be read: it is damaged, or not a file of sordino") from None
    if diverged:
        raise RunError(f"the search in {folder} has no model: the training it chose diverged")
    facts, classes = begun.facts, begun.facts.classes or ()
    examples = read_inputs(file, facts.columns) if facts.columns else as_expected(read_examples(file), facts)
    x = as_array(feature_of(facts, str(folder))(examples))
    try:
        return [classes[index] for index in predicted(candidate, run, x, len(classes))]
    except RuntimeError:  # torch names all that does not fit, over many lines
        raise RunError(f"{run.model} does not hold the model that the search chose") from None
