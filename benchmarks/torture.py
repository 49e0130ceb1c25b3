"""Kill, starve and race whatever spends, at random moments, and check what must hold whatever happens.

    python -m benchmarks.torture [--quick] [--only NAME] [--kills N] [--seed N]

Each command is killed (KILL, TERM, INT) and started again until it ends, and then runs on disks that fill up. Checked:
a charge covers every draw (no undercount), noise meets the same numbers only (no noise reused), no target is exceeded
(no overspend), and results and ledger are those of a run that was left alone (bit for bit, where a seed is given).
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
WAIT = 300
SEEDED = ("--seed", "11")
QUICK_TRIALS = ("--mean-trials", "2", "--epochs", "2", "--learning-rates", "1")
TABLE = ("table.csv", "--schema", "schema.json", "--target", "rich", "--epsilon", "2", "--delta", "1e-4")
SCHEMA = {
    "columns": {"age": {"bounds": [0, 100]}, "work": {"categories": ["a", "b", "c"]}},
    "target": {"rich": {"categories": ["no", "yes"]}},
}
KEYS = {"key.json", "score.json", "steps.json", "search.json", "normalisation.json", "trials"}
"""What no finished folder holds in its private part."""


@dataclass(frozen=True)
class Victim:
    """Something that spends in a folder, and can be started again there."""

    name: str
    arguments: tuple[str, ...]
    """Of the command line; none for a training by `fit`, under a secret key."""

    @property
    def seeded(self) -> bool:
        return SEEDED[0] in self.arguments

    @property
    def steps(self) -> bool:
        """Whether it trains step by step, and does little else."""
        return not self.arguments or self.arguments[0] == "train"


VICTIMS = (
    Victim("fit", ()),
    Victim("train", ("train", "digits", "--epsilon", "3", "--delta", "1e-4", *SEEDED)),
    Victim("images", ("train", "images", "--recipe", "linear", "--epsilon", "20", "--delta", "1e-3", *SEEDED)),
    Victim("tune", ("tune", *TABLE, *QUICK_TRIALS, *SEEDED)),
    Victim("search", ("search", *TABLE, *QUICK_TRIALS, *SEEDED)),
    Victim("search in workers", ("search", *TABLE, *QUICK_TRIALS, *SEEDED, "--workers", "2")),
    Victim("advise", ("advise", *TABLE, "--carry-out")),
    Victim(
        "crossover",
        ("crossover", *TABLE, "--private", "--models", "logistic-numeric,logistic", "--points", "2", "--repeats", "2"),
    ),
)
SELECT = ("select", *TABLE)


class Started:
    """A victim at work in a process of its own, forked from one that has imported everything once."""

    def __init__(self, victim: Victim, out: Path, most: int | None = None) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["sordino.cli.main", "sordino.training.train"])
        self.errors, self.log = (out.with_name(f"{out.name}.{kind}") for kind in ("errors", "log"))
        self._process = context.Process(target=_work, args=(victim, out, self.errors, self.log, most))
        self._process.start()

    def ended(self, within: float = WAIT) -> int | None:
        """The exit code; None if it is still at work."""
        self._process.join(within)
        return self._process.exitcode

    def kill(self, how: signal.Signals) -> int:
        if self._process.exitcode is None and self._process.pid is not None:
            os.kill(self._process.pid, how)
        code = self.ended()
        if code is None:
            self._process.kill()
            raise AssertionError(f"{how.name} did not end it within {WAIT} s")
        return code


def _work(victim: Victim, out: Path, errors: Path, log: Path, most: int | None) -> None:
    """In the child."""
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
    _watch(log)
    if most is not None:  # a file that grows beyond is an error, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    if not victim.arguments:
        try:
            _fit(out)
        except (OSError, ValueError) as problem:
            sys.exit(f"{problem}")
        return
    from sordino.cli.main import run

    run([*victim.arguments, "--out", str(out)])


def _watch(log: Path) -> None:
    """Note every release before it happens: which noise it takes, and what it is added to."""
    from sordino.runs import WorkflowSteps
    from sordino.training import dpsgd

    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    release, drawn = dpsgd.release, WorkflowSteps._drawn

    def note(name: str, content: bytes) -> None:
        os.write(file, f"{name}\t{hashlib.sha256(content).hexdigest()}\n".encode())

    def released(clipped: Any, l2_clip: float, plan: Any, streams: Any, step: int) -> Any:
        key = hashlib.sha256(str(streams._key).encode()).hexdigest()[:16]
        sums = b"".join(clipped.sums[name].numpy().tobytes() for name in sorted(clipped.sums))
        note(f"step {key} {step}", sums + repr(l2_clip).encode())
        return release(clipped, l2_clip, plan, streams, step)

    def drawn_once(self: Any, *arguments: Any) -> Any:
        told, entry = drawn(self, *arguments)
        note(f"entry {entry}", pickle.dumps(told))
        return told, entry

    dpsgd.release, WorkflowSteps._drawn = released, drawn_once  # type: ignore[method-assign]


def _fit(out: Path) -> None:
    import numpy as np

    from sordino.budget import Ledger
    from sordino.data.samplers import PoissonSampler
    from sordino.runs import Run
    from sordino.training import Plan, fit
    from sordino.training.linear import LinearClassifier
    from sordino.training.optimisers import SGD

    rng, run = np.random.default_rng(0), Run.at(out)
    records = rng.normal(size=(2000, 50)).astype(np.float32), rng.integers(0, 5, 2000)
    plan = Plan(PoissonSampler(2000, 400), l2_clip=1.0, noise_multiplier=8.0, steps=200)
    ledger = Ledger(3.0, 1e-5, path=run.ledger)
    fit(plan, LinearClassifier(50, 5), records, optimiser=SGD(0.1), ledger=ledger, run=run)


# What must hold


def entries(folder: Path, seeded: bool) -> list[Any]:
    """The ledger's, but for their times and, where keys are secret, names; refused if the target is exceeded."""
    from sordino.budget import Ledger

    ledger = Ledger.open(folder / "ledger.json")
    target = ledger.terms.target_epsilon
    assert target is None or ledger.cost(reserved=True).epsilon <= target, f"{folder}: overspent"
    names = {} if seeded else {"run": ""}
    return [replace(entry, when="-", **names) for entry in ledger.entries]


