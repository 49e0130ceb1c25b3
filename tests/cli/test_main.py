"""How every command ends when it cannot end well."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import sordino as package
from sordino.cli import main, plan


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("train", "`sordino resume RUN` continues it"),
        ("resume", "`sordino resume RUN` continues it"),
        ("tune", "rerun `sordino tune` with --out"),
        ("search", "rerun `sordino search` with --out"),
        ("advise --carry-out", "rerun `sordino advise` with --out"),
        ("crossover --private", "rerun `sordino crossover` with --out"),
        ("advise", "nothing was spent"),
        ("crossover", "nothing was spent"),
        ("predict", "nothing was spent"),
        ("select", "in the ledger"),
    ],
)
def test_a_stopped_command_says_how_to_resume(
    sordino: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, command: str, says: str
) -> None:
    monkeypatch.setattr(main, "app", lambda **_: 130)
    outcome = sordino(*command.split(), "digits")
    assert (outcome.code, outcome.err.count("\n")) == (130, 1)
    assert says in outcome.err
    assert ("sordino resume" in outcome.err) == (command in ("train", "resume"))


@pytest.mark.parametrize(("command", "says"), [("predict", "nothing was spent"), ("select", "is in the ledger")])
def test_memory_that_is_exhausted_says_what_was_charged(
    sordino: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, command: str, says: str
) -> None:
    def exhausted(**_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(main, "app", exhausted)
    outcome = sordino(command, "digits")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert outcome.err.startswith("sordino: memory is exhausted: use fewer columns")
    assert says in outcome.err


@pytest.mark.parametrize("problem", [ValueError, OSError, ArithmeticError])
def test_a_problem_is_one_line(
    sordino: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, problem: type[Exception]
) -> None:
    def fails(*_: Any) -> None:
        raise problem("no minimum\nwas found")

    monkeypatch.setattr(plan, "_gradient_size", fails)
    outcome = sordino("plan", "--recommend", "--n", 100, "--epsilon", 1, "--delta", 1e-5)
    assert (outcome.code, outcome.err) == (2, "sordino: no minimum was found\n")


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "sordino", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"sordino {package.__version__}\n"
