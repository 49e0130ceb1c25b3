"""An audit of any training: right on a correct mechanism and on broken ones, whatever form the output has."""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

import sordino
from sordino.audit import Audit, black_box, statistics
from sordino.audit.black_box import largest_bound
from sordino.budget import Gaussian, cost

DELTA = 0.01
CLIP = 1.0
SIGMA = 3.0
EPSILON = cost(Gaussian(SIGMA), DELTA).epsilon  # 0.49
RECORDS = np.random.default_rng(0).normal(size=(20, 8)) / 8
FAR = np.vstack([RECORDS, np.full((1, 8), 30.0)])  # one record more, as far out as can be
NEAR = np.vstack([RECORDS, np.zeros((1, 8))])
NOISE = np.random.default_rng()


@pytest.fixture(autouse=True)
def _noise(request: pytest.FixtureRequest) -> None:
    global NOISE
    NOISE = np.random.default_rng(len(request.node.name))


def clipped(records: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(records, axis=1, keepdims=True)
    return records * np.minimum(1, CLIP / np.maximum(norms, 1e-12))


def noisy(total: Any, sigma: float = SIGMA) -> Any:
    return total + NOISE.normal(0, sigma * CLIP, np.shape(total))


def right(records: np.ndarray) -> np.ndarray:
    return noisy(clipped(records).sum(0))


def without_a_clip(records: np.ndarray) -> np.ndarray:
    return noisy(records.sum(0))


def half_the_noise(records: np.ndarray) -> np.ndarray:
    return noisy(clipped(records).sum(0), SIGMA / 2)


def noise_reused(records: np.ndarray) -> dict[str, Any]:
    """Two outputs of half the sensitivity each, which together are right, but for their common noise."""
    half, noise = clipped(records).sum(0) / 2, NOISE.normal(0, SIGMA * CLIP, 8)
    return {"sum": half + noise, "again": torch.from_numpy(noise)}


def exact_count(records: np.ndarray) -> dict[str, Any]:
    return {"sum": right(records), "count": np.count_nonzero(np.linalg.norm(records, axis=1))}


def early_stop(records: np.ndarray) -> list[np.ndarray]:
    """Steps until an exact number says stop: only the number of noisy steps tells."""
    steps = 3 if np.abs(records).max() > 10 else 4
    return [noisy(np.zeros(4)) for _ in range(steps)]


def wrong_norm(records: np.ndarray) -> np.ndarray:
    """Each coordinate within the clip, and noise for the clip of the whole: by √8 too little."""
    return noisy(np.clip(records, -CLIP, CLIP).sum(0))


audited = partial(sordino.audit, neighbours=(NEAR, FAR), epsilon=EPSILON, delta=DELTA, runs=2000)
BROKEN = (without_a_clip, half_the_noise, noise_reused, exact_count, early_stop, wrong_norm)


def test_a_correct_mechanism_is_consistent() -> None:
    found = audited(right)
    assert isinstance(found, Audit)
    assert (found.verdict, found.sound_verdict, found.confidence) == ("consistent", "consistent", 0.95)
    assert 0 <= found.lower_bound < EPSILON
    assert found.runs == 4000


@pytest.mark.parametrize("train", BROKEN, ids=[train.__name__.replace("_", " ") for train in BROKEN])
def test_broken_mechanisms_are_violated(train: Callable[[np.ndarray], Any]) -> None:
    found = audited(train)
    assert found.verdict == "violated", (found.lower_bound, found.statistic)
    assert found.lower_bound > EPSILON
    assert found.confidence == 0.95
    assert found.to_json()["verdict"] == "violated"
    assert found.report().endswith("claimed ε: violated")
    assert found.statistic in found.report()


def test_exact_leaks_are_found_whatever_the_runs_allow() -> None:
    """Without error: the bound is the highest that so few runs can give."""
    most = largest_bound((180, 180), DELTA, 0.95)
    for train in (exact_count, early_stop, noise_reused):
        found = audited(train, runs=300)
        assert found.lower_bound == pytest.approx(most, rel=0.05), found.statistic


def test_only_one_record_in_many_numbers_is_seen() -> None:
    """One of 5,000 numbers is exact, and only the most telling ones are kept."""

    def train(records: np.ndarray) -> torch.Tensor:
        numbers = torch.from_numpy(NOISE.normal(size=5000))
        numbers[1234] = len(records)
        return numbers

    found = sordino.audit(train, neighbours=(RECORDS, FAR), epsilon=1, delta=DELTA, runs=120)
    assert found.verdict == "violated"
    assert "4,096 of 5,000" in found.notes[0]
    assert found.statistic == "output[1234]"


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(black_box, "_MOST_NUMBERS", 100)
    assert audited(exact_count, runs=150).verdict == "violated"
    assert audited(right, runs=150).verdict == "consistent"


@pytest.mark.parametrize("truth", [0.0, 1.0])
def test_randomised_response_is_bounded_below_its_epsilon(truth: float) -> None:
    """Its bound is tight: the hardest case for the confidence, here of the whole way of choosing statistics."""
    keep = np.exp(truth) / (1 + np.exp(truth))

    def train(records: int) -> float:
        return float(records if NOISE.random() < keep else 1 - records)

    bounds = [sordino.audit(train, (0, 1), epsilon=truth, delta=0.0, runs=200).lower_bound for _ in range(20)]
    assert np.sum(np.array(bounds) > truth) <= 3
    assert truth == 0 or np.median(bounds) > 0.3


def test_low_bits_tell_a_count_of_one_from_none() -> None:
    """Mironov 2012: 1 + noise is rounded where 0 + noise is not, so double noise on a count leaks beyond its ε."""

    def train(count: float) -> float:
        return count + float(NOISE.normal(0, 10))

    claim = {"epsilon": cost(Gaussian(10), 1e-5).epsilon, "delta": 1e-5, "runs": 6000}
    found = sordino.audit(train, (0.0, 1.0), **claim, low_bits=True)
    assert found.verdict == "violated", (found.lower_bound, found.statistic)
    found = sordino.audit(train, (0.0, 1.0), **claim)
    assert found.verdict == "consistent"
    assert "lowest bits" in found.notes[0]


def test_a_variance_that_depends_on_the_data() -> None:
    found = audited(lambda records: NOISE.normal(0, 1 if len(records) > 20 else 5, 20), neighbours=(RECORDS, FAR))
    assert found.verdict == "violated"


def test_a_figure_for_normal_scores_stands_beside_the_bound() -> None:
    found = audited(half_the_noise)
    assert found.lower_bound < found.epsilon_if_gaussian <= 1.05 * cost(Gaussian(SIGMA / 2), DELTA).epsilon
    assert audited(exact_count).epsilon_if_gaussian == 0


def test_too_few_runs_for_the_claim_are_said() -> None:
    assert "100 runs cannot show more than" in audited(right, epsilon=8.0, runs=100).notes[-1]
    assert not any("cannot" in note for note in audited(right, runs=1000).notes)


def test_every_run_has_records_of_its_own() -> None:
    """One that adds its noise in place does nothing wrong, and earlier runs must not be seen in later ones."""
    records = [NEAR.copy(), FAR.copy()]

    def in_place(rows: np.ndarray) -> np.ndarray:
        rows[:] = clipped(rows)
        rows += 5 * SIGMA * NOISE.normal(size=rows.shape) / np.sqrt(len(rows))
        return rows.sum(0)

    assert audited(in_place, neighbours=tuple(records), runs=300).lower_bound < EPSILON
    assert np.array_equal(records[0], NEAR)
    assert np.array_equal(records[1], FAR)
    found = audited(lambda rows: NOISE.normal(), neighbours=((row for row in NEAR), FAR), runs=100)
    assert "cannot be copied" in found.notes[0]
    found = audited(lambda rows: rows[1].normal(), neighbours=[(rows, np.random.default_rng()) for rows in records])
    assert "never changes from run to run" in found.notes[-1]


def test_raising_on_one_dataset_is_a_disclosure() -> None:
    def train(records: np.ndarray) -> np.ndarray:
        if np.abs(records).max() > 10:
            raise ValueError("a record is too large\nfor this model")
        return right(records)

    found = audited(train, runs=150)
    assert found.verdict == "violated"
    assert found.notes[0] == (
        "of 150 runs on each dataset, train raised in 0 on the first and 150 on the second (ValueError: a record is "
        "too large): raising on one only is itself a disclosure"
    )


def test_what_an_error_says_is_an_output() -> None:
    calls = 0

    def train(records: np.ndarray) -> float:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise ValueError(f"{np.abs(records).max()} is too large")
        return 0.0

    assert audited(train, runs=150).verdict == "violated"


def test_a_training_that_only_raises_raises() -> None:
    calls = 0

    def train(records: np.ndarray) -> None:
        nonlocal calls
        calls += 1
        raise KeyError("typo")

    with pytest.raises(KeyError, match="typo") as caught:
        audited(train)
    assert f"in all of its first {calls} runs, on both datasets" in caught.value.__notes__[0]
    assert calls < 100


def test_the_statistic_names_part_and_place() -> None:
    def train(records: np.ndarray) -> dict[str, Any]:
        return {"a": NOISE.normal(size=3000), "b": np.append(NOISE.normal(size=1500), len(records))}

    found = audited(train, neighbours=(RECORDS, FAR), runs=120)
    assert found.statistic == "b[1500]"
    table = black_box._Table()
    for arm in (True, False):
        table.add({"a": np.zeros(2), "b": np.ones(1)}, arm)
    table.settle()
    assert table.labels() == ["a[0]", "a[1]", "b[0]"]
    rows, arms = NOISE.normal(size=(40, 3)), np.arange(40) % 2 == 0
    rows[:, 2] = arms + 2 * rows[:, 0]
    names = [name for name, _ in statistics.fitted(rows, np.empty((40, 0)), ["x[7]", "y[0]", "z[3]"], arms)]
    assert "z[3] less 2 times x[7], whose noise is the same" in names or any("times z[3]" in name for name in names)
    assert "lowest bit of z[3]" in dict(statistics.fitted_on_low_bits(rows, ["x[7]", "y[0]", "z[3]"], arms))


def test_where_every_run_was_told_apart_it_is_said() -> None:
    found = audited(exact_count, epsilon=6.0, runs=200)
    assert found.verdict == "consistent"
    (note,) = [note for note in found.notes if "identified correctly" in note]
    needed = int(note.split("about ")[1].split(" runs")[0].replace(",", ""))
    assert audited(exact_count, epsilon=6.0, runs=needed).verdict == "violated"
    assert "more than 1,000,000,000,000 runs" in audited(exact_count, epsilon=1e3, runs=100).notes[-1]


def test_a_report_names_the_claim_once() -> None:
    lines = audited(right, epsilon=1.5, runs=150).report().splitlines()
    assert [line for line in lines if line.startswith(("sound", "verdict       sound"))] == []
    assert "claimed       ε = 1.5 at δ=0.01" in lines
    assert all(len(line) > 14 and line[13] == " " != line[14] for line in lines if not line.startswith("  "))


@pytest.mark.parametrize("nothing", [{}, [], None, {"a": []}, np.empty(0)])
def test_an_output_without_numbers_is_refused(nothing: Any) -> None:
    with pytest.raises(ValueError, match="returned no numbers in any run"):
        audited(lambda records: nothing, runs=100)
    found = audited(lambda records: nothing if len(records) > 20 else 1.0, neighbours=(RECORDS, FAR), runs=150)
    assert found.verdict == "violated"


@pytest.mark.parametrize(
    "base", [2**60, -(2**60), 2**63, 10**400, np.int64(2**62), np.array([2**60, 2**61])], ids=lambda base: str(base)[:9]
)
def test_large_integers_are_not_rounded(base: Any) -> None:
    found = audited(lambda records: base + len(records), neighbours=(RECORDS, FAR), runs=150)
    assert found.verdict == "violated"
    found = audited(lambda records: [base, 0.5, len(records)][:2] if np.ndim(base) == 0 else base, runs=100)
    assert found.lower_bound == 0


def test_outputs_that_are_not_finite_or_huge_make_no_warnings() -> None:
    for huge in (np.inf, 1e308, np.nan):
        found = audited(lambda records, huge=huge: np.append(right(records), [huge, -huge]), epsilon=2, runs=150)
        assert found.verdict == "consistent"
        arms = {20: np.zeros(2), 21: np.full(2, huge)}
        found = audited(lambda records, arms=arms: arms[len(records)], neighbours=(RECORDS, FAR), runs=150)
        assert found.verdict == "violated"
    for arms in ({20: 1e200, 21: 1e201}, {20: -np.inf, 21: np.inf}):
        found = audited(lambda records, arms=arms: arms[len(records)], neighbours=(RECORDS, FAR), runs=150)
        assert found.verdict == "violated"


def test_outputs_of_any_form() -> None:
    output = {"a": torch.ones(2, 3), "b": [1, 2.5], "c": (np.ones(2), {"d": True}), "e": None, "f": 1 + 2j}
    parts = statistics.parts_of(output)
    assert {name: len(values) for name, values in parts.items()} == {
        **{"a": 6, "b": 2, "c length": 1, "c/0": 2, "c/1/d": 1, "e": 0, "f": 2}
    }
    assert statistics.parts_of(torch.nn.Linear(2, 1)).keys() == {"weight", "bias"}
    assert statistics.parts_of(torch.ones(3, dtype=torch.bfloat16))["output"].tolist() == [1, 1, 1]
    assert statistics.parts_of(torch.eye(2).to_sparse())["output"].tolist() == [1, 0, 0, 1]
    assert statistics.parts_of(sparse.csr_array(np.eye(2)))["output"].tolist() == [1, 0, 0, 1]
    with pytest.raises(TypeError, match="not str"):
        statistics.parts_of({"a": "word"})
    not_finite = statistics.summary({"a": np.array([np.nan, np.inf, 0.0, 1.0])})
    assert not_finite["numbers that are not finite"] == 2
    assert statistics.lowest_bits(np.array([1.0, 3.0, 0.75, 1e-3, 0.0, np.nan])).tolist()[:3] == [0, 0, -2]


@pytest.mark.parametrize(
    ("ways", "words"),
    [
        ({"runs": 10}, "at least 100 runs"),
        ({"runs": 200.0}, "runs must be an integer, not 200.0"),
        ({"runs": "200"}, "runs must be an integer"),
        ({"epsilon": "1"}, "epsilon must be a finite number"),
        ({"delta": None}, "delta must lie"),
        ({"confidence": "0.95"}, "confidence"),
        ({"neighbours": (1, 2, 3)}, "two datasets"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"confidence": 1.0}, "confidence"),
    ],
)
def test_bad_input_is_said(ways: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        audited(right, **ways)


def test_numbers_of_numpy_are_arguments_too() -> None:
    found = audited(right, runs=np.int64(100), epsilon=np.float32(0.5), delta=np.float64(0.01))
    assert json.loads(json.dumps(found.to_json()))["runs"] == 200


def test_delta_and_epsilon_have_no_default() -> None:
    with pytest.raises(TypeError, match="delta"):
        sordino.audit(right, (NEAR, FAR), epsilon=1.0, runs=100)
    with pytest.raises(TypeError, match="epsilon"):
        sordino.audit(right, (NEAR, FAR), delta=DELTA, runs=100)


def test_the_name_can_be_called_before_and_after_the_room_is_imported() -> None:
    program = (
        "import sordino\naudit = sordino.audit\nimport sordino.audit\nassert sordino.audit is audit\n"
        "found = sordino.audit(lambda x: x, neighbours=(0, 1), epsilon=1.0, delta=0.0, runs=100)\n"
        "assert found.verdict == 'violated'\nfrom sordino.audit import audit_plan"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Here the room came first, at the top.
    assert isinstance(sordino.audit(lambda x: x, (0, 1), epsilon=1.0, delta=0.0, runs=100), Audit)
