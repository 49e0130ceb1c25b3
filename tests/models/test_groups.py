"""Networks in groups: what is frozen, that the parts give exactly what the whole gives, and their gradients."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sordino import models
from sordino.features import Activations, Pixels, stored
from sordino.gradients import ClippedGradients

from ..gradients.reference import check

CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")
Build = Callable[[], nn.Sequential]
GROUPED: dict[str, tuple[Build, tuple[int, ...], int]] = {
    "resnet18_v2": (lambda: models.resnet18_v2(3, 5, width=4), (3, 32, 32), 4),
    "resnet18_v2 for small grey images": (
        lambda: models.resnet18_v2(1, 5, width=4, small_images=True, late_strides=True),
        (1, 8, 8),
        4,
    ),
    "resnet50_v2": (lambda: models.resnet50_v2(3, 5, width=4, late_strides=True), (3, 32, 32), 4),
    "simple_vgg": (lambda: models.simple_vgg("3(1)-4(2)-6", 1, 5, side=8), (1, 8, 8), 3),
    "vit_tiny": (lambda: models.vit_tiny(3, 5, side=8, patch=4, width=6, depth=4), (3, 8, 8), 4),
    "wrn_16_4": (lambda: models.wrn_16_4(1, 5, width=2), (1, 8, 8), 3),
    "wrn_16_4, standardised": (lambda: models.wrn_16_4(3, 5, width=2, standardised=True), (3, 8, 8), 3),
}


def built(name: str, examples: int = 3) -> tuple[nn.Sequential, Tensor, Tensor]:
    """Every weight away from where it starts, in double precision."""
    build, shape, _ = GROUPED[name]
    torch.manual_seed(0)
    model = build().double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    x = torch.randn(examples, *shape, dtype=torch.float64)
    return model, x, torch.randint(0, 5, (examples,))


@pytest.mark.parametrize("name", GROUPED)
def test_no_example_sees_another(name: str) -> None:
    model, x, _ = built(name)
    scores, changed = model(x), x.clone()
    assert scores.shape == (3, 5)
    changed[0] = 5 * x[1] + 1
    assert torch.allclose(model(changed)[1:], scores[1:], atol=1e-10)
    assert not torch.allclose(model(changed)[0], scores[0])


@pytest.mark.parametrize("name", GROUPED)
def test_frozen_part_and_rest_give_what_the_whole_gives(name: str) -> None:
    model, x, _ = built(name)
    scores, count = model(x), GROUPED[name][2]
    for groups in range(count + 1):
        frozen, rest = models.split(model, groups)
        with torch.no_grad():
            activations = frozen(x)
            kept = activations.clone()
            assert torch.equal(rest(activations), scores)
        assert torch.equal(activations, kept)  # no layer of the rest works in place on what is stored
        assert not any(weight.requires_grad for weight in frozen.parameters())
        assert all(weight.requires_grad for weight in rest.parameters())
        names = [part for part, _ in (*frozen.named_parameters(), *rest.named_parameters())]
        assert names == [part for part, _ in model.named_parameters()]
    assert [part for part, _ in rest.named_children()] == ["head"]
    with torch.no_grad():
        rest.head.bias += 1
    assert torch.allclose(model(x), scores + 1)  # the model has learned what the rest learns


@pytest.mark.parametrize("name", ["resnet18_v2", "vit_tiny"])
def test_stored_activations_train_the_rest(name: str, tmp_path: Path) -> None:
    """In single precision, by the feature that is stored; from uint8 images on."""
    model, shape = GROUPED[name][0](), GROUPED[name][1]
    images = np.random.default_rng(0).integers(0, 256, (7, *shape[1:], 3), dtype=np.uint8)
    frozen, rest = models.split(model, 2)
    feature = Pixels() >> Activations(frozen, "two groups")
    found = torch.from_numpy(np.array(stored(feature, images, cache=tmp_path)))
    with torch.no_grad():
        assert torch.equal(found, frozen(Pixels()(images)))
        assert torch.equal(rest(found), model(Pixels()(images)))
        next(frozen.parameters()).add_(1)
    assert Activations(frozen, "two groups").identity != feature.steps[1].identity


@pytest.mark.parametrize("name", GROUPED)
def test_gradients_are_a_loops_and_by_rules(name: str) -> None:
    model, x, y = built(name, 4)
    clipped = check(model, x, y, loss=CROSS_ENTROPY, dtypes=(torch.float64,), physical_batch=4)
    assert clipped.choices is not None
    assert clipped.choices.strategy == "rules"


def test_gradients_of_the_rest_are_those_of_the_whole() -> None:
    model, x, y = built("wrn_16_4, standardised")
    frozen, rest = models.split(model, 1)
    whole = ClippedGradients(model, CROSS_ENTROPY, 0.5)(x, y)
    part = ClippedGradients(rest, CROSS_ENTROPY, 0.5)(frozen(x), y)
    assert whole.sums.keys() == part.sums.keys()
    assert all(torch.allclose(whole.sums[name], part.sums[name], atol=1e-9) for name in part.sums)


@pytest.mark.parametrize(
    ("groups", "frozen"),
    [(0, []), (1, ["stem", "group1"]), (3, ["stem", "group1", "group2", "group3"])],
)
def test_groups_are_those_of_the_paper(groups: int, frozen: list[str]) -> None:
    model = models.freeze(models.freeze(models.resnet18_v2(width=2), 4), groups)
    fixed = {name.partition(".")[0] for name, weight in model.named_parameters() if not weight.requires_grad}
    assert sorted(fixed) == sorted(frozen)


def test_all_groups_leave_the_last_layer() -> None:
    model = models.freeze(models.resnet18_v2(width=2), 4)
    assert [name for name, weight in model.named_parameters() if weight.requires_grad] == ["head.weight", "head.bias"]


@pytest.mark.parametrize("groups", [-1, 4, True, 1.0])
def test_other_numbers_of_groups_are_refused(groups: int) -> None:
    with pytest.raises(ValueError, match="has 3 groups: freeze 0 to 3 of them, not"):
        models.split(models.wrn_16_4(width=2), groups)


def test_networks_without_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="Sequential has no groups and head"):
        models.freeze(models.mnist_cnn(), 1)
    with pytest.raises(ValueError, match="ResNet has no groups and head"):
        models.split(models.resnet18(width=2), 1)


@pytest.mark.parametrize("zeros", [True, False])
def test_a_head_is_replaced(zeros: bool) -> None:
    model = models.resnet18_v2(width=2).double()
    body = {name: value.clone() for name, value in model.state_dict().items() if not name.startswith("head")}
    models.replace_head(model, 7, zeros=zeros)
    scores = model(torch.randn(2, 3, 40, 40, dtype=torch.float64))
    assert scores.shape == (2, 7)
    assert scores.any() != zeros
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in body.items())


def test_a_head_that_is_not_linear_is_refused() -> None:
    model = models.wrn_16_4(width=2)
    model.head = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="the head is Sequential, not a linear layer"):
        models.replace_head(model, 3)
