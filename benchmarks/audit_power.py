"""How often audits catch planted faults, and how often they call correct code broken: under fresh keys.

`python -m benchmarks.audit_power` prints two tables for docs/auditing.md and writes them to
results/benchmarks/audit-power.json; `--quick` repeats the tests twice and writes nothing.
"""

import argparse
import importlib.util
import inspect
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import sordino
from sordino.audit import audit_plan, epsilon_lower_bound, one_run_lower_bound
from sordino.budget import Gaussian, cost

_ROOT = Path(__file__).parents[1]
_RECORD = _ROOT / "results" / "benchmarks" / "audit-power.json"
_TESTS = {"test_faults": "test_", "test_black_box": ("test_a_correct_mechanism", "test_broken_mechanisms")}
"""Files of tests, and how the names of those begin that plant a fault or audit correct code."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20, help="of every audit; 20 if not given")
    parser.add_argument("--quick", action="store_true", help="two repeats, no false alarms, no record")
    parser.add_argument("--only", default="", help="tests whose name has this word; nothing is written")
    given = parser.parse_args()
    repeats = 2 if given.quick else given.repeats
    power = {}
    print(f"| planted, or correct | as it should be, of {repeats} |\n|---|---|", flush=True)
    for name, test in _tests():
        if given.only in name:
            power[name] = sum(_holds(test) for _ in range(repeats))
            print(f"| {name} | {power[name]} |", flush=True)
    if not given.quick and not given.only:
        print("\n| verdict on correct code | false alarms | of | promised at most |\n|---|---|---|---|", flush=True)
        alarms = {}
        for name, (times, promised, alarm) in _CORRECT.items():
            alarms[name] = {"false_alarms": sum(alarm() for _ in range(times)), "of": times, "promised": promised}
            print(f"| {name} | {alarms[name]['false_alarms']} | {times} | {promised:.0%} |", flush=True)
        seconds = round(time.process_time())
        record = {"repeats": repeats, "power": power, "correct": alarms, "cpu_seconds": seconds}
        _RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\n{time.process_time():.0f} s of CPU time")


def _tests() -> Iterator[tuple[str, Callable[[pytest.MonkeyPatch], None]]]:
    """Every such test in every case, by name."""
    for file, begins in _TESTS.items():
        module = _module(file)
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith(begins):
                marks = getattr(function, "pytestmark", [])
                for case in itertools.product(*(zip(mark.kwargs["ids"], mark.args[1], strict=True) for mark in marks)):
                    words = ", ".join([name.removeprefix("test_").replace("_", " "), *(label for label, _ in case)])
                    values = {mark.args[0]: value for mark, (_, value) in zip(marks, case, strict=True)}
                    yield words, _called(function, values)


def _module(file: str) -> ModuleType:
    path = _ROOT / "tests" / "audit" / f"{file}.py"
    found = importlib.util.spec_from_file_location(file, path)
    if found is None or found.loader is None:
        raise FileNotFoundError(f"there are no tests in {path}")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


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


def _bound() -> bool:
    """A lower bound above the truth, at a δ where it comes near."""
    noise, truth = np.random.default_rng(), cost(Gaussian(1.0), 0.05).epsilon
    return epsilon_lower_bound(noise.normal(1, 1, 4000), noise.normal(0, 1, 4000), 0.05) > truth


def _one_run() -> bool:
    """Randomised response of every coin, which tells each with probability δ."""
    noise, truth, delta, canaries = np.random.default_rng(), 1.0, 1e-3, 300
    coins = noise.random(canaries) < 0.5
    told = np.where(noise.random(canaries) < math.exp(truth) / (1 + math.exp(truth)), coins, ~coins)
    scores = np.where(noise.random(canaries) < delta, 3.0 * coins - 1, told) + 1e-3 * noise.random(canaries)
    return one_run_lower_bound(scores, coins, delta) > truth


def _black_box() -> bool:
    """Randomised response of the one bit in which the neighbours differ, among normal numbers."""
    noise, truth = np.random.default_rng(), 0.5
    keep = math.exp(truth) / (1 + math.exp(truth))

    def train(bit: int) -> list[float]:
        return [float(bit if noise.random() < keep else 1 - bit), *noise.normal(size=4)]

    return sordino.audit(train, (0, 1), epsilon=truth, delta=0.0, runs=300).verdict == "violated"


def _plan() -> bool:
    """A whole audit of correct DP-SGD, all bounds and tests."""
    faults = _module("test_faults")
    return audit_plan(faults.PLAN, faults.DELTA, runs=1000).sound_verdict == "violated"


_CORRECT: dict[str, tuple[int, float, Callable[[], bool]]] = {
    "lower bound": (1000, 0.05, _bound),
    "one run": (500, 0.05, _one_run),
    "any training (black box)": (100, 0.05, _black_box),
    "a plan, all of its bounds and tests": (40, 0.07, _plan),
}
"""How often each is tried, how often it may err, and whether it did."""


if __name__ == "__main__":
    main()
