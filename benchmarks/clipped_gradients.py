"""`make bench`: time and memory of a private step, ours and the peers', as ratios to non-private SGD in one run.

Every contender's clipped sums are compared with a plain loop before it is timed. Times are taken in interleaved rounds,
so that a slow moment of the machine touches all alike, and the ratio is taken within a round. Peak memory is measured
in a process for each contender: what a step adds to the model and the batch. What a contender does once, before its
first step (compiling; checking and tuning), is measured apart.
"""

import argparse
import ctypes
import gc
import json
import math
import os
import re
import subprocess
import sys
import time
from copy import deepcopy
from pathlib import Path
from statistics import median
from typing import Any

THREADS = 2
if hasattr(os, "sched_setaffinity"):  # before torch and XLA count the cores
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:THREADS]))

import torch  # noqa: E402

from benchmarks.contenders import BASELINES, CONTENDERS, OURS, Contender, Unsupported  # noqa: E402
from benchmarks.report import MAIN, machine, rendered, table  # noqa: E402
from benchmarks.rows import ROWS, Reference, Row, reference, smooth  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
RECORD, PAGE = ROOT / MAIN, ROOT / "docs/benchmarks.md"
L2_CLIP, TOLERANCE, CHECKED_EXAMPLES = 1.0, 1e-4, 6
SLOW, SLOW_ROUNDS, LEAST_ROUNDS = 8, 3, 5  # a contender beyond 8× non-private is timed in three rounds only
HOPELESS = 30  # beyond 30×, one step is enough, and gigabytes that come and go would disturb the others' rounds
SHORTEST = 0.05  # seconds: faster steps are repeated within a round

Cell = dict[str, Any]


def check(row: Row, name: str, exact: Reference) -> float | None:
    """The deviation of this contender's clipped sums from a plain loop; None for non-private training."""
    batch = row.batch(CHECKED_EXAMPLES)
    contender = CONTENDERS[name](row, smooth(row.model()), exact.l2_clip)
    sums = contender.sums(contender.prepare(batch))
    if sums is None:
        return None
    deviation = exact.deviation(sums)
    if not deviation <= TOLERANCE:
        raise ArithmeticError(f"its clipped sums are off by {deviation:.1e}")
    return deviation


def time_row(row: Row, names: list[str], batch_size: int, rounds: int, seconds: float) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    model, batch = row.model(), row.batch(batch_size)
    exact = reference(smooth(row.model()), row.batch(CHECKED_EXAMPLES))
    running: dict[str, tuple[Contender, Any]] = {}
    firsts: dict[str, float] = {}
    for name in names:
        try:
            cells[name] = {"deviation": check(row, name, exact)}
            contender = CONTENDERS[name](row, deepcopy(model), L2_CLIP)
            start = time.perf_counter()
            prepared = contender.prepare(batch)
            cells[name]["preparation_seconds"] = round(time.perf_counter() - start, 3)
            elapsed(contender, prepared, 1)
            firsts[name] = elapsed(contender, prepared, 1)
            running[name] = contender, prepared
        except Exception as error:
            cells[name] = {"reason": reason(error)}
    fastest = min(firsts[name] for name in BASELINES if name in firsts)
    times: dict[str, list[float]] = {name: [] for name in running}
    for name in [name for name in running if firsts[name] > HOPELESS * fastest]:
        times[name].append(firsts[name])
        del running[name]
    order, start = list(running), time.perf_counter()
    for index in range(rounds):
        if index >= LEAST_ROUNDS and time.perf_counter() - start > seconds:
            break
        for name in order:
            if index >= SLOW_ROUNDS and firsts[name] > SLOW * fastest:
                continue
            time.sleep(0.01)  # the last contender's idle threads stop spinning
            repeats = 1 if rounds == 1 else max(1, math.ceil(SHORTEST / firsts[name]))
            times[name].append(elapsed(*running[name], repeats))
        order = order[1:] + order[:1]
    baseline = min((name for name in BASELINES if name in times), key=lambda name: median(times[name]))
    for name, taken in times.items():
        bases = times[baseline] if name in running else [median(times[baseline])]
        ratios = sorted(mine / base for mine, base in zip(taken, bases, strict=False))
        cells[name] |= {
            "milliseconds": round(1e3 * median(taken), 3),
            "ratio": round(median(ratios), 3),
            "ratio_range": [round(ratios[0], 3), round(ratios[-1], 3)],
            "rounds": len(taken),
        }
    cells[baseline]["baseline"] = True
    return cells


