"""A run is a folder: weights, plan, ledger, metrics, statement; what must not leave the machine is in RUN/private."""

import hashlib
import hmac
import json
import secrets
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sordino.budget import as_text, write_durably

_FACTS = "sordino"
DESCRIPTION = "run.json"
_SEALED = "sealed_tensors"


class RunError(ValueError):
    """A run folder that does not allow what was asked."""


class RunBusy(RunError):  # noqa: N818
    """A run that another process is training."""


class Run:
    """A run is a folder: its paths, its lock and its durable files.

    `fit(…, run="runs/a")` makes one. Everything in it may be shared but `private/`, which only its owner can read.

    >>> run = Run("runs/a")
    >>> run.ledger.name, run.model.name, run.started
    ('ledger.json', 'model.safetensors', False)
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.private = self.folder / "private"
        self.ledger = self.folder / "ledger.json"
        self.model = self.folder / "model.safetensors"
        self.checkpoint = self.folder / "checkpoint.safetensors"
        self.normalisation = self.folder / "normalisation.safetensors"

    @classmethod
    def at(cls, folder: str | Path) -> "Run":
        """The run in this folder, to start or to resume."""
        run = cls(folder)
        run._make_private()
        return run

    @classmethod
    def create(cls, folder: str | Path | None, name: str) -> "Run":
        """A new folder, or an existing one without content; without a folder one is made under runs/."""
        if folder is None:
            stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
            folder = Path("runs") / f"{name}-{stamp}-{secrets.token_hex(3)}"
        cls(folder).check_free()
        return cls.at(folder)

    def _make_private(self) -> None:
        self.private.mkdir(parents=True, exist_ok=True)
        self.private.chmod(0o700)  # whatever the umask is, and also if it was there before

    def check_free(self) -> None:
        """Refuse a place where something else lies already."""
        taken = self.folder.exists() and not self.folder.is_dir()
        if taken or (self.folder.exists() and any(not _ours(path) for path in self.folder.iterdir())):
            raise RunError(f"{self.folder} exists and is not an unfinished run: choose another folder with --out")

    @property
    def started(self) -> bool:
        return (self.folder / DESCRIPTION).is_file()

    @contextmanager
    def alone(self, lock: str = "lock") -> Iterator[None]:
        """Hold the run: two processes that train it at once would overwrite each other's checkpoints."""
        self._make_private()
        try:
            with FileLock(self.private / lock, timeout=0):
                yield
        except Timeout:
            raise RunBusy(f"another process is at work in {self.folder}: wait for it or stop it") from None

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        write_durably(self.folder / name, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())

    def write_description(self, content: Mapping[str, Any]) -> None:
        """With the note that its tensors are sealed, unless an older version began the run without."""
        sealed = self._tensors_are_sealed() if self.started else True
        self.write_sealed(DESCRIPTION, {**content, **({_SEALED: True} if sealed else {})})

    def write_kind(self, kind: str) -> None:
        """Note what the folder holds (`kinds`), unless that is noted already."""
        if not self.started:
            self.write_sealed(DESCRIPTION, {"kind": kind})

    def read_description(self) -> dict[str, Any]:
        if not (self.folder / DESCRIPTION).exists():
            raise RunError(f"{self.folder} is not a run of sordino: it has no {DESCRIPTION}")
        return self.read_sealed(DESCRIPTION)

    def _tensors_are_sealed(self) -> bool:
        return self.read_description().get(_SEALED) is True

    def write_sealed(self, name: str, content: Mapping[str, Any]) -> None:
        """As JSON with a checksum: against accidents, not against an attacker who may write here."""
        self.write_json(name, {**content, "seal": _seal(content)})

    def read_sealed(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("seal") == _seal(content):
                return dict(content)
        except FileNotFoundError:
            raise RunError(f"{path} is missing") from None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            pass
        raise RunError(f"{path} cannot be read: it is damaged or not a file of sordino")

    def write_private(self, name: str, content: Mapping[str, Any]) -> None:
        write_durably(self.private / name, json.dumps(content).encode(), mode=0o600)

    def write_text(self, name: str, content: str) -> None:
        write_durably(self.folder / name, content.encode())

    def write_statement(self, statement: Mapping[str, Any]) -> None:
        """For programs and for people."""
        self.write_json("statement.json", statement)
        self.write_text("statement.txt", as_text(statement))

    def write_tensors(
        self, path: Path, tensors: dict[str, Tensor], facts: Mapping[str, Any], key: bytes | None = None
    ) -> None:
        """Weights with a few facts, in one text: several would be kept in no fixed order, and bytes should repeat.

        Sealed against accidents by a SHA-256 over all of it; with a key, against everybody who does not have it.
        """
        content = {name: value.contiguous() for name, value in tensors.items()}
        seal = _seal_of_tensors(content, facts)
        sealed = {**facts, "seal": seal} | ({} if key is None else {"mac": _mac(key, seal)})
        write_durably(path, save(content, {_FACTS: json.dumps(sealed, sort_keys=True)}))

    def read_tensors(self, path: Path, key: bytes | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What was written, refused if it was altered since; the facts include the seal, unless the file has none."""
        try:
            with safe_open(path, framework="pt") as file:
                # Copied into memory of torch's own: kernels round differently on tensors that a file has misaligned.
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
                facts = dict(json.loads((file.metadata() or {})[_FACTS]))
        except FileNotFoundError:
            raise RunError(f"{path} is missing") from None
        except (OSError, SafetensorError, KeyError, ValueError, TypeError, RecursionError):
            raise RunError(f"{path} cannot be read: it is damaged, or not a file of sordino") from None
        if "seal" not in facts:
            if self.started and self._tensors_are_sealed():
                raise RunError(f"{path} has lost its checksum: it was altered or replaced; restore it from a backup")
            warnings.warn(
                f"{path} is of an older version and has no checksum: damage to it would not be noticed", stacklevel=2
            )
            return tensors, facts
        plain = {name: value for name, value in facts.items() if name not in ("seal", "mac")}
        if facts["seal"] != _seal_of_tensors(tensors, plain):
            raise RunError(f"{path} is damaged: it was altered after it was written; restore it from a backup")
        if key is not None and not hmac.compare_digest(str(facts.get("mac")), _mac(key, facts["seal"])):
            raise RunError(f"{path} was not written by this run: restore the run's own file")
        return tensors, facts


@contextmanager
def kept_json(path: Path) -> Iterator[Any]:
    """The content of a file that sordino has written; what it lacks, when used in the block, is one RunError."""
    try:
        yield json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise RunError(f"{path} cannot be read: it is damaged, or not a file of sordino") from None


def whole_number(facts: Mapping[str, Any], name: str, run: Run) -> int:
    """A count that a file of weights must hold."""
    if not isinstance(facts.get(name), int):
        raise RunError(f"the weights in {run.folder} are damaged: they do not say how many steps they hold")
    return int(facts[name])


def _ours(path: Path) -> bool:
    """What a run that was killed in its first moment leaves behind: files without their names yet, and locks."""
    if path.name == "private" and path.is_dir():
        return all(_ours(inner) for inner in path.iterdir())
    return path.suffix in (".partial", ".lock") or path.name == "lock"


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _seal_of_tensors(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    """Over facts, names, types, shapes and every byte."""
    kinds = {name: [str(value.dtype), list(value.shape)] for name, value in tensors.items()}
    digest = hashlib.sha256(json.dumps([facts, kinds], sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(tensors[name].detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _mac(key: bytes, seal: str) -> str:
    return hmac.new(key, f"tensors {seal}".encode(), hashlib.sha256).hexdigest()
