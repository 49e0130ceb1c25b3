"""Items of networks say what their trainings show, no more."""

from typing import Any

import numpy as np
import pytest

from sordino.papers.declarations import declared
from sordino.papers.privacy_aware import ITEMS, network_rows, network_tables, network_trials
from sordino.papers.privacy_aware.intervals import Interval
from sordino.papers.privacy_aware.network_figures import first_step, fitted
from sordino.papers.privacy_aware.network_trials import NetworkTrial
from sordino.papers.privacy_aware.networks import NETWORKS, RWT
from sordino.papers.trials import Experiment


def test_what_is_no_better_than_a_constant_answer_is_said() -> None:
    assert NETWORKS["SMS RNN STW"].constant() == pytest.approx(0.8636, abs=1e-4)
    assert 0.13 < NETWORKS["medical FCN 2×10"].constant() < 0.15
    said = network_tables._idle("SMS RNN STW", Interval(0.9, 0.01), Interval(0.87, 0.01))
    assert said == "; with RWT it is not above a constant answer (86.36 %)"
    assert not network_tables._idle("SMS RNN STW", Interval(0.9, 0.01), Interval(0.9, None))


def test_a_figure_of_crossovers_has_seeds_enough_for_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def repeated(_: Any, trial: NetworkTrial, seeds: int) -> list[dict[str, Any]]:
        asked.append(seeds)
        ahead = 0.1 * ("PAW" in trial.network or RWT in trial.network) * (float(trial.epsilon or 0) < 2)
        plan = {"noise_multiplier": 1.0}
        return [
            {"score": 0.8 + ahead + 1e-3 * seed, "plan": plan, "epsilon": 1.0, "learning_rate": 0.1}
            for seed in range(seeds)
        ]

    monkeypatch.setattr(network_rows, "repeated", repeated)
    monkeypatch.setattr(network_trials, "tune_rate", lambda experiment, trial, rates, seeds: (rates[0], {}))
    for name in ("figure-7", "figure-8", "figure-10"):
        record = ITEMS[name](Experiment(), declared("privacy-aware")[name])
        assert "crossover at ε of" in record.notes[0]
        assert "95% interval" in record.notes[0]
    assert set(asked) == {5}


def test_the_first_step_and_the_fit() -> None:
    assert first_step({"10": 0.5, "20": 0.85, "30": 0.84, "40": 0.9}) == 20
    assert first_step({"10": 0.5}) is None
    sizes = [1e4, 2e4, 1e5]
    assert fitted(sizes, [float(np.log(1.1 + 8922.4 / n)) for n in sizes]) == pytest.approx((1.1, 8922.4))
    assert fitted(sizes, [float(np.log(0.97 + 8400 / n)) for n in sizes])[0] == pytest.approx(1.0)
