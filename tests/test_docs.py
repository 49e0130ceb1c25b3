"""The code on pages of docs/ runs, and prints what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("page", ["image-folders.md", "new-layer.md"])
def test_the_code_of_a_page_runs_in_order_and_prints_what_the_page_says(page: str, tmp_path: Path) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    code, printed = (re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("python", "text"))
    command = [sys.executable, "-W", "error", "-c", "\n".join(code)]
    cache = {"SORDINO_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | cache, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(printed)
