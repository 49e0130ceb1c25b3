"""What the README shows, runs."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_python_example_runs_as_printed(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    command = [sys.executable, "-W", "error", "-c", example]
    first, again = (subprocess.run(command, cwd=tmp_path, capture_output=True, text=True) for _ in range(2))
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    assert first.stdout == again.stdout  # a finished run is loaded, not trained again
    assert (tmp_path / "runs" / "mine" / "model.safetensors").is_file()


def test_every_command_in_the_table_exists() -> None:
    from sordino.cli.main import app

    known = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    shown = set(re.findall(r"^\| `sordino (\w+)", README.read_text(encoding="utf-8"), re.MULTILINE))
    assert shown == known
