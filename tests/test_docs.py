"""The code on pages of docs/ runs, and prints what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_OF_PEFT = "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("page", ["fine-tuning.md", "image-folders.md", "new-layer.md"])
def test_the_code_of_a_page_runs_in_order_and_prints_what_the_page_says(page: str, tmp_path: Path) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    code, printed = (re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("python", "text"))
    command = [sys.executable, "-W", "error", "-W", _OF_PEFT, "-c", "\n".join(code)]
    settings = os.environ | {"HF_HUB_OFFLINE": "1", "SORDINO_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(printed)