def elapsed(contender: Contender, batch: Any, repeats: int) -> float:
    gc.collect()
    start = time.perf_counter()
    for _ in range(repeats):
        contender.step(batch)
    return (time.perf_counter() - start) / repeats


def reason(error: Exception) -> str:
    """One line without anything of this machine."""
    if isinstance(error, ModuleNotFoundError):
        return f"{(error.name or 'a module').split('.')[0]} is not installed"
    text = " ".join(str(error).split())
    text = re.sub(r"/[\w./-]+/", "", text)[:160]
    return text if isinstance(error, Unsupported | ArithmeticError) else f"{type(error).__name__}: {text}"


def memory_of(row: Row, name: str, batch_size: int) -> tuple[int, int]:
    """Bytes by which the peak of resident memory rises in the preparation, and then in three steps."""
    model, batch = row.model(), row.batch(batch_size)
    warm = CONTENDERS[name](row, deepcopy(model), L2_CLIP)  # loads libraries and kernels and starts threads
    warm.step(warm.prepare(row.batch(CHECKED_EXAMPLES)))
    del warm
    contender = CONTENDERS[name](row, model, L2_CLIP)
    before = resident()
    prepared = contender.prepare(batch)
    preparation = status("VmHWM") - before
    del batch
    before = resident()
    for _ in range(3):
        contender.step(prepared)
    return preparation, status("VmHWM") - before


def resident() -> int:
    """Resident memory without what is free already; its peak is counted anew from here."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return status("VmRSS")


def status(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def measure_memory(key: str, name: str, batch_size: int) -> Cell:
    command = [sys.executable, "-m", "benchmarks.clipped_gradients", "--memory-of", key, name, str(batch_size)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        return {}
    preparation, steps = done.stdout.split()[-2:]
    return {"preparation_bytes": int(preparation), "peak_bytes": int(steps)}


def updated(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The record with rows measured anew, or for the first time, on the same machine and with the same versions."""
    same = ("processor", "threads", "python", "versions", "tolerance")
    if any(before[name] != now[name] for name in same):
        sys.exit("the record is of another machine or other versions: run all rows")
    known = {row["title"]: row for row in before["rows"] + now["rows"]}
    return now | {"rows": [known[row.title] for row in ROWS.values() if row.title in known]}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.clipped_gradients", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help=", ".join(ROWS))
    whom = "; ".join(name for name in CONTENDERS if name not in BASELINES) + "; non-private training is always timed"
    everyone = list(CONTENDERS)
    parser.add_argument("--contenders", nargs="+", choices=everyone, default=everyone, metavar="NAME", help=whom)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=120.0, help="after five rounds, no more of a row beyond this")
    parser.add_argument("--no-memory", action="store_true", help="times only")
    parser.add_argument("--quick", action="store_true", help="tiny batches, one round, no memory: does it run?")
    parser.add_argument("--record", type=Path, help="write the record here; by default only a complete run is recorded")
    parser.add_argument("--update", action="store_true", help="put these rows in the place of the recorded ones")
    parser.add_argument("--memory-of", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    torch.set_num_threads(THREADS)
    arguments = parse()
    if arguments.memory_of:
        key, name, size = arguments.memory_of
        print(*memory_of(ROWS[key], name, int(size)))
        return
    names = [name for name in CONTENDERS if name in BASELINES or name in arguments.contenders]
    record: dict[str, Any] = {**machine(THREADS), "tolerance": TOLERANCE, "rows": []}
    for key in arguments.rows:
        row = ROWS[key]
        size = 8 if arguments.quick else row.batch_size
        rounds = 1 if arguments.quick else arguments.rounds
        cells = time_row(row, names, size, rounds, arguments.seconds)
        for name, cell in cells.items():
            if "ratio" in cell and not (arguments.quick or arguments.no_memory):
                cell |= measure_memory(key, name, size)
        told = {"title": row.title, "batch_size": size, "goal": row.goal, "date": record["date"]}
        record["rows"].append(told | {"contenders": cells})
        print(table(record["rows"][-1]), flush=True)
    everyone = len(names) == len(CONTENDERS) and not (arguments.quick or arguments.no_memory)
    path = arguments.record
    if path is None and everyone and (arguments.update or len(arguments.rows) == len(ROWS)):
        path = RECORD
        if arguments.update:
            record = updated(json.loads(RECORD.read_text(encoding="utf-8")), record)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if path == RECORD:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(rendered(record), encoding="utf-8")
    if any(OURS in row["contenders"] and "reason" in row["contenders"][OURS] for row in record["rows"]):
        sys.exit("sordino could not run, or gave other sums than a plain loop")


if __name__ == "__main__":
    main()
