"""The command line, called in this process."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sordino.cli.main import run
from sordino.training.description import Request
from sordino.training.train import train


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


@pytest.fixture
def sordino(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Call the command in this process; only SystemExit may leave it."""

    def call(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as leaving:
            run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Outcome(int(leaving.value.code or 0), printed.out, printed.err)

    return call


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A small real run and what it reported; not to be changed."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, train(Request("digits", "linear", 3.0, 1e-4), folder)


@pytest.fixture(scope="session")
def finished_digits(finished_run: tuple[Path, dict[str, Any]]) -> Path:
    return finished_run[0]
