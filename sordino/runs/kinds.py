"""What a folder holds, and what can be done with it: one `load`, one `predict` and one statement for all kinds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Ledger
from sordino.runs.key import Purpose
from sordino.runs.run import DESCRIPTION, Run, RunError
from sordino.runs.table_ledger import SELECTION, holds_account, ledger_elsewhere


@dataclass(frozen=True)
class LoadedModel:
    """The model of a finished run, from `load`. It computes from what was released: predicting costs nothing.

    Examples are a file or folder such as `sordino predict` takes, or what would be read from it: an array, or a
    DataFrame with the model's columns.
    """

    folder: Path
    read: Callable[[Path], Any] = field(repr=False)
    """The examples of a file."""
    outputs: Callable[[Any], NDArray[np.floating]] = field(repr=False)
    """The model's outputs for examples that are read: a number for each class, which softmax makes probabilities."""
    classes: tuple[str, ...] | None = None
    """Their names; None of a model of the user's own, whose classes are numbers."""
    columns: tuple[Any, ...] | None = None
    """Those of a table that the model looks at, with their public domains."""
    module: Any = None
    """The user's own, with the weights of the run."""

    def predict(self, examples: Any) -> list[Any]:
        """The class of each example."""
        places = np.nan_to_num(self._class_outputs(examples)).argmax(axis=1).tolist()
        return places if self.classes is None else [self.classes[place] for place in places]

    def predict_proba(self, examples: Any) -> NDArray[np.float64]:
        """The probability of each class, a row for each example; the columns are `classes`."""
        outputs = self._class_outputs(examples).astype(np.float64)
        weights = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    @property
    def statement(self) -> dict[str, Any]:
        """The privacy statement, as the ledger is now."""
        return statement_of(self.folder)

    def _class_outputs(self, examples: Any) -> NDArray[np.floating]:
        found = self.outputs(self.read(Path(examples)) if isinstance(examples, str | Path) else examples)
        if found.ndim != 2 or found.shape[1] < 2:
            raise RunError(f"the model in {self.folder} has no output for each class: use its `outputs`")
        return found


@dataclass(frozen=True)
class Kind:
    """A kind of run folder: its name in run.json, and what there is to know about it."""

    name: str
    command: str
    """That makes such folders."""
    signs: tuple[str, ...]
    """Files by which folders of version 0.1 are recognised, whose run.json has no kind, or which have none."""
    loads: str | None = None
    """A room and a function of a folder that gives its LoadedModel: by name, since rooms that know models come after
    this one."""
    needs_model: bool = False
    """Whether the folder has weights alone: the function takes the module that they are for, too."""
    resumes: bool = False
    """Whether the folder alone says how to resume."""
    again: str = "rerun that command with --out {folder} to resume"
    """How to resume where the folder alone does not say it."""


_OWN = "run the program that called it again: "
_MODULE = "sordino.training:loaded_module"
_FIT = Kind(
    "fit",
    "sordino.fit",
    (),
    _MODULE,
    needs_model=True,
    again=f"{_OWN}fit resumes the run, or loads the weights if it is finished",
)
KINDS = (
    Kind("search", "sordino search` or `sordino tune", ("workflow.json",), "sordino.selection:loaded_search"),
    Kind("advice", "sordino advise", ("advice.json", "used.json"), "sordino.selection:loaded_advice"),
    Kind("crossover", "sordino crossover", ("measurement.json",)),
    Kind("selection", "sordino select", (SELECTION,), again="rerun that command with another folder; it cannot resume"),
    Kind("training", "sordino train", (DESCRIPTION,), "sordino.training:loaded_training", resumes=True),
    Kind(
        "private loop",
        "sordino.make_private",
        (),
        _MODULE,
        needs_model=True,
        again=f"{_OWN}the loop resumes from its last checkpoint",
    ),
    _FIT,
)
"""A new kind of folder is a row here."""


