"""The command line, called in this process."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from sordino.cli.main import run


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
