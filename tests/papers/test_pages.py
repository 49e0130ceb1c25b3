"""The pages of results are made of the records: all of them, and nothing else."""

import re
from pathlib import Path

import pytest

from sordino.papers.claims import Verdict, above, column_above, growing, noted, reached, value, verdict
from sordino.papers.declarations import declared
from sordino.papers.items import PAPERS
from sordino.papers.pages import pages, write_pages
from sordino.papers.pages import reached as best_reached
from sordino.papers.records import Record
from sordino.training import REACHED

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return pages(ROOT / "results")


def test_the_committed_pages_are_those_of_the_records(made: dict[str, str]) -> None:
    assert made == {name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name in made}
    written = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/results/*/*.md")}
    assert written | {"results.md"} == set(made)


def test_what_train_tells_of_the_recipes_is_of_the_records() -> None:
    assert REACHED.read_text(encoding="utf-8") == best_reached(ROOT / "results")


def test_one_page_has_a_line_for_each_item(made: dict[str, str]) -> None:
    lines = made["results.md"].splitlines()
    assert len(lines) <= 150
    recorded = [path for path in ROOT.glob("results/*/*.json") if path.parent.name in PAPERS]
    assert sum(line.startswith("| [") for line in lines) == len(recorded)
    for link in re.findall(r"\]\((.*?)\)", made["results.md"]):
        assert link in made or (ROOT / "docs" / link).exists()


def test_an_item_has_at_most_three_notes_unfolded(made: dict[str, str]) -> None:
    for name, text in made.items():
        if name != "results.md":
            assert sum(line.startswith("- ") for line in text.partition("<details>")[0].splitlines()) <= 3
            for image in re.findall(r"!\[.*?\]\((.*?)\)", text):
                assert (ROOT / "docs" / name).parent.joinpath(image).exists()


def test_every_claim_is_of_an_item_and_can_be_judged() -> None:
    for paper, items in PAPERS.items():
        assert set(declared(paper)) <= set(items)
        for item, declaration in declared(paper).items():
            path = ROOT / "results" / paper / f"{item}.json"
            if path.exists() and declaration.claim:
                found = verdict(declaration, Record.read(path))
                assert found is not None
                assert 0 <= found.held <= found.of > 0, (paper, item)
                assert declaration.theirs or found.theirs, (paper, item)


def test_pages_of_items_that_are_gone_are_deleted(tmp_path: Path) -> None:
    stale = tmp_path / "docs" / "results" / "better-features" / "table-99.md"
    stale.parent.mkdir(parents=True)
    stale.write_text("old")
    write_pages(tmp_path / "results", tmp_path / "docs")
    assert not stale.exists()
    assert (tmp_path / "docs" / "results.md").read_text().startswith("# Results")


RECORD = Record(
    "paper",
    "item",
    "title",
    ["model", "ε", "paper", "ours", "plain"],
    [
        ["a", 1.0, 90.0, "89.9 ± 0.2", 89.0],
        ["b", 1.0, 80.0, "79.0 ± 0.2", 79.5],
        ["a", 3.0, None, "95.0 ± 9.0", 90.0],
        ["b", 3.0, 70.0, "94.0", 95.0],
    ],
    ["x: better by +1.5 points (intervals apart)", "y: better by +0.5 points (intervals not apart)"],
)


def test_judges_count_what_holds() -> None:
    assert reached(RECORD, within=0.3) == Verdict(2, 3, "89.9, 79, 94", "90, 80, 70")
    assert reached(RECORD, best_of="model") == Verdict(2, 2, "89.9, 94", "90, 70")
    assert above(RECORD, {"model": "a"}, {"model": "b"}, ("ε",)).held == 2
    assert above(RECORD, {"model": "a"}, {"model": "b"}, ("ε",), apart=True).held == 1
    assert column_above(RECORD, "ours", "plain").held == 2
    assert growing(RECORD, "ours", "paper").of == 3
    assert growing(RECORD, "ours", "ε", each=["model"]) == Verdict(2, 2, "89.9 to 95, 79 to 94")
    found = noted(RECORD, "better by .*", r"\(intervals apart\)", r"by (\S+) points")
    assert (str(found), found.ours) == ("1 of 2", "+1.5, +0.5")
    assert str(noted(RECORD, "nothing", "at all")) == "–"


def test_verdicts_in_words() -> None:
    assert [str(Verdict(held, 2, "")) for held in (0, 1, 2)] == ["no", "1 of 2", "yes"]
    assert str(Verdict(0, 2, "", otherwise="not shown")) == "not shown"
    assert (value("90.10 ± 0.2"), value("1e+04"), value("NA"), value(None)) == (90.1, 10_000, None, None)
