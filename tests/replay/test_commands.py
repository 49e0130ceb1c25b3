"""The commands that read private records, on a table and a neighbour of it, with all noisy outputs replayed."""

import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from sordino.cli.main import run
from sordino.data import Split, set_aside

from .recorder import Recorder, Release, entries_of, watching

SCHEMA = {
    "columns": {
        "age": {"bounds": [0, 100]},
        "size": {"bounds": [-0.01, 0.01]},
        "code": {"categories": ["a", "b", "c", "never"]},
    },
    "target": {"rich": {"categories": ["no", "yes"]}},
}
ROWS = 200
BUDGET = ("--epsilon", 4, "--delta", 1e-3, "--target", "rich")
Row = tuple[object, ...]
OUTLIER, RARE, ZEROS = ("1e308", "-1e308", "a", "yes"), (50, 0, "never", "no"), (0, 0, "a", "no")
NEIGHBOURS: dict[str, tuple[Row, Row]] = {"outlier and zeros": (OUTLIER, ZEROS), "rare and outlier": (RARE, OUTLIER)}
"""A record of the part that trains and one of the part that scores, replaced: of each mechanism's records, one."""


def rows() -> list[Row]:
    rng = np.random.default_rng(3)
    numbers = zip(rng.uniform(0, 100, ROWS), rng.uniform(-0.01, 0.01, ROWS), rng.integers(0, 3, ROWS), strict=True)
    return [(f"{a:.3f}", f"{b:.5f}", "abc"[c], "yes" if a + 2000 * b > 50 else "no") for a, b, c in numbers]


def write(folder: Path, records: list[Row]) -> None:
    folder.mkdir()
    lines = [",".join(map(str, row)) for row in [("age", "size", "code", "rich"), *records]]
    (folder / "table.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "schema.json").write_text(json.dumps(SCHEMA), encoding="utf-8")


@dataclass
class Seen:
    """All that anybody may see of a run."""

    code: int
    out: str
    err: str
    files: dict[str, bytes]


def seen(folder: Path, arguments: tuple[object, ...]) -> Seen:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as leaving:
        run([str(each) for each in arguments])
    kept = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "private" not in path.relative_to(folder).parts and path.name != "table.csv"
    }
    return Seen(int(leaving.value.code or 0), out.getvalue(), err.getvalue(), kept)


def differences(one: Seen, other: Seen) -> list[str]:
    found = [f"{name} differs" for name in ("code", "out", "err") if getattr(one, name) != getattr(other, name)]
    names = sorted(one.files.keys() ^ other.files.keys())
    found += [f"{name} is there only once" for name in names]
    return found + [
        f"{name} differs" for name in one.files if one.files[name] != other.files.get(name, one.files[name])
    ]


Command = Callable[[Path], tuple[object, ...]]


def played(folder: Path, command: Command, records: list[Row], recorder: Recorder) -> Seen:
    """One run, always in the same place: paths are shown, too."""
    shutil.rmtree(folder, ignore_errors=True)
    write(folder, records)
    recorder.account = entries_of(folder / "out" / "ledger.json")
    with watching(recorder):
        return seen(folder, command(folder))


def on_table(*words: object) -> Command:
    name, *options = words
    return lambda folder: (
        *(name, folder / "table.csv", *BUDGET, "--schema", folder / "schema.json", "--out", folder / "out"),
        *options,
    )


COMMANDS: dict[str, tuple[Command, set[str]]] = {
    "select by tables": (on_table("select", "--private-bounds", 0.3), {"draw_quantile", "PairTables"}),
    "select by a genetic search": (on_table("select", "--method", "cfs-ga"), {"PairTables"}),
    "select by trainings": (on_table("select", "--method", "pafs", "--trials", 4), {"fit_many", "subset scores"}),
    "advise": (on_table("advise", "--carry-out"), {"fit_logistic", "noisy_accuracy"}),
    "tune": (
        on_table("tune", "--hidden", "3", "--epochs", 2, "--mean-trials", 3, "--learning-rates", "0.5,1"),
        {"release", "uncharged_accuracy"},
    ),
    "search": (
        on_table("search", "--epochs", 1, "--mean-trials", 2, "--learning-rates", "0.5,1", "--json"),
        {"release", "uncharged_accuracy"},
    ),
    "search in generations": (
        on_table("search", "--epochs", 1, "--method", "paas", "--generations", 2, "--population", 2),
        {"release", "uncharged_accuracy"},
    ),
    "crossover": (
        on_table("crossover", "--private", "--models", "logistic,linear", "--points", 2, "--repeats", 2),
        {"release", "fit_logistic", "noisy_accuracy"},
    ),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Seen, list[Release]]]:
    """What the first run of a command showed, and all its releases."""
    known: dict[str, tuple[Path, Seen, list[Release]]] = {}

    def first(name: str) -> tuple[Path, Seen, list[Release]]:
        if name not in known:
            command, mechanisms = COMMANDS[name]
            folder, recorder = tmp_path_factory.mktemp("replay") / "work", Recorder()
            shown = played(folder, command, rows(), recorder)
            assert shown.code == 0, shown.err
            assert {release.name for release in recorder.releases} >= mechanisms
            assert recorder.finish() == []
            known[name] = folder, shown, recorder.releases
        return known[name]

    return first


@pytest.mark.parametrize("worst", NEIGHBOURS)
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_but_noisy_outputs_depends_on_a_record(
    recorded: Callable[[str], tuple[Path, Seen, list[Release]]], name: str, worst: str
) -> None:
    folder, before, releases = recorded(name)
    records = rows()
    for place, row in zip(one_of_each_part(), NEIGHBOURS[worst], strict=True):
        records[place] = row
    recorder = Recorder(releases, apart=2)
    now = played(folder, COMMANDS[name][0], records, recorder)
    assert recorder.finish() == []
    assert differences(before, now) == []


def one_of_each_part() -> tuple[int, int]:
    numbered = Split(np.arange(ROWS)[:, None], np.arange(ROWS))
    train, validation = set_aside(numbered)
    return int(train.y[0]), int(validation.y[0])
