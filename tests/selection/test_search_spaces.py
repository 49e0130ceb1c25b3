"""PAW's search spaces: the networks that the paper prints, and draws, crossings and mutants that stay in the space."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sordino.selection.search_spaces import (
    Convolutional,
    ConvolutionalSpace,
    Dense,
    DenseLayer,
    DenseSpace,
    read_candidate,
)

SPACES = [DenseSpace(), DenseSpace(freezing=True), ConvolutionalSpace(), ConvolutionalSpace(freezing=True)]


def sizes(model: nn.Module) -> tuple[int, int]:
    parameters = [*model.parameters()]
    return sum(p.numel() for p in parameters), sum(p.numel() for p in parameters if p.requires_grad)


def dense(*layers: tuple[int, bool]) -> Dense:
    return Dense(tuple(DenseLayer(units, trainable=trainable) for units, trainable in layers), 0.1)


@pytest.mark.parametrize(
    ("candidate", "total", "trained"),
    [
        (dense((2048, True), (256, True), (64, False)), 674_762, 658_314),
        (dense((128, True)), 9_610, 9_610),
        (dense((1024, False)), 76_810, 10_250),
    ],
)
def test_table_ix(candidate: Dense, total: int, trained: int) -> None:
    assert sizes(candidate.build((64,), 10)) == (total, trained)


def test_tables_xix_xx_and_xxiv() -> None:
    assert sizes(Convolutional(3, 16, 512, (True,) * 4, 0.05).build((3, 32, 32), 10))[0] == 246_554
    assert sizes(Convolutional(2, 48, 512, (True,) * 3, 0.05).build((3, 32, 32), 10))[0] == 1_820_330
    assert sizes(dense((2048, True)).build((300,), 10))[0] == 636_938


def test_the_sizes_of_tables_xi_and_xii() -> None:
    generator = np.random.default_rng(0)
    drawn = {DenseSpace(learning_rates=(0.1,)).draw(generator).layers for _ in range(3000)}
    assert {len(layers) for layers in drawn} == {1, 2, 3}
    assert {layers[0].units for layers in drawn} == {64, 128, 512, 1024, 2048}
    assert len({layers for layers in drawn if len(layers) == 1}) == 15
    assert len({ConvolutionalSpace().draw(generator) for _ in range(500)}) == 2 * 3 * 4
    assert all(layer.trainable for layers in drawn for layer in layers)


@pytest.mark.parametrize("space", SPACES, ids=str)
@given(seed=st.integers(0, 2**32))
def test_whatever_is_drawn_crossed_or_mutated_is_of_the_space(space, seed: int) -> None:
    generator = np.random.default_rng(seed)
    one, other = space.draw(generator), space.draw(generator)
    child, mutant = space.crossover(one, other, generator), space.mutate(one, generator)
    for candidate in (one, child, mutant):
        shape = (3, 32, 32) if isinstance(candidate, Convolutional) else (20,)
        model = candidate.build(shape, 4)
        assert sizes(model)[1] > 0
        assert read_candidate(json.loads(json.dumps(candidate.to_json()))) == candidate
        if isinstance(candidate, Dense):
            assert all(layer.units in space.widths[place] for place, layer in enumerate(candidate.layers))
            assert space.freezing or all(layer.trainable for layer in candidate.layers)
        else:
            assert candidate.blocks in space.blocks
            assert space.freezing or all(candidate.trainable)
    assert space.crossover(one, one, generator) == one


@given(seed=st.integers(0, 2**32))
def test_a_child_has_each_choice_from_a_parent(seed: int) -> None:
    space, generator = DenseSpace(freezing=True), np.random.default_rng(seed)
    parents = [space.draw(generator) for _ in range(2)]
    child = space.crossover(*parents, generator)
    assert child.learning_rate in {parent.learning_rate for parent in parents}
    assert len(child.layers) in {len(parent.layers) for parent in parents}
    for place, layer in enumerate(child.layers):
        donors = [parent.layers[place] for parent in parents if len(parent.layers) > place]
        assert layer.units in {donor.units for donor in donors}
        assert layer.activation in {donor.activation for donor in donors}


@pytest.mark.parametrize("space", SPACES[:2], ids=str)
@given(seed=st.integers(0, 2**32))
def test_a_mutant_differs_in_one_choice(space: DenseSpace, seed: int) -> None:
    generator = np.random.default_rng(seed)
    before = space.draw(generator)
    after = space.mutate(before, generator)
    assert after != before
    shared = list(zip(before.layers, after.layers, strict=False))
    changes = sum(
        getattr(a, name) != getattr(b, name) for a, b in shared for name in ("units", "activation", "trainable")
    )
    changes += (len(before.layers) != len(after.layers)) + (before.learning_rate != after.learning_rate)
    assert changes == 1


def test_images_too_small_for_the_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="large enough"):
        Convolutional(3, 16, 32, (True,) * 4, 0.05).build((1, 12, 12), 10)
    with pytest.raises(ValueError, match="large enough"):
        Convolutional(2, 16, 32, (True,) * 3, 0.05).build((64,), 10)


@pytest.mark.parametrize("wrong", [{"widths": ()}, {"widths": ((),)}, {"widths": ((0,),)}, {"learning_rates": ()}])
def test_a_space_without_choices_is_refused(wrong) -> None:
    with pytest.raises(ValueError, match="a space needs"):
        DenseSpace(**wrong)
