"""`python -m sordino`, the same as the command `sordino`."""

from sordino.cli.main import run

run()
