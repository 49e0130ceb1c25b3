"""How often audits catch planted faults, and pass correct code: the tests of faults, repeated under fresh keys.

`python -m benchmarks.audit_power` prints a table for docs/auditing.md.
"""

import argparse
import importlib.util
import inspect
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_FAULTS = Path(__file__).parents[1] / "tests" / "audit" / "test_faults.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20, help="of every audit; 20 if not given")
    parser.add_argument("--quick", action="store_true", help="two repeats")
    parser.add_argument("--only", default="", help="tests whose name has this word")
    given = parser.parse_args()
    repeats = 2 if given.quick else given.repeats
    print(f"| planted, or correct | as it should be, of {repeats} |\n|---|---|", flush=True)
    for name, test in _tests():
        if given.only in name:
            kept = sum(_holds(test) for _ in range(repeats))
            print(f"| {name} | {kept} |", flush=True)
    print(f"\n{time.process_time():.0f} s of CPU time")


def _tests() -> Iterator[tuple[str, Callable[[pytest.MonkeyPatch], None]]]:
    """Every test of a fault in every case, by name."""
    found = importlib.util.spec_from_file_location(_FAULTS.stem, _FAULTS)
    if found is None or found.loader is None:
        raise FileNotFoundError(f"there are no tests in {_FAULTS}")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if name.startswith("test_"):
            marks = getattr(function, "pytestmark", [])
            for case in itertools.product(*(zip(mark.kwargs["ids"], mark.args[1], strict=True) for mark in marks)):
                words = ", ".join([name.removeprefix("test_").replace("_", " "), *(label for label, _ in case)])
                values = {mark.args[0]: value for mark, (_, value) in zip(marks, case, strict=True)}
                yield words, _called(function, values)


def _called(function: Callable[..., None], values: dict[str, Any]) -> Callable[[pytest.MonkeyPatch], None]:
    plants = "monkeypatch" in inspect.signature(function).parameters
    return lambda patch: function(**values, **({"monkeypatch": patch} if plants else {}))


def _holds(test: Callable[[pytest.MonkeyPatch], None]) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        try:
            test(patch)
        except AssertionError:
            return False
    return True


if __name__ == "__main__":
    main()
