"""Every item runs in its quick form and leaves a whole record."""

from pathlib import Path

import pytest

from sordino.data import DataError
from sordino.papers.items import PAPERS, reproduce
from sordino.papers.records import Record, in_words, percent
from sordino.papers.trials import Experiment, TrialStore

ROOT = Path(__file__).parents[2]
ITEMS = [(paper, item) for paper, items in PAPERS.items() for item in items]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> TrialStore:
    """Items share trials: what one has trained the others need not train."""
    return TrialStore(tmp_path_factory.mktemp("trials"))


@pytest.mark.parametrize(("paper", "item"), ITEMS)
def test_the_quick_form_of_every_item(paper: str, item: str, store: TrialStore, tmp_path: Path) -> None:
    try:
        record = reproduce(paper, item, Experiment(quick=True, store=store), tmp_path)
    except DataError as error:
        if "pip install" not in str(error):
            raise
        pytest.skip(str(error))  # an optional extra
    path = tmp_path / paper / f"{item}.json"
    assert Record.read(path) == record
    assert record.rows
    assert all(len(row) == len(record.columns) for row in record.rows)
    assert "mean nothing" in str(record.reduced)
    assert all(len(line.x) == len(line.y) > 0 for line in record.series)
    drawn = path.with_suffix(".png")
    assert drawn.exists() == bool(record.series) == item.startswith("figure")
    if record.series:
        assert drawn.read_bytes().startswith(b"\x89PNG")
    assert in_words(record).startswith(record.title)


def test_records_are_in_full_or_say_what_they_lack() -> None:
    for paper, item in ITEMS:
        path = ROOT / "results" / paper / f"{item}.json"
        if path.exists():
            record = Record.read(path)
            assert (record.paper, record.item) == (paper, item)
            assert "mean nothing" not in str(record.reduced)
            assert "accountant" not in record.columns or None not in [
                row[record.columns.index("accountant")] for row in record.rows
            ]


def test_percent_gives_a_deviation_only_where_there_is_one() -> None:
    assert percent([0.5]) == "50.00"
    assert percent([0.5, 0.6]) == "55.00 ± 7.07"
