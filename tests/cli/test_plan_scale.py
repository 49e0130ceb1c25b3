"""`sordino plan --curve` and `--scale`: the rooms' answers, printed and drawn; other mixtures get one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sordino.budget import PoissonGaussian, Repeated, cost

PLAN = ("plan", "--n", 10_000, "--delta", 1e-6)
NOISE = ("--batch", 1000, "--noise-multiplier", 4.0, "--steps", 20)


def test_a_curve_over_the_batch(sordino: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "batch.png"
    answer = sordino(*PLAN, *NOISE, "--curve", "batch", "--out", file, "--json").json
    assert (answer["points"][0], answer["points"][-1]) == (1000, 10_000)
    assert answer["lines"]["PLD"][0] == cost(Repeated(PoissonGaussian(0.1, 4.0), 20), 1e-6).pld
    assert answer["lines"]["PLD"][-1] == cost(Repeated(PoissonGaussian(1.0, 40.0), 20), 1e-6).pld
    assert file.read_bytes().startswith(b"\x89PNG")


def test_a_curve_over_delta_in_words(sordino: Callable[..., Any]) -> None:
    done = sordino(*PLAN, *NOISE, "--curve", "delta")
    assert done.code == 0
    assert "1e-06" in done.out
    assert "RDP, TF-Privacy's orders" in done.out


def test_a_curve_over_the_sampling_rate(sordino: Callable[..., Any]) -> None:
    answer = sordino(
        "plan", "--n", 50, "--delta", 1e-4, "--epsilon", 3, "--epochs", 2, "--curve", "sample-rate", "--json"
    )
    noise = answer.json["lines"]["PLD"]
    assert noise == sorted(noise)
    assert len(noise) == len(answer.json["points"])


def test_a_plan_at_scale(sordino: Callable[..., Any]) -> None:
    wish = ("--scale", "--epsilon", 3, "--epochs", 5, "--batch", 500, "--image", 32, "--model", "wrn-16-4")
    given = sordino(*PLAN, *wish, "--throughput", 100, "--devices", 2, "--memory", 2, "--price", 1.5, "--json").json
    assert given["hours"] == pytest.approx(5 * 10_000 / 200 / 3600)
    assert given["money"] == pytest.approx(3 * given["hours"])
    assert given["cost"]["epsilon"] <= 3
    assert given["work"]["parameters"] == 2_748_890
    words = sordino(*PLAN, *wish, "--device", "a100")
    assert words.code == 0
    assert "NVIDIA, A100 datasheet); not measured" in words.out
    assert "of up to" in words.out  # the device's memory is stated too


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--scale", "--epochs", 5), "--scale needs"),
        (("--scale", "--epsilon", 1, "--epochs", 5, "--steps", 3), "--scale plans"),
        (("--scale", "--epsilon", 1, "--epochs", 5, "--device", "a100", "--throughput", 3), "not both"),
        (("--scale", "--epsilon", 1, "--epochs", 5, "--device", "abacus"), "profiles: v100"),
        (("--scale", "--epsilon", 1, "--epochs", 5, "--model", "alexnet"), "models: resnet18"),
        (("--scale", "--recommend", "--epsilon", 1), "give one of"),
        (("--device", "a100"), "go with --scale"),
        (("--out", "x.png"), "goes with --curve"),
        (("--curve", "batch", "--epsilon", 1), "--curve batch takes"),
        (("--curve", "sample-rate", "--batch", 5, "--epsilon", 1, "--epochs", 1), "--curve sample-rate takes"),
        (("--curve", "delta", "--batch", 20_000, "--noise-multiplier", 1, "--steps", 1), "between 1 and --n"),
        (("--curve", "sideways"), "sideways"),
    ],
)
def test_mixtures_that_make_no_sense(sordino: Callable[..., Any], options: Any, words: str) -> None:
    outcome = sordino(*PLAN, *options)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert words in outcome.err
