"""`sordino plan`: the third of three, as published."""

from collections.abc import Callable
from typing import Any

import pytest

from sordino.budget import calibration

SETTING = ("plan", "--n", 50_000, "--batch", 1024, "--delta", 1e-5)


def test_epsilon_from_noise_and_steps(sordino: Callable[..., Any]) -> None:
    answer = sordino(*SETTING, "--noise-multiplier", 1.54, "--steps", 1440, "--json").json
    assert answer["epsilon"] == answer["epsilon_pld"] == pytest.approx(2.365, rel=5e-3)
    assert answer["epsilon_rdp"] == pytest.approx(2.585, rel=5e-3)
    assert (answer["accountant"], answer["steps"], answer["sample_rate"]) == ("pld", 1440, 0.02048)
    assert (answer["delta"], answer["noise_multiplier"]) == (1e-5, 1.54)


@pytest.mark.parametrize(("accountant", "conversion", "epsilon"), [("rdp", "new", 2.585), ("rdp-classic", "old", 3.0)])
def test_other_accountants(sordino: Callable[..., Any], accountant: str, conversion: str, epsilon: float) -> None:
    options = ("--accountant", accountant, "--conversion", conversion)
    answer = sordino(*SETTING, "--noise-multiplier", 1.54, "--steps", 1440, *options, "--json").json
    assert answer["epsilon"] == pytest.approx(epsilon, rel=5e-3)
    assert answer["accountant"] == accountant


def test_noise_from_epsilon_and_epochs_and_back(sordino: Callable[..., Any]) -> None:
    solved = sordino(*SETTING, "--epsilon", 3, "--epochs", 30, "--json").json
    assert 2.997 <= solved["epsilon"] <= 3
    back = sordino(*SETTING, "--epsilon", 3, "--noise-multiplier", solved["noise_multiplier"], "--json").json
    assert back["steps"] >= solved["steps"]
    assert back["steps"] == pytest.approx(solved["steps"], rel=2e-3)


def test_poisson_under_replace_one_has_pld_only(sordino: Callable[..., Any]) -> None:
    options = ("--noise-multiplier", 4, "--steps", 100, "--adjacency", "replace-one")
    answer = sordino(*SETTING, *options, "--json").json
    assert answer["epsilon_rdp"] is None
    zero_out = sordino(*SETTING, "--noise-multiplier", 4, "--steps", 100, "--json").json
    assert answer["epsilon"] > zero_out["epsilon"]
    refused = sordino(*SETTING, *options, "--accountant", "rdp")
    assert (refused.code, refused.err.count("\n")) == (2, 1)


def test_words_for_people(sordino: Callable[..., Any]) -> None:
    outcome = sordino(*SETTING, "--noise-multiplier", 1.54, "--epochs", 30)
    assert "ε                 2.38" in outcome.out
    assert "1,465 (30 epochs)" in outcome.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--epsilon", 3), "exactly two"),
        (("--epsilon", 3, "--steps", 10, "--noise-multiplier", 1), "exactly two"),
        (("--epsilon", 3, "--steps", 10, "--epochs", 1), "not both"),
        (("--epsilon", -3, "--steps", 10), "positive"),
        (("--noise-multiplier", 0, "--steps", 10), "noise_multiplier"),
        (("--noise-multiplier", "inf", "--steps", 10), "noise_multiplier"),
        (("--noise-multiplier", 1, "--steps", -1), "--steps"),
        (("--noise-multiplier", 1, "--steps", 0), "--steps"),
        (("--noise-multiplier", 1, "--epochs", "nan"), "epochs"),
        (("--noise-multiplier", 1e-3, "--epsilon", 1), "even one step"),
        (("--noise-multiplier", 1, "--steps", 1, "--accountant", "magic"), "magic"),
    ],
)
def test_bad_plans_get_one_line(sordino: Callable[..., Any], options: Any, words: str) -> None:
    outcome = sordino(*SETTING, *options)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert words in outcome.err


def test_sizes_that_cannot_be(sordino: Callable[..., Any]) -> None:
    for n, batch in ((0, 1), (10, 0), (10, 11)):
        outcome = sordino("plan", "--n", n, "--batch", batch, "--delta", 1e-5, "--epsilon", 1, "--epochs", 1)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)


def test_a_large_delta_is_warned_about(sordino: Callable[..., Any]) -> None:
    outcome = sordino("plan", "--n", 100, "--batch", 10, "--delta", 0.1, "--noise-multiplier", 2, "--steps", 5)
    assert outcome.code == 0
    assert "warning" in outcome.err
    assert "not below 1/n" in outcome.err


@pytest.mark.parametrize(
    ("options", "drawn"),
    [
        (("--batch", 1, "--epsilon", 1, "--epochs", 1), 0.6321),
        (("--batch", 600, "--epsilon", 1000, "--steps", 10), 0.0956),
    ],
)
def test_a_delta_that_any_noise_meets_is_refused_without_a_search(
    sordino: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, options: Any, drawn: float
) -> None:
    monkeypatch.setattr(calibration, "noise_multiplier", lambda *_: pytest.fail("searched"))
    failed = sordino("plan", "--n", 60_000, "--delta", 0.9, *options)
    assert failed.code == 2
    last = failed.err.splitlines()[-1]
    assert f"δ=0.9 alone permits this, without any noise: a record is drawn at all with probability {drawn:.4g}" in last


