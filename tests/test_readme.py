"""What the README shows, runs."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
FIT, FEATURES, LOOP, OPACUS = EXAMPLES


def run(example: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", example]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_first_example_runs_as_printed(tmp_path: Path) -> None:
    first, again = (run(FIT, tmp_path) for _ in range(2))
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    assert first.stdout == again.stdout  # a finished run is loaded, not trained again
    assert (tmp_path / "runs" / "mine" / "model.safetensors").is_file()


def test_features_compose_as_printed(tmp_path: Path) -> None:
    done = run(FEATURES, tmp_path)
    assert done.returncode == 0, done.stderr
    assert 0.63 < float(done.stdout) < 0.64  # both moments at σ=8, δ=1e-5


def test_the_loop_runs_as_printed_and_spends_what_it_was_given(tmp_path: Path) -> None:
    done = run(LOOP, tmp_path)
    assert done.returncode == 0, done.stderr
    assert 2.99 < float(done.stdout) <= 3


def test_the_loop_beside_it_is_the_other_librarys() -> None:
    """Opacus is installed for benchmarks only: what it shows has to be Python, and ours has to be free of it."""
    compile(OPACUS, "README", "exec")
    assert "import PrivacyEngine" in OPACUS
    assert "opacus" not in FIT + LOOP


def test_every_command_in_the_table_exists() -> None:
    from sordino.cli.main import app

    known = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    shown = set(re.findall(r"^\| `sordino (\w+)", README.read_text(encoding="utf-8"), re.MULTILINE))
    assert shown == known
