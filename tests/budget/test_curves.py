"""Curves are the accountants' own figures at each point, and are drawn as they are."""

from pathlib import Path

import pytest

from sordino.budget import (
    PoissonGaussian,
    Repeated,
    cost,
    curve_over_batch,
    curve_over_delta,
    curve_over_sample_rate,
    epsilons,
    noise_against_sample_rate,
    rdp,
)


def test_over_the_batch_noise_grows_with_it() -> None:
    curve = curve_over_batch(10_000, [100, 1000], 0.01, 50, 1e-6)
    for place, (batch, sigma) in enumerate([(100, 1.0), (1000, 10.0)]):
        event = Repeated(PoissonGaussian(batch / 10_000, sigma), 50)
        assert curve.lines["PLD"][place] == cost(event, 1e-6).pld
        assert curve.lines["RDP"][place] == cost(event, 1e-6).rdp
        assert curve.lines["RDP, TF-Privacy's orders"][place] == rdp.classic_epsilon(event, 1e-6, "zero-out")
    assert curve.points == (100, 1000)


def test_over_delta_one_event_is_priced_at_each() -> None:
    event = Repeated(PoissonGaussian(0.05, 1.3), 100)
    curve = curve_over_delta(event, [1e-4, 1e-6, 1e-8])
    assert [line[1] for line in curve.lines.values()] == list(epsilons(event, 1e-6).values())
    for line in curve.lines.values():
        assert line[0] < line[1] < line[2]  # type: ignore[operator]


def test_over_the_sampling_rate_noise_is_that_of_calibration() -> None:
    rates = [0.1, 0.4]
    curve = curve_over_sample_rate(rates, 5, 3.0, 1e-5)
    assert curve.lines["PLD"] == tuple(noise_against_sample_rate(rates, 5, 3.0, 1e-5))


def test_an_unknown_adjacency_is_refused() -> None:
    with pytest.raises(ValueError, match="adjacency"):
        curve_over_delta(PoissonGaussian(0.1, 1.0), [1e-5], "nearby")


def test_a_drawing_leaves_out_what_no_accountant_has(tmp_path: Path) -> None:
    curve = curve_over_delta(Repeated(PoissonGaussian(0.05, 1.3), 20_000), [1e-5, 1e-12])
    assert curve.lines["PLD"][1] is None
    curve.draw(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