def check_log(log: Path, folder: Path, steps: bool) -> None:
    """No noise for two sums; with `steps`, no more of them than the ledger holds, also while the run is unfinished."""
    from sordino.budget import Ledger

    seen: dict[str, set[str]] = {}
    for line in log.read_text().splitlines() if log.exists() else ():
        name, _, content = line.partition("\t")
        seen.setdefault(name, set()).add(content)
    for name, contents in seen.items():
        assert len(contents) == 1, f"{folder}: {name} was released with the same noise on {len(contents)} inputs"
    if steps and seen:
        paid = sum(entry.count for entry in Ledger.open(folder / "ledger.json").entries)
        assert len(seen) <= paid, f"{folder}: {len(seen)} draws, {paid} charged"


def check_like(folder: Path, whole: Path, victim: Victim) -> None:
    assert entries(folder, victim.seeded) == entries(whole, victim.seeded), f"{folder}: another ledger"
    for name in ("model.safetensors", "search.json", "score.json") if victim.seeded else ():
        if (whole / name).exists():
            assert (folder / name).read_bytes() == (whole / name).read_bytes(), f"{folder}: another {name}"
    left = {path.name for path in (folder / "private").iterdir()}
    assert not left & KEYS, f"{folder}: {left & KEYS} outlived the run"


def finished(started: Started, within: float) -> bool:
    """Whether it came to its end within so many seconds: all is well, or it was finished before."""
    code = started.ended(within)
    if code is None:
        return False
    errors = started.errors.read_text()
    assert code == 0 or "is finished" in errors, f"exit code {code}: {errors}"
    return True


# What is done to them


def kill(victim: Victim, place: Path, kills: int, chance: random.Random) -> None:
    """Kill it that often, in as many folders as that takes, each of which is brought to its end."""
    whole = place / "whole"
    assert finished(Started(victim, whole), WAIT)
    shutil.rmtree(whole)  # the first start takes longer than any other
    began = time.monotonic()
    assert finished(Started(victim, whole), WAIT)
    duration, left, number = time.monotonic() - began, kills, 0
    while left:
        number += 1
        broken = place / f"broken-{number}"
        while left:
            started = Started(victim, broken)
            if finished(started, chance.uniform(0, duration)):
                break
            started.kill(chance.choice(SIGNALS))
            left -= 1
            check_log(started.log, broken, steps=victim.steps)
        started = Started(victim, broken)
        assert finished(started, WAIT)
        check_log(started.log, broken, steps=victim.steps)
        check_like(broken, whole, victim)


def starve(victim: Victim, place: Path, times: int, chance: random.Random) -> None:
    """Run it on full disks: each time one line and exit code 2 at most, and with room again the same end."""
    whole = place / "whole"
    assert whole.exists() or finished(Started(victim, whole), WAIT)
    sizes = [path.stat().st_size for path in whole.rglob("*") if path.is_file()]
    for number in range(times):
        with full_disk(place / f"disk-{number}", chance.randrange(1, sum(sizes))) as (disk, most):
            started = Started(victim, disk / "run", most)
            code, errors = started.ended(), ""
            if started.errors.exists():
                errors = started.errors.read_text()
            assert code is not None, "a full disk is waited for"
            assert "Traceback" not in errors, errors
            broken = place / f"full-{number}"
            if (disk / "run").exists():
                shutil.copytree(disk / "run", broken)
            check_log(started.log, broken, steps=victim.steps)
        assert finished(Started(victim, broken), WAIT)
        check_like(broken, whole, victim)


