"""What a folder holds, and what can be done with it: one `predict` and one statement for all kinds."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from sordino.budget import Ledger
from sordino.runs.key import Purpose
from sordino.runs.run import DESCRIPTION, Run, RunError
from sordino.runs.table_ledger import SELECTION, holds_account, ledger_elsewhere


@dataclass(frozen=True)
class Kind:
    """A kind of run folder: its name in run.json, and what there is to know about it."""

    name: str
    command: str
    """That makes such folders."""
    signs: tuple[str, ...]
    """Files by which folders of version 0.1 are recognised, whose run.json has no kind, or which have none."""
    predicts: str | None = None
    """A room and a function of a folder and a file of examples that gives the class of each: by name, since rooms that
    know models come after this one."""
    resumes: bool = False
    """Whether the folder alone says how to resume."""
    again: str = "rerun that command with --out {folder} to resume"
    """How to resume where the folder alone does not say it."""
    no_model: str = "it holds no model to predict with"
    """Why it does not predict, and what does."""


_OWN = "run the program that called it again: "
_FIT = Kind(
    "fit",
    "sordino.fit",
    (),
    again=f"{_OWN}fit resumes the run, or loads the weights if it is finished",
    no_model=f"it holds weights but not the model's code; {_OWN}fit loads them without a charge",
)
KINDS = (
    Kind("search", "sordino search` or `sordino tune", ("workflow.json",), "sordino.selection:classify_by_search"),
    Kind("advice", "sordino advise", ("advice.json", "used.json"), "sordino.selection:classify_by_advice"),
    Kind("crossover", "sordino crossover", ("measurement.json",)),
    Kind("selection", "sordino select", (SELECTION,), again="rerun that command; it starts afresh, in another folder"),
    Kind("training", "sordino train", (DESCRIPTION,), "sordino.training:classify_file", resumes=True),
    Kind(
        "private loop",
        "sordino.make_private",
        (),
        again=f"{_OWN}the loop resumes from its last checkpoint",
        no_model=f"it holds weights but not the model's code; {_OWN}a finished loop loads them without a charge",
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
    # An unfinished fit has no run.json yet, one of version 0.1 never had.
    if any(path.is_file() for path in (run.model, run.checkpoint, Purpose.RUN.file(run))):
        return _FIT
    raise RunError(f"{run.folder} is not a run of sordino: it has no {DESCRIPTION}")


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
    kind = kind_of(folder)
    if kind.predicts is None:
        raise RunError(f"{folder} was created by `{kind.command}`: {kind.no_model}")
    room, _, function = kind.predicts.partition(":")
    classify: Callable[[Path, Path], list[str]] = getattr(import_module(room), function)
    return classify(Path(folder), Path(file))


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