def test_a_recommendation(sordino: Callable[..., Any]) -> None:
    wish = ("plan", "--recommend", "--n", 900, "--epsilon", 3, "--delta", 1e-5, "--memory", 0.001)
    answer = sordino(*wish, "--json").json
    assert 2.99 < answer["epsilon"] <= 3
    assert answer["sample_rate"] == answer["expected_batch_size"] / 900
    assert {"noise_multiplier", "steps", "epochs", "l2_clip", "learning_rate", "accounted_share"} < answer.keys()
    assert answer["physical_batch"] == 4
    words = sordino(*wish, "--parameters", 100)
    assert words.code == 0
    assert "memory holds about 1,250 examples" in words.out
    assert "←" in words.out
    bare = ("plan", "--n", 900, "--delta", 1e-5)
    for options, says in (
        (("--recommend",), "--recommend needs --epsilon"),
        (("--recommend", "--epsilon", 3, "--weight-distributions"), "--recommend takes"),
        (("--recommend", "--epsilon", 3, "--batch", 5), "--recommend takes"),
        (("--recommend", "--epsilon", 3, "--adjacency", "replace-one"), "zero-out"),
        (("--recommend", "--epsilon", 3, "--parameters", 0), "whole number"),
        (("--recommend", "--epsilon", 3, "--parameters", 5, "--public", "mnist-5k"), "not both"),
        (("--recommend", "--epsilon", 3, "--compute", 5), "one epoch"),
        (("--epsilon", 3, "--epochs", 5), "give --batch"),
        (("--batch", 5, "--epsilon", 3, "--epochs", 5, "--memory", 5), "go with --recommend"),
    ):
        refused = sordino(*bare, *options)
        assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
        assert says in refused.err


WEIGHT_DISTRIBUTIONS = ("plan", "--weight-distributions", "--n", 60_000, "--delta", 1e-5)


def test_weight_distributions_claimed_and_sound(sordino: Callable[..., Any]) -> None:
    setting = ("--batch", 32, "--epochs", 10, "--noise-multiplier", 7.1)
    rows = {row["sampling"]: row for row in sordino(*WEIGHT_DISTRIBUTIONS, *setting, "--json").json["prices"]}
    assert rows["epochs"]["claimed"] == rows["Poisson"]["claimed"] == pytest.approx(0.05, abs=1e-4)  # SI's own figure
    assert rows["epochs"]["sound"] == pytest.approx(7670, rel=1e-3)
    assert rows["epochs"]["last_weights_at_least"] == pytest.approx(6.5, abs=0.05)
    assert rows["Poisson"]["sound"] > rows["epochs"]["sound"]


def test_a_schedule_and_momentum_make_weight_distributions_tell_more(sordino: Callable[..., Any]) -> None:
    setting = ("--batch", 3000, "--epochs", 3, "--noise-multiplier", 50)
    plain = sordino(*WEIGHT_DISTRIBUTIONS, *setting, "--json").json["prices"]
    rates = ("--learning-rate", 0.1, "--momentum", 0.5, "--decay", 0.5)
    steep = sordino(*WEIGHT_DISTRIBUTIONS, *setting, *rates, "--json").json["prices"]
    assert all(more["sound"] > less["sound"] for less, more in zip(plain, steep, strict=True))
    assert all(more["claimed"] == less["claimed"] for less, more in zip(plain, steep, strict=True))


def test_who_asks_for_an_epsilon_gets_noise_that_is_sound_at_it(sordino: Callable[..., Any]) -> None:
    answer = sordino(*WEIGHT_DISTRIBUTIONS, "--batch", 3000, "--epochs", 3, "--epsilon", 0.5, "--json").json
    for row in answer["prices"]:
        assert 0.49 < row["sound"] <= 0.5
        assert row["claimed"] < 0.1
    words = sordino(*WEIGHT_DISTRIBUTIONS, "--batch", 3000, "--epochs", 3, "--epsilon", 0.5).out
    assert "claimed" in words
    assert "full batch" in words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--batch", 3000, "--epsilon", 1, "--noise-multiplier", 1), "--epochs or --steps"),
        (("--batch", 3000, "--epochs", 1, "--epsilon", 1, "--momentum", 1.2), "momentum must lie in"),
        (("--batch", 3000, "--epochs", 1, "--epsilon", 1, "--learning-rate", 0), "learning rate"),
        (("--batch", 3000, "--epochs", 1, "--epsilon", 1, "--accountant", "rdp"), "both accountants"),
    ],
)
def test_bad_weight_distributions_get_one_line(sordino: Callable[..., Any], options: Any, words: str) -> None:
    failed = sordino(*WEIGHT_DISTRIBUTIONS, *options)
    assert failed.code == 2
    assert words in failed.err
    assert failed.err.count("\n") == 1
