"""Tables 4 to 6 say what was trained, at which price, and what follows from the figures of their rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sordino.data.samplers import PoissonSampler
from sordino.features import WordVectors
from sordino.papers.declarations import declared
from sordino.papers.items import reproduce
from sordino.papers.trials import Experiment, TrialStore
from sordino.papers.weight_distributions import ITEMS, plans, private_tables
from sordino.papers.weight_distributions.networks import APART, AS_WRITTEN
from sordino.papers.weight_distributions.private_tables import (
    TABLE_4,
    TABLE_5,
    TABLE_6,
    PricedTable,
    Rows,
)
from sordino.training.plan import Plan

DECLARED = declared("weight-distributions")
COLUMNS = list(DECLARED["table-4"].columns)


def _vectors(self: WordVectors, texts: NDArray[Any]) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(len(texts), self.length, 50)).astype(np.float32)


def test_texts_in_the_quick_form_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WordVectors, "__call__", _vectors)
    record = reproduce(
        "weight-distributions", "table-6", Experiment(quick=True, store=TrialStore(tmp_path / "trials")), tmp_path
    )
    names = [str(row[0]) for row in record.rows]
    assert names[:3] == ["SI-DPSGD, the paper's plan", "SI-DPSGD (BiLSTM-DL)", "SI-DPSGD (LN-BiLSTM-DL)"]
    assert sum("sound" in name for name in names) == 4
    assert record.rows[1][COLUMNS.index("paper")] == "85.70"
    assert any("no result at that ε" in note for note in record.notes)
    trained = [trial for trial in record.trials if "charged" in trial]
    assert len(trained) == 6
    assert sum("audited" in trial for trial in record.trials) == 3


class _Untrained(Rows):
    """Every trial and audit in no time."""

    def _audited(self, plan: Any) -> dict[str, Any]:
        claimed = hasattr(plan, "claimed")
        mixing = claimed and plan.examples_mix
        sound = None if mixing else 9.0
        return {"claimed": 1.0 if claimed else None, "sound": sound, "final": 2.0, "audited": 1.5, "z": 1.0}

    def _repeated(self, trial: Any) -> list[dict[str, Any]]:
        return [{"accuracy": 0.9 if "DP-SGD" in str(trial) else 0.8, "seconds": 60.0}]


def _rows(monkeypatch: pytest.MonkeyPatch, table: PricedTable, experiment: Experiment) -> Rows:
    """The rows of a table whose plans cost no time."""
    monkeypatch.setattr(private_tables, "Rows", _Untrained)
    monkeypatch.setattr(plans, "claimed_noise", lambda *sizes: 1.0)
    monkeypatch.setattr(
        private_tables, "dpsgd_plan", lambda n, epsilon, *sizes: Plan(PoissonSampler(n, 10), 0.1, 1.0, 5)
    )
    item = DECLARED[next(name for name, each in ITEMS.items() if each is table)]
    rows = table.rows(experiment, item)
    rows.fill()
    assert table(experiment, item).rows == rows.rows
    return rows


def test_the_reduced_mnist_table(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _rows(monkeypatch, TABLE_4, Experiment())
    names = [str(row[0]) for row in rows.rows]
    assert names.count("SI-DPSGD, the paper's plan") == 7
    assert names.count(f"SI-DPSGD (BN-LeNet-5{AS_WRITTEN})") == names.count(f"SI-DPSGD (BN-LeNet-5{APART})") == 2
    sound = COLUMNS.index("sound ε")
    assert {row[0] for row in rows.rows if row[sound] == "∞"} == {f"SI-DPSGD (BN-LeNet-5{AS_WRITTEN})"}
    slow = rows.extent.batch_normalised
    assert slow is not None
    made = rows.extent.usual.settings.plan(3), slow.settings.plan(3)
    assert [plan.steps for plan in made] == [5625, 600]
    assert rows.paper.settings.plan(3).steps == 18_750


def test_in_full_every_plan_is_the_papers_and_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _rows(monkeypatch, TABLE_4, Experiment(full=True, seeds=1))
    slow = rows.extent.batch_normalised
    assert slow is not None
    assert rows.extent.usual.settings == slow.settings == rows.paper.settings
    assert not any(row[COLUMNS.index("seeds")] == 0 for row in rows.rows)
    assert len(rows.rows) == 7 * (4 + 4)


def test_texts_are_trained_by_the_papers_plan_also_where_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _rows(monkeypatch, TABLE_6, Experiment())
    asked = [row[1] for row in rows.rows if row[0] == "SI-DPSGD, the paper's plan"]
    assert asked == [7, 1, 0.1]
    rates = rows.paper.settings.plan(7).rates
    assert (rates[0], rates[499], rates[500], rates[-1]) == (0.1, 0.1, 0.05, 0.025)
    assert len(rates) == 1499


def test_what_follows_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _rows(monkeypatch, TABLE_4, Experiment())
    claims, contest, _ = rows.what_follows()
    assert "of 4 claims in this table the audit alone refutes 4" in claims
    assert "behind DP-SGD in 6 of 6" in contest
    assert "LeNet-5 at ε=3: DP-SGD 90.0 %, weight distributions 80.0 %" in contest
    rows.contests[("LeNet-5", 3)]["weight distributions"] = 0.95
    plan, priced = next(iter(rows.claims.items()))
    rows.claims[plan] = priced | {"audited": 0.9, "final": 0.9}
    claims, contest, _ = rows.what_follows()
    assert "refutes 3, and θ_T by itself reveals more than is claimed in 3" in claims
    assert "behind DP-SGD in 5 of 6 comparisons, and within twice the standard error" in contest
    rows.contests[("LeNet-5", 3)]["weight distributions"] = 0.895  # of so few images that is no difference
    assert (
        "behind DP-SGD in 5 of 6 comparisons, and within twice the standard error of their test images in 1"
        in (rows.what_follows()[1])
    )


def test_where_nothing_is_trained_plans_are_priced_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _rows(monkeypatch, TABLE_5, Experiment())
    assert [row[1] for row in rows.rows] == list(TABLE_5.full.usual.epsilons)
    assert {row[0] for row in rows.rows} == {"SI-DPSGD, the paper's plan"}
    assert len(rows.what_follows()) == 2


def test_a_violated_sound_epsilon_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = TABLE_4.rows(Experiment(), DECLARED["table-4"])
    plan = rows.paper.settings.plan(3)
    found = {"sound_verdict": "consistent", "failed": []}
    monkeypatch.setattr(Experiment, "run", lambda self, trial: found)
    rows._audited(plan)
    assert rows.what_follows()[-1].endswith("may: none")
    found |= {"sound_verdict": "violated", "failed": ["noise (p=1e-09)"]}
    assert rows._audited(plan)["z"] == plan.noise_multiplier
    assert rows.what_follows()[-1].endswith(
        "may: audit of 18,750 steps at z=0.6433 (noise (p=1e-09); repeated with other draws: violated)"
    )


def test_settings_are_those_of_the_largest_budget_that_is_not_above() -> None:
    of = TABLE_4.reduced.dpsgd
    assert of("LeNet-5", 7) == of("LeNet-5", 3) != of("LeNet-5", 1) == of("LeNet-5", 0.5) != of("LeNet-5", 0.05)
    assert of("LeNet-5", 0.025) == of("LeNet-5", 0.05)


def test_the_papers_figure_is_never_put_beside_another_algorithm() -> None:
    rows = TABLE_4.rows(Experiment(), DECLARED["table-4"])
    assert rows.published("SI-DPSGD", f"BN-LeNet-5{AS_WRITTEN}", 0.05) == "99.12"
    assert rows.published("SI-DPSGD", f"BN-LeNet-5{APART}", 0.05) is None
    for name, table in (("table-4", TABLE_4), ("table-5", TABLE_5), ("table-6", TABLE_6)):
        assert all(len(row) == 1 + len(table.full.usual.epsilons) for row in DECLARED[name].published)


def test_the_quick_form_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _rows(monkeypatch, TABLE_4, Experiment())
    tiny = rows.extent.tiny()
    assert tiny.batch_normalised is not None
    assert tiny.usual.settings.plan(2).steps == tiny.batch_normalised.settings.plan(2).steps == 8
    assert tiny.canaries == private_tables._FEW_CANARIES
