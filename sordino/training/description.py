"""run.json of a training: what was asked for, the plan, and the public facts; with it a finished run can predict."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sordino.budget import check_delta, check_target
from sordino.data import DataError, Facts, ImageFiles, names, pictures, read_examples
from sordino.features import as_array
from sordino.runs import LoadedModel, Run, RunError, kind_of
from sordino.training import normalising
from sordino.training.dataset_recipes import AnyPlan, DatasetRecipe
from sordino.training.modules import load_into, load_linear, tensors
from sordino.training.plan import plan_from_json
from sordino.training.recipes import check_name, recipe


@dataclass(frozen=True)
class Request:
    """What the user asked for; a run is resumed only for the same request."""

    dataset: str
    recipe: str
    epsilon: float
    delta: float
    seed: int | None = None
    canaries: int = 0
    """Synthetic records that take part for an audit."""
    exact: bool = False
    """Whether the noise of training is drawn exactly, on a public grid (`Plan.exact`)."""
    side: int | None = None
    """Of images in files: to what they are scaled, in place of what the recipe takes."""
    channels: int | None = None
    """Of images in files: 1 or 3, to which all are converted; as the first image is, if not given."""
    classes: str | None = None
    """A file with the names of the classes of a table of images."""
    weights: str | None = None
    """A file of public weights that training starts from."""

    def __post_init__(self) -> None:
        if not (isinstance(self.dataset, str) and isinstance(self.recipe, str)):
            raise ValueError("a dataset and a recipe are named by words")
        if self.seed is not None and type(self.seed) is not int:
            raise ValueError(f"a seed is a whole number, not {self.seed!r}")
        if self.side is not None and (type(self.side) is not int or not 8 <= self.side <= 1024):
            raise ValueError(f"images have a side of 8 to 1024 pixels, not {self.side!r}")
        if self.channels not in (None, 1, 3):
            raise ValueError(f"images have 1 channel (grey) or 3 (colour), not {self.channels!r}")
        if type(self.canaries) is not int or self.canaries < 0 or self.canaries == 1:
            raise ValueError(f"canaries are a whole number, none or at least two, not {self.canaries!r}")
        check_target(self.epsilon)
        check_delta(self.delta)
        check_name(self.recipe)


def is_named(request: Request) -> bool:
    """Whether it is for a dataset by name, and not for images in files; ./mnist is a folder, mnist the dataset."""
    return request.dataset in names()


@dataclass(frozen=True)
class Description:
    """The content of run.json."""

    status: str
    request: Request
    plan: AnyPlan
    facts: Facts
    statement: dict[str, Any]
    """Words for the privacy statement: unit, tuning, notes."""

    @property
    def recipe(self) -> DatasetRecipe:
        return recipe(self.request.recipe, self.request.dataset, self.facts)

    def write(self, run: Run) -> None:
        chosen = {"name": self.recipe.name, "description": repr(self.recipe)}
        content = {"kind": "training", "status": self.status, "request": asdict(self.request), "recipe": chosen}
        content |= {"plan": self.plan.to_json(), "facts": self.facts.to_json(), "statement": self.statement}
        run.write_description(content)

    @classmethod
    def read(cls, run: Run) -> "Description":
        document = run.read_description()
        if document.get("kind", "training") != "training":
            raise RunError(f"{run.folder} was created by `{kind_of(run.folder).command}`, not by `sordino train`")
        try:
            return cls(
                str(document["status"]),
                Request(**document["request"]),
                plan_from_json(document["plan"]),
                Facts.from_json(document["facts"]),
                {name: document["statement"][name] for name in ("unit", "tuning", "notes")},
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RunError(f"run.json in {run.folder} is of another version of sordino") from None


def request_of(folder: str | Path) -> Request:
    """What the unfinished run in a folder was asked for."""
    return Description.read(Run(folder)).request


def loaded_training(folder: Path) -> LoadedModel:
    """The model of a finished run of `sordino train`."""
    run = Run(folder)
    known = Description.read(run)
    if known.status != "finished":
        raise RunError(f"the run in {run.folder} is not finished: run `sordino resume {run.folder}` first")
    weights, _ = run.read_tensors(run.model)
    chosen, facts, classes = known.recipe, known.facts, known.facts.classes or ()
    scale = normalising.read(run) if chosen.moments is not None else None

    def outputs(examples: Any) -> NDArray[np.floating]:
        if isinstance(examples, ImageFiles):
            return np.concatenate([outputs(images) for images in examples.blocks()])
        features = as_array(chosen.features(as_expected(examples, facts)))
        try:
            return chosen.head.scores(weights, normalising.standardised(scale, features), len(classes)).numpy()
        except ValueError:
            raise RunError(f"{run.model} does not hold the model that run.json describes") from None

    def read(file: Path) -> Any:
        return read_examples(file) if is_named(known.request) else pictures(file, facts.shape)

    return LoadedModel(run.folder, read, outputs, classes, facts.columns)


def loaded_module(folder: Path, module: nn.Module) -> LoadedModel:
    """A module of the user's own with the weights that `fit` or a loop of `make_private` has kept."""
    run = Run(folder)
    if not run.model.exists():
        raise RunError(f"the run in {run.folder} is not finished: {kind_of(folder).again}")
    if not isinstance(module, nn.Module):
        raise RunError(f"weights are loaded into an nn.Module, not {type(module).__name__}: build the model first")
    weights, _ = run.read_tensors(run.model)
    try:
        if weights.keys() == {"weights"} and isinstance(module, nn.Linear):  # of a regression in one release
            load_linear(module, weights["weights"])
        else:
            load_into(tensors(module), weights)
    except (ValueError, RuntimeError):
        raise RunError(f"{run.model} holds the weights of another model than this {type(module).__name__}") from None

    def outputs(examples: Any) -> NDArray[np.floating]:
        """For examples in the module's precision: NumPy's and pandas' numbers have twice that of most modules."""
        x = examples if isinstance(examples, torch.Tensor) else torch.tensor(np.asarray(examples))
        like = next((value for value in module.parameters() if value.is_floating_point()), x)
        x = x.to(like.device, like.dtype if x.is_floating_point() else x.dtype)
        mode = module.training
        module.eval()
        try:
            with torch.no_grad():
                return np.asarray(module(x).float().cpu().numpy())
        finally:
            module.train(mode)

    return LoadedModel(run.folder, read_examples, outputs, module=module)


def as_expected(examples: Any, facts: Facts) -> Any:
    """Examples in the shape the model was trained on: one example becomes a batch, a colour picture may become grey."""
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