def kind_of(folder: str | Path) -> Kind:
    """What a folder holds; RunError if that is nothing of sordino's.

    >>> from tempfile import mkdtemp
    >>> run = Run.at(mkdtemp())
    >>> run.write_kind("search")
    >>> kind_of(run.folder).command
    'sordino search` or `sordino tune'
    """
    run = Run(folder)
    if not run.folder.is_dir():
        raise RunError(
            f"{folder} is a file, not a run's folder" if run.folder.exists() else f"there is no folder {folder}"
        )
    written = run.read_description().get("kind") if run.started else None
    for kind in KINDS:
        if written == kind.name or (written is None and any((run.folder / sign).is_file() for sign in kind.signs)):
            return kind
    if written is not None:
        raise RunError(f"{run.folder} holds a {written}, which this version of sordino does not know: upgrade it")
    if holds_account(run.folder):
        raise RunError(f"{run.folder} was created by a command for tables: rerun that with --out {run.folder}")
    # A fit of version 0.1 has no run.json.
    if any(path.is_file() for path in (run.model, run.checkpoint, Purpose.RUN.file(run))):
        return _FIT
    raise RunError(f"{run.folder} is not a run of sordino: it has no {DESCRIPTION}")


def load(folder: str | Path, model: Any = None) -> LoadedModel:
    """The model of a finished run, to predict with; reads the folder alone, and costs nothing.

    Parameters
    ----------
    folder : a run of `sordino train`, `tune`, `search` or `advise`, of `fit` or of `make_private`.
    model : for `fit` and `make_private`, which keep weights but no code: the nn.Module that the weights are for.

    >>> import torch
    >>> from tempfile import mkdtemp
    >>> from sordino import Ledger, Plan, SGD, fit
    >>> from sordino.data import PoissonSampler
    >>> x, y, out = torch.eye(4).repeat(8, 1), torch.arange(4).repeat(8), mkdtemp()
    >>> plan = Plan(PoissonSampler(32, 8), l2_clip=1.0, noise_multiplier=1.0, steps=5)
    >>> fitted = fit(
    ...     plan, torch.nn.Linear(4, 4), (x, y), loss=torch.nn.CrossEntropyLoss(reduction="none"),
    ...     optimiser=SGD(0.5), ledger=Ledger(20.0, 1e-3, path=f"{out}/ledger.json"), run=out,
    ... )
    >>> loaded = load(out, model=torch.nn.Linear(4, 4))
    >>> loaded.predict_proba(x[:3]).shape, loaded.statement["delta"]
    ((3, 4), 0.001)
    """
    kind = kind_of(folder)
    if kind.loads is None:
        raise RunError(f"{folder} was created by `{kind.command}`: it holds no model to predict with")
    if kind.needs_model and model is None:
        raise RunError(
            f"{folder} was created by `{kind.command}`, which keeps weights but not the model's code: predict in "
            "Python with sordino.load(folder, model)"
        )
    if model is not None and not kind.needs_model:
        raise RunError(f"{folder} was created by `{kind.command}` and has its own model: load it without one")
    room, _, function = kind.loads.partition(":")
    read: Callable[..., LoadedModel] = getattr(import_module(room), function)
    return read(Path(folder), model) if kind.needs_model else read(Path(folder))


def predict(folder: str | Path, file: str | Path) -> list[str]:
    """The class of each example in a file, by the model in a finished folder; reads nothing else, and costs nothing.

    Parameters
    ----------
    folder : a run of `sordino train`, `tune`, `search` or `advise`.
    file : examples like those it was trained on: .csv, .parquet, .npy, .npz, IDX, an image or a folder of images.

    >>> predict("runs/missing", "patients.csv")
    Traceback (most recent call last):
    sordino.runs.run.RunError: there is no folder runs/missing
    """
    return load(folder).predict(Path(file))


def check_resumable(folder: str | Path) -> None:
    """Refuse to resume from the folder alone what needs its command."""
    kind = kind_of(folder)
    if not kind.resumes:
        raise RunError(f"{folder} was created by `{kind.command}`: {kind.again.format(folder=folder)}")


def statement_of(place: str | Path) -> dict[str, Any]:
    """The privacy statement of a folder, or of a ledger's file, as its ledger is now."""
    folder = Path(place)
    if not folder.is_dir():
        ledger = Ledger.open(folder)
        ledger.refuse_old_copy()
        return ledger.statement()
    elsewhere = ledger_elsewhere(folder)
    if elsewhere is not None:
        ledger = Ledger.open(elsewhere)
        ledger.refuse_old_copy(folder)
        return ledger.statement()
    run = Run(folder)
    if not run.ledger.is_file() and kind_of(folder) is _FIT:
        raise RunError(
            f"{folder} has no ledger: `{_FIT.command}` charged the one it was given; give that file, or train with "
            f'ledger=Ledger(…, path="{run.ledger}")'
        )
    words = run.read_description().get("statement", {}) if run.started else {}
    return Ledger.open(run.ledger).statement(**words)
