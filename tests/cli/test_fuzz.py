"""Whatever is typed or lies in a folder: an exit code and words, never a traceback."""

import contextlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sordino.cli.main import run

COMMANDS = ("plan", "train", "select", "resume", "predict", "ledger", "audit", "data", "list", "get", "path")
OPTIONS = ("--n", "--batch", "--delta", "--epsilon", "--epochs", "--steps", "--noise-multiplier", "--accountant")
MORE_OPTIONS = (
    "--adjacency",
    "--conversion",
    "--json",
    "--seed",
    "--out",
    "--recipe",
    "--canaries",
    "--runs",
    "--version",
    "--help",
    "--",
)
NUMBERS = ("0", "1", "-1", "10", "1e-5", "3", "nan", "inf", "-inf", "1e308", "1e-308", "100", "0.5", "")
WORDS = ("pld", "rdp", "rdp-classic", "old", "replace-one", "add-remove", "linear", "no such thing", "\x00", "é", "🎻")
# Nothing here trains for long: no real dataset's name is among the words.
arguments = st.lists(st.sampled_from(COMMANDS + OPTIONS + MORE_OPTIONS + NUMBERS + WORDS), max_size=12)
# Plans whose sizes make sense, so that the wild numbers reach the accountants.
plans = st.tuples(
    st.sampled_from(["100", "60000", "1e3", "0"]),
    st.sampled_from(["1", "100", "4096"]),
    st.sampled_from(["1e-5", "1e-300", "0.9", "nan"]),
    st.lists(st.tuples(st.sampled_from(OPTIONS[3:7]), st.sampled_from(NUMBERS)), min_size=2, max_size=3),
)


def call(words: list[str]) -> int:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as leaving:
        run(words)
    assert "Traceback" not in out.getvalue() + err.getvalue()
    if leaving.value.code == 2:  # says what is wrong, or, given nothing to do, how it is used
        assert "sordino: " in err.getvalue() or "Usage: " in out.getvalue()
    return int(leaving.value.code or 0)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=arguments)
@example(words=["train", "\x00", "--epsilon", "1", "--delta", "1e-5"])
@example(words=["ledger", "\x00"])
@example(words=["predict", "\x00", "\x00"])
def test_any_arguments(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(words) in (0, 2)


@settings(max_examples=60, deadline=None)
@given(plans)
def test_any_numbers_in_a_plan(plan: tuple[str, str, str, list[tuple[str, str]]]) -> None:
    n, batch, delta, options = plan
    words = ["plan", "--n", n, "--batch", batch, "--delta", delta]
    assert call([*words, *(word for option in dict(options).items() for word in option)]) in (0, 2)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
run_files = st.fixed_dictionaries(
    {"status": st.sampled_from(["finished", "training", 3])},
    optional={
        "request": json_values | st.fixed_dictionaries({"dataset": json_values, "recipe": json_values}),
        "plan": json_values,
        "facts": json_values,
    },
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=json_values | run_files | st.binary(max_size=40))
def test_any_run_folder(content: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    folder.mkdir(exist_ok=True)
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    for name in ("run.json", "ledger.json", "model.safetensors"):
        (folder / name).write_bytes(data)
    examples = tmp_path / "x.csv"
    examples.write_text("1,2\n3,4\n")
    for words in (
        ["ledger", str(folder)],
        ["predict", str(folder), str(examples)],
        ["resume", str(folder)],
        ["audit", str(folder)],
    ):
        assert call(words) == 2


def places(document: object, way: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """The way to every value inside a JSON document."""
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [way] * bool(way) + [place for key, value in items for place in places(value, (*way, key))]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_to_a_real_run(
    data: st.DataObject, finished_digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    document = json.loads((finished_digits / "run.json").read_text())
    *way, last = data.draw(st.sampled_from(places(document)))
    inner = document
    for key in way:
        inner = inner[key]
    inner[last] = data.draw(json_values.filter(lambda value: value != inner[last]))
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(finished_digits, folder)
    (folder / "run.json").write_text(json.dumps(document))
    examples = tmp_path / "x.npy"
    np.save(examples, np.zeros((2, 8, 8), np.uint8))
    for words in (
        ["ledger", str(folder)],
        ["predict", str(folder), str(examples)],
        ["resume", str(folder)],
        ["audit", str(folder)],
    ):
        assert call(words) == 2