@contextmanager
def full_disk(place: Path, room: int) -> Iterator[tuple[Path, int | None]]:
    """A disk with so many bytes of room; without the right to mount one, files may be that long."""
    place.mkdir()
    size = max(4096 * 8, room // 4096 * 4096)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        yield place, room
        return
    try:
        yield place, None
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def kill_selections(place: Path, kills: int, chance: random.Random) -> None:
    """`select` is charged anew each time: whatever it shows is in the one ledger, which is never overspent."""
    first, little = place / "selection-0", Victim("select", (*SELECT, "--share", "0.02"))
    assert finished(Started(little, first), WAIT)
    again = replace(little, arguments=(*little.arguments, "--ledger", str(first / "ledger.json")))
    began = time.monotonic()
    assert finished(Started(again, place / "selection-1"), WAIT)
    duration = time.monotonic() - began
    for number in range(2, 2 + kills):
        started = Started(again, place / f"selection-{number}")
        if started.ended(chance.uniform(0, duration)) is None:
            started.kill(chance.choice(SIGNALS))
    shown, paid = len(list(place.glob("selection-*/selection.json"))), len(entries(first, seeded=False))
    assert 2 <= shown <= paid, f"{shown} selections were shown, {paid} are charged"


def race(place: Path, spenders: int, spends: int) -> None:
    """Several processes spend from one ledger at once: all that was granted is in it, and no more than its target."""
    from sordino.budget import Gaussian, Ledger

    path = place / "ledger.json"
    Ledger(3.0, 1e-5, path=path, planned=[(Gaussian(20.0), "the plan")])
    context = multiprocessing.get_context("forkserver")
    with context.Pool(spenders) as pool:
        granted = sum(pool.starmap(_spend, [(path, spends)] * spenders, chunksize=1))
    assert len(entries(place, seeded=False)) == granted, f"{granted} spends were granted, others are in the ledger"


def _spend(path: Path, times: int) -> int:
    from sordino.budget import BudgetExceeded, Gaussian, Ledger

    ledger, granted = Ledger.open(path), 0
    for number in range(times):
        try:
            ledger.spend(Gaussian(20.0 + number), f"spend {number} of {os.getpid()}")
            granted += 1
        except BudgetExceeded:
            pass
    return granted


def make_table(place: Path) -> None:
    chance = random.Random(0)
    ages = [chance.uniform(0, 100) for _ in range(300)]
    lines = [f"{age:.2f},{chance.choice('abc')},{'yes' if age > 50 else 'no'}" for age in ages]
    (place / "table.csv").write_text("\n".join(["age,work,rich", *lines]) + "\n")
    (place / "schema.json").write_text(json.dumps(SCHEMA))


def make_images(place: Path) -> None:
    import numpy as np
    from PIL import Image

    for number in range(600):
        folder, rng = place / "images" / "ab"[number % 2], np.random.default_rng(number)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (9, 30 + number % 2), np.uint8)).save(folder / f"{number}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few kills of a training by `fit`, and a race")
    parser.add_argument("--only", help="one of: " + ", ".join([*(each.name for each in VICTIMS), "select", "race"]))
    parser.add_argument("--kills", type=int, default=60, help="of each command")
    parser.add_argument("--disks", type=int, default=3, help="that fill up, for each command")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="of the moments; printed")
    asked = parser.parse_args()
    kills, disks, only = (6, 2, "fit") if asked.quick and not asked.only else (asked.kills, asked.disks, asked.only)
    os.environ["OMP_NUM_THREADS"] = "1"
    print(f"moments drawn with --seed {asked.seed}", flush=True)

    def within(name: str, work: Callable[[Path], None]) -> None:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="torture-") as folder:
            place = Path(folder)
            os.chdir(place)
            make_table(place)
            make_images(place)
            work(place)
            os.chdir("/")
        print(f"{name}: held, in {time.monotonic() - began:.0f} s", flush=True)

    for victim in VICTIMS:
        if only in (None, victim.name):
            chance = random.Random(f"{asked.seed} {victim.name}")

            def work(place: Path, victim: Victim = victim, chance: random.Random = chance) -> None:
                kill(victim, place, kills, chance)
                starve(victim, place, disks, chance)

            within(f"{victim.name}, {kills} kills and {disks} full disks", work)
    if only in (None, "select"):
        within("select", lambda place: kill_selections(place, kills, random.Random(asked.seed)))
    if only in (None, "race") or asked.quick:
        spenders, spends = (3, 4) if asked.quick else (8, 30)
        within(f"{spenders * spends} racing spends", lambda place: race(place, spenders, spends))


if __name__ == "__main__":
    main()
