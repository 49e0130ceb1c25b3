"""What the README and the pages of docs/ show, runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
LOOP, FRAME, RESEARCH = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def run(example: str, folder: Path) -> str:
    command = [sys.executable, "-W", "error", "-c", example]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_loop_spends_what_it_was_given_and_no_more_when_run_again(tmp_path: Path) -> None:
    first = run(LOOP, tmp_path)
    assert 2.99 < float(first) <= 3
    assert (tmp_path / "runs/loop/ledger.json").is_file()


def test_the_loop_resumes_when_it_is_run_again_after_a_kill(tmp_path: Path) -> None:
    step = "    private.step(x, y)\n"
    assert step in LOOP
    killed = LOOP.replace(step, f"{step}    if private.drawn == 30:\n        __import__('os')._exit(9)\n")
    assert subprocess.run([sys.executable, "-c", killed], cwd=tmp_path, check=False).returncode == 9
    again = LOOP.replace("for x, y in", "print(private.drawn)\nfor x, y in")
    drawn, epsilon = run(again, tmp_path).split()
    assert 0 < int(drawn) <= 30
    assert 2.99 < float(epsilon) <= 3


def test_a_data_frame_is_learnt(tmp_path: Path) -> None:
    accuracy, epsilon = run(FRAME, tmp_path).split()
    assert float(accuracy) > 0.9
    assert 2.99 < float(epsilon) <= 3


def test_plans_and_events_compose(tmp_path: Path) -> None:
    printed = run(RESEARCH, tmp_path)
    assert 0.99 < float(printed.split()[-1]) <= 1


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120


def test_every_command_in_the_table_exists() -> None:
    from sordino.cli.main import app

    registered = {command.name or getattr(command.callback, "__name__", "") for command in app.registered_commands}
    known = registered | {group.name for group in app.registered_groups}
    rows = [line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith("| `sordino ")]
    assert {name for row in rows for name in re.findall(r"`sordino (\w+)", row.split("|")[1])} == known


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text(encoding="utf-8")):
        assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"
