"""A program of the library's users, run on two neighbouring datasets with all noisy outputs replayed."""

import warnings
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from sordino.budget import Ledger

from .recorder import Recorder, watching

D = TypeVar("D")


def replayed(program: Callable[[D, Ledger], Any], one: D, other: D, apart: int = 1) -> list[str]:
    """What record and replay finds in a program on two datasets that are so many records apart."""
    return replayed_on(program, one, [(other, apart)])


def replayed_on(program: Callable[[D, Ledger], Any], one: D, others: Iterable[tuple[D, int]]) -> list[str]:
    """The same with several neighbours; what is returned, raised, printed or warned of must be the same, too."""
    first = Recorder()
    shown = _shown(program, one, first)
    assert first.releases, shown
    problems = first.finish()
    for data, apart in others:
        recorder = Recorder(first.releases, apart)
        now = _shown(program, data, recorder)
        problems += recorder.finish()
        problems += [f"the two runs show {shown} and {now}"] * (shown != now)
    return problems


def _shown(program: Callable[[D, Ledger], Any], data: D, recorder: Recorder) -> list[str]:
    out = StringIO()
    with (
        TemporaryDirectory() as folder,
        redirect_stdout(out),
        redirect_stderr(out),
        warnings.catch_warnings(record=True) as warned,
    ):
        ledger = Ledger(path=f"{folder}/ledger.json")
        recorder.account = lambda: ledger.entries
        warnings.simplefilter("always")
        try:
            with watching(recorder):
                ending = repr(program(data, ledger))
        except Exception as error:
            ending = repr(error)
    entries = [repr(entry) for entry in ledger.entries]
    return [ending, out.getvalue(), *(str(each.message) for each in warned), *entries]
