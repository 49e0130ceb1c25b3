"""Trainings side by side share calls and nothing else: sums, keys, ledgers, folders and errors are each one's own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.side_by_side import steps_until
from sordino import models
from sordino.budget import Ledger
from sordino.data import ArrayRecords
from sordino.data.samplers import PoissonSampler
from sordino.mechanisms.streams import Streams
from sordino.runs import Diverged, Run
from sordino.training.dense import Asked, DenseNetwork, side_by_side, sums_together
from sordino.training.dense_sums import softmax_slope
from sordino.training.dpsgd import Steps, Training
from sordino.training.fitting import fitting
from sordino.training.heads import cross_entropy
from sordino.training.modules import TrainableModule
from sordino.training.optimisers import SGD
from sordino.training.plan import Plan

N, WIDTH, CLASSES = 60, 5, 3
PLAN = Plan(PoissonSampler(N, 12), l2_clip=0.5, noise_multiplier=1.5, steps=9)


def _data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(N, WIDTH)).astype(np.float32), generator.integers(0, CLASSES, N)


_RECORDS = ArrayRecords(*_data())


def _build() -> torch.nn.Sequential:
    return models.dense(WIDTH, 7, 4, CLASSES)


def _network(place: int, places: int) -> DenseNetwork:
    network = DenseNetwork(_build, softmax_slope, place=(place, places))
    network.choose(_RECORDS, None, PLAN.sampler.expected_batch_size)
    network.initialise(Streams(bytes([place] * 16)))
    return network


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, N), min_size=1, max_size=4), st.integers(0, 99), st.sampled_from([1e-3, 0.5, 50.0]))
def test_sums_are_those_of_each_alone(sizes: list[int], seed: int, clip: float) -> None:
    generator = np.random.default_rng(seed)
    asked = [
        Asked(_network(place, len(sizes) + 1), _RECORDS, np.sort(generator.permutation(N)[:size]), clip * (1 + place))
        for place, size in enumerate(sizes)  # one place stays empty
    ]
    for (network, _, indices, l2_clip), found in zip(asked, sums_together(asked), strict=True):
        single = DenseNetwork(_build, softmax_slope)
        single.load(network.weights())
        expected = single.clipped_sum(_RECORDS, indices, l2_clip)
        assert found.norms.shape == (len(indices),)
        np.testing.assert_allclose(found.norms, expected.norms, rtol=1e-5)
        for name, value in found.sums.items():
            np.testing.assert_allclose(value, expected.sums[name], rtol=1e-4, atol=1e-5 * min(l2_clip, 1))


def test_what_others_draw_or_hold_changes_no_bit() -> None:
    damaged, _ = _data()
    damaged[:] = np.nan
    own, quiet, loud = (_network(place, 3) for place in (1, 0, 2))
    held = {quiet: _RECORDS, loud: ArrayRecords(damaged, _data()[1])}
    mine = Asked(own, _RECORDS, np.arange(0, N, 4), 0.3)
    (expected,) = sums_together([mine])
    for others in ([quiet], [loud], [quiet, loud]):
        for count in (0, 3, N):
            found = sums_together([mine, *(Asked(other, held[other], np.arange(count), 7.0) for other in others)])
            assert all(torch.equal(value, expected.sums[name]) for name, value in found[0].sums.items())
            if loud in others:
                assert all(not value.any() for value in found[-1].sums.values())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 999), st.sampled_from([1e-3, 1.0, 1e10]))
def test_one_example_moves_its_own_sums_by_at_most_the_clip_and_no_others(seed: int, scale: float) -> None:
    x, y = _data(seed)
    own, other, records = _network(0, 2), _network(1, 2), ArrayRecords(x * np.float32(scale), y)
    beside = Asked(other, _RECORDS, np.arange(20), 1.0)
    everyone, theirs = sums_together([Asked(own, records, np.arange(30), 0.4), beside])
    fewer, same = sums_together([Asked(own, records, np.arange(1, 30), 0.4), beside])
    assert all(sums.any() for sums in everyone.sums.values())
    moved = sum((everyone.sums[n].double() - fewer.sums[n].double()).square().sum() for n in everyone.sums)
    assert torch.sqrt(torch.as_tensor(moved)) <= 0.4 * (1 + 1e-4)
    assert all(torch.equal(theirs.sums[name], same.sums[name]) for name in theirs.sums)


def test_two_in_one_place_and_other_networks_are_refused() -> None:
    one = Asked(_network(0, 2), _RECORDS, np.arange(3), 1.0)
    other = DenseNetwork(lambda: models.dense(WIDTH, 6, 4, CLASSES), softmax_slope, place=(1, 2))
    other.choose(_RECORDS, None, PLAN.sampler.expected_batch_size)
    for second in (one, Asked(other, _RECORDS, np.arange(3), 1.0)):
        with pytest.raises(ValueError, match="one network, each with a place of its own"):
            sums_together([one, second])
    with pytest.raises(ValueError, match="below the number of places"):
        DenseNetwork(_build, softmax_slope, place=(2, 2))


def alone(steps: Steps[Any]) -> Any:
    [done] = side_by_side([steps])
    return done


def _fitting(folder: Path, place: int, places: int, rate: float = 0.5) -> Steps[int]:
    run = Run.at(folder)
    fitted = yield from fitting(
        PLAN,
        DenseNetwork(_build, softmax_slope, place=(place, places)),
        _RECORDS,
        optimiser=SGD(rate),
        ledger=Ledger(path=run.ledger),
        run=run,
        seed=place,
        checkpoint_every=2,
    )
    return fitted.steps


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    run = Run(folder)
    return run.read_tensors(run.model)[0]


def test_each_fit_is_as_alone_with_empty_places_beside_it(tmp_path: Path) -> None:
    folders = [tmp_path / str(place) for place in range(3)]
    done = side_by_side([_fitting(folder, place, 3) for place, folder in enumerate(folders)])
    assert done == [PLAN.steps] * 3
    for place, folder in enumerate(folders):
        assert alone(_fitting(tmp_path / f"single {place}", place, 3)) == PLAN.steps
        single = _weights(tmp_path / f"single {place}")
        assert all(torch.equal(value, single[name]) for name, value in _weights(folder).items())
        assert Ledger.open(Run(folder).ledger).entries[0].count == PLAN.steps
    assert all(not torch.equal(value, _weights(folders[1])[name]) for name, value in _weights(folders[0]).items())


def test_after_an_error_in_one_all_go_on_to_the_same_weights(tmp_path: Path) -> None:
    def failing(steps: Steps[int]) -> Steps[int]:
        clipped = yield next(steps)
        for _ in range(4):
            clipped = yield steps.send(clipped)
        steps.close()
        raise Diverged("as if")

    folders = [tmp_path / str(place) for place in range(3)]
    with pytest.raises(Diverged, match="as if"):
        side_by_side([_fitting(folders[0], 0, 3), failing(_fitting(folders[1], 1, 3)), _fitting(folders[2], 2, 3)])
    # One goes on by itself, to its end; the others after it.
    alone(_fitting(folders[2], 2, 3))
    assert side_by_side([_fitting(folder, place, 3) for place, folder in enumerate(folders)]) == [PLAN.steps] * 3
    for place, folder in enumerate(folders):
        alone(_fitting(tmp_path / f"single {place}", place, 3))
        single = _weights(tmp_path / f"single {place}")
        assert all(torch.equal(value, single[name]) for name, value in _weights(folder).items())
        assert Ledger.open(Run(folder).ledger).entries[0].count == PLAN.steps


def test_in_another_company_lost_steps_are_paid_for_again(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        alone(_interrupted(_fitting(tmp_path, 0, 3), 5))
    assert alone(_fitting(tmp_path, 0, 2)) == PLAN.steps - 2  # a block of two was charged and lost
    assert Ledger.open(Run(tmp_path).ledger).entries[0].count == PLAN.steps


def _interrupted(steps: Steps[int], after: int) -> Steps[int]:
    clipped = yield next(steps)
    for _ in range(after - 1):
        clipped = yield steps.send(clipped)
    steps.close()
    raise KeyboardInterrupt


def test_networks_without_a_closed_form_come_along() -> None:
    def steps(model: DenseNetwork | TrainableModule, key: int) -> Steps[None]:
        model.choose(_RECORDS, None, 12)
        streams = Streams(bytes([key] * 16))
        model.initialise(streams)
        training = Training(PLAN, model, _RECORDS, SGD(0.5))
        return steps_until(training, training.start(), streams, PLAN.steps)

    engine, single = (TrainableModule(_build, cross_entropy, physical_batch=16) for _ in range(2))
    closed = [DenseNetwork(_build, softmax_slope, place=(place, 2)) for place in (0, 1)]
    side_by_side([steps(closed[0], 1), steps(engine, 0), steps(closed[1], 0)])
    alone(steps(single, 0))
    for name, value in engine.weights().items():
        assert torch.equal(value, single.weights()[name])
        np.testing.assert_allclose(value, closed[1].weights()[name], rtol=1e-3, atol=1e-4)
        assert not torch.allclose(value, closed[0].weights()[name], rtol=1e-2)


def test_a_network_of_which_less_is_trained_is_no_company() -> None:
    def part_frozen() -> torch.nn.Sequential:
        model = models.dense(WIDTH, WIDTH, CLASSES)
        next(layer for layer in model if isinstance(layer, torch.nn.Linear)).requires_grad_(False)
        return model

    whole, part = (
        DenseNetwork(build, softmax_slope, place=(place, 2))
        for place, build in enumerate((lambda: models.dense(WIDTH, WIDTH, CLASSES), part_frozen))
    )
    assert repr(whole.model) == repr(part.model)
    with pytest.raises(ValueError, match="of one network"):
        sums_together([Asked(each, _RECORDS, np.arange(3), 1.0) for each in (whole, part)])


def test_trainings_on_the_same_rows_share_them() -> None:
    x, y = _data()
    records = ArrayRecords(x, y)
    one, other = (DenseNetwork(_build, softmax_slope, place=(place, 2)) for place in (0, 1))
    places = [network._prepared(records).vectors.data_ptr() for network in (one, other)]
    assert places == [x.ctypes.data] * 2


@pytest.mark.parametrize(("batch", "rows"), [(100, 130), (2048, 1092), (5000, 1737)])
def test_a_usual_draw_is_in_pieces_of_one_size(batch: int, rows: int) -> None:
    network = DenseNetwork(_build, softmax_slope, place=(0, 2))
    assert network.choose(_RECORDS, None, batch)["rows"] == rows
