"""What INS prints follows from its own settings."""

from pathlib import Path

import pytest

from sordino.papers.claims import verdict
from sordino.papers.declarations import declared
from sordino.papers.items import reproduce
from sordino.papers.trials import Experiment

ITEMS = declared("imagenet-scale")


def test_every_epsilon_is_the_papers_though_two_need_an_integral(tmp_path: Path) -> None:
    record = reproduce("imagenet-scale", "epsilon", Experiment(), tmp_path)
    rows = [dict(zip(record.columns, row, strict=True)) for row in record.rows]
    for row in rows:
        rough = float(row["paper"] or 0) in (1e7, 1e9, 1e11, 1e13, 1e15)  # printed as powers of ten
        assert row["ours"] == pytest.approx(row["paper"], rel=0.07 if rough else 0.025), row
    far = [row["paper"] for row in rows if float(row["library"] or 0) > 1.1 * float(row["paper"] or 0)]
    assert far == [120.0, 326.0]
    found = verdict(ITEMS["epsilon"], record)
    assert str(found) == "yes"


def test_the_noise_of_the_best_run_is_that_of_the_authors_code(tmp_path: Path) -> None:
    declaration = ITEMS["noise"]
    place = next(k for k, row in enumerate(declaration.published) if row[0] == "7, best run")
    row = reproduce("imagenet-scale", "noise", Experiment(), tmp_path).rows[place]
    assert row[6] == pytest.approx(row[5], rel=2e-3)
    assert float(row[7] or 0) < 0.97 * float(row[6] or 0)


def test_figure_2_passes_through_table_5(tmp_path: Path) -> None:
    record = reproduce("imagenet-scale", "figure-2", Experiment(), tmp_path)
    theirs = {row[0]: float(row[3] or 0) for row in record.rows}
    for batch, epsilon in ((1024, 9.8e8), (4096, 6.1e7), (16384, 3.5e6), (65536, 6.7e4)):
        assert theirs[batch] == pytest.approx(epsilon, rel=0.02)
