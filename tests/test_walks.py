"""The way from a command to the noise is short, and comes back to no file (CONTRIBUTING tells the walks)."""

import sys
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import sordino
from sordino.cli.main import run as command
from sordino.mechanisms import gaussian

PACKAGE = Path(sordino.__file__).parent
OLD = Path(__file__).parent / "fixtures/version-0.1"


class Reached(BaseException):
    """The noise is about to be drawn."""


def walk(*words: object) -> list[tuple[str, str]]:
    """File and function of each of our frames, from the command to the first draw of training's noise."""
    frames: list[tuple[str, str]] = []

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code is gaussian.gaussian_noise.__code__:
            sys.setprofile(None)
            step: FrameType | None = frame
            while step is not None:
                path = Path(step.f_code.co_filename)
                if path.is_relative_to(PACKAGE):
                    frames.append((str(path.relative_to(PACKAGE)), step.f_code.co_qualname))
                step = step.f_back
            raise Reached

    sys.setprofile(watch)
    try:
        command([str(word) for word in words])
    except Reached:
        pass
    finally:
        sys.setprofile(None)
    frames.reverse()
    [start] = [number for number, (file, _) in enumerate(frames) if file == "cli/main.py"][-1:]
    return frames[start + 1 :]


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (("train", "digits", "--recipe", "linear", "--epsilon", 3, "--delta", 1e-4), 7),
        (
            (
                "tune",
                OLD / "table.csv",
                "--target",
                "c",
                "--schema",
                OLD / "schema.json",
                "--epsilon",
                3,
                "--delta",
                1e-3,
            ),
            9,
        ),
    ],
    ids=["train", "tune"],
)
def test_the_noise_is_near(words: tuple[object, ...], most: int, tmp_path: Path) -> None:
    frames = walk(*words, "--out", tmp_path / "out")
    visits = [file for file, _ in groupby(frames, key=lambda frame: frame[0])]
    assert len(frames) <= most, frames
    assert len(set(visits)) == len(visits), frames
