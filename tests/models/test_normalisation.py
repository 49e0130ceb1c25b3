"""Batch norm beside public images: what the sound form lets an example see, and what Algorithm 2 does."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sordino import models
from sordino.models.normalisation import FirstOwnBatchNorm, OwnBatchNorm, normalised_in_runs

BUILDS: dict[str, tuple[Callable[[models.Norm], nn.Module], tuple[int, ...]]] = {
    "lenet5": (lambda norm: models.lenet5(norm=norm), (1, 28, 28)),
    "lenet_300_100": (lambda norm: models.lenet_300_100(norm=norm), (1, 28, 28)),
    "resnet": (lambda norm: models.ResNet((1, 1), (4, 8), norm=norm, score_norm=norm), (3, 8, 8)),
    "vgg16": (lambda norm: models.vgg16(norm=norm, width=2), (3, 32, 32)),
}


def built(name: str, kind: type[models.AmongPublic] = models.AmongPublic, company: int = 5) -> models.AmongPublic:
    build, shape = BUILDS[name]
    torch.manual_seed(0)
    return kind(build, torch.randn(company, *shape, dtype=torch.float64)).double()


def examples(name: str, count: int = 4) -> Tensor:
    return torch.randn(count, *BUILDS[name][1], dtype=torch.float64)


def gradient(model: nn.Module, x: Tensor, place: int) -> Tensor:
    """Of one example's loss, with the whole batch at hand."""
    loss = cross_entropy(model(x), torch.zeros(len(x), dtype=torch.int64), reduction="none")[place]
    return torch.cat([value.flatten() for value in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", BUILDS)
def test_one_example_changes_no_others_scores_or_gradient(name: str, training: bool) -> None:
    model, x = built(name).train(training), examples(name)
    changed = x.clone()
    changed[0] = 50 * x[0] + 7
    assert torch.allclose(model(changed)[1:], model(x)[1:], rtol=1e-9, atol=1e-9)
    assert not torch.allclose(model(changed)[0], model(x)[0])
    with torch.no_grad():
        assert torch.allclose(model(changed)[1:], model(x)[1:], rtol=1e-9, atol=1e-9)
    for place in (1, 3):
        own = gradient(model, x, place)
        assert float(own.norm()) > 0
        assert torch.allclose(gradient(model, changed, place), own, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", BUILDS)
def test_the_sound_form_is_plain_batch_norm_of_an_example_and_the_public_images(name: str) -> None:
    model, x = built(name), examples(name)
    plain = BUILDS[name][0](models.BatchNorm).double()
    plain.load_state_dict(model.net.state_dict())
    expected = torch.cat([plain(torch.cat((one[None], model.public)))[:1] for one in x])
    assert torch.allclose(model(x), expected, atol=1e-8)
    with torch.no_grad():  # where the public images pass the first layer once
        assert torch.allclose(model(x), expected, atol=1e-8)


@pytest.mark.parametrize("name", BUILDS)
def test_algorithm_2_normalises_the_batch_with_the_public_images(name: str) -> None:
    model, x = built(name, models.BesidePublic), examples(name)
    plain = BUILDS[name][0](models.BatchNorm).double()
    plain.load_state_dict(model.net.state_dict())
    assert torch.allclose(model(x), plain(torch.cat((x, model.public)))[: len(x)], atol=1e-8)
    changed = x.clone()
    changed[0] = 3 * x[0]
    assert not torch.allclose(model(changed)[1:], model(x)[1:])
    sound = built(name)
    sound.load_state_dict(model.state_dict())
    assert torch.allclose(model.eval()(x), sound(x), atol=1e-8)
    with torch.no_grad():
        assert torch.allclose(model(x), sound(x), atol=1e-8)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 40), st.integers(1, 4), st.sampled_from([(3,), (2, 5), (2, 4, 3)]))
def test_any_number_of_examples_in_any_company(count: int, company: int, shape: tuple[int, ...]) -> None:
    model = models.AmongPublic(lambda norm: nn.Sequential(norm(shape[0]), norm(shape[0])), torch.randn(company, *shape))
    x = torch.randn(count, *shape)
    found = model(x)
    assert found.shape == x.shape
    with torch.no_grad():
        assert torch.allclose(model(x), found, atol=1e-4)
        if count:
            assert torch.allclose(model(x[-1:]), found[-1:], atol=1e-4)


def test_runs_have_mean_0_and_variance_1() -> None:
    x = 3 + 2 * torch.randn(12, 5, 7, dtype=torch.float64)
    rows = normalised_in_runs(x, 4).unflatten(0, (3, 4))
    assert torch.allclose(rows.mean((1, 3)), torch.zeros(3, 5, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(rows.var((1, 3), correction=0), torch.ones(3, 5, dtype=torch.float64), atol=1e-4)
    assert [FirstOwnBatchNorm(5, 4).extra_repr(), OwnBatchNorm(5, 4).extra_repr()] == ["5, size=4"] * 2


def test_bad_company_is_told() -> None:
    build = BUILDS["lenet5"][0]
    for wrong in (torch.zeros(0, 1, 28, 28), torch.zeros(3), torch.zeros(3, 1, 28, 28, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="public images must be a batch"):
            models.AmongPublic(build, wrong)
    with pytest.raises(ValueError, match=r"of shape \(3, 8, 8\) beside images of \(1, 28, 28\)"):
        models.AmongPublic(build, torch.zeros(3, 1, 28, 28))(torch.zeros(2, 3, 8, 8))
    with pytest.raises(ValueError, match="no norm"):
        models.AmongPublic(lambda norm: nn.Linear(3, 2), torch.zeros(3, 3))
