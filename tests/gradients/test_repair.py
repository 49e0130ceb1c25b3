"""Repair keeps what a norm's subclass adds, or refuses it by name."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sordino.gradients import ClippedGradients, repair

from .reference import check, squared_error


class BatchNormAct(nn.BatchNorm2d):
    """A batch norm with drop and activation inside, built as timm's BatchNormAct2d is."""

    def __init__(self, channels: int, act: nn.Module) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), act

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, 0.1, self.eps
        )
        return self.act(self.drop(x))  # type: ignore[no-any-return]


class Renamed(nn.BatchNorm2d):
    """A subclass that computes nothing else."""


class WithRelu(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


class ReluInTraining(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        return x.relu() if self.training else x


class ActFirst(BatchNormAct):
    def forward(self, x: Tensor) -> Tensor:
        return nn.BatchNorm2d.forward(self, self.act(x))


class Unused(nn.BatchNorm2d):
    """Has a layer that its forward does not run."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.act = nn.ReLU()


def within(norm: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.Sequential(norm), nn.Flatten(), nn.Linear(24, 2))


@pytest.mark.parametrize("act", [nn.ReLU(inplace=True), nn.SiLU(), nn.Identity(), nn.Sigmoid()])
def test_the_activation_inside_a_batch_norm_stays(act: nn.Module) -> None:
    repaired = repair(within(BatchNormAct(6, act)))
    norm = repaired[1][0]  # type: ignore[index]
    assert [type(layer) for layer in norm] == [nn.GroupNorm, nn.Identity, type(act)]
    assert type(norm.act) is type(act)
    x = torch.randn(4, 3, 4, 4)
    between = repaired[0](x)  # type: ignore[index]
    assert torch.equal(norm(between), act(nn.GroupNorm(3, 6)(between)))
    check(repaired, x)


@pytest.mark.parametrize(
    "norm", [WithRelu(6), ReluInTraining(6), ReluInTraining(6).eval(), ActFirst(6, nn.ReLU()), Unused(6)]
)
def test_a_subclass_that_computes_something_else_is_refused_by_name(norm: nn.Module) -> None:
    with pytest.raises(ValueError, match=rf"layer 1.0 \({type(norm).__name__}\) does more") as error:
        repair(within(norm))
    assert "\n" not in str(error.value)


def test_hooks_and_replaced_forwards_are_refused() -> None:
    hooked: Any = nn.BatchNorm2d(6)
    hooked.register_forward_hook(lambda layer, args, output: output.relu())
    with pytest.raises(ValueError, match="has hooks"):
        repair(within(hooked))
    patched: Any = nn.BatchNorm2d(6)
    patched.forward = lambda x: x.relu()
    with pytest.raises(ValueError, match="does more"):
        repair(within(patched))


def test_plain_subclasses_and_synchronised_norms_are_replaced() -> None:
    for norm in (Renamed(6), nn.SyncBatchNorm(6), nn.BatchNorm2d(6, track_running_stats=False)):
        assert type(repair(within(norm))[1][0]) is nn.GroupNorm  # type: ignore[index]


def test_chances_inside_a_batch_norm_stay() -> None:
    repaired: Any = repair(within(BatchNormAct(6, nn.Dropout(0.5))))
    assert [type(layer) for layer in repaired[1][0]] == [nn.GroupNorm, nn.Identity, nn.Dropout]


def test_frozen_norms_stay_frozen() -> None:
    norm = nn.BatchNorm2d(6)
    norm.weight.requires_grad_(False)
    repaired: Any = repair(within(norm))
    assert not repaired[1][0].weight.requires_grad
    assert repaired[1][0].bias.requires_grad


def test_instance_norms_lose_their_running_statistics() -> None:
    model = within(nn.InstanceNorm2d(6, affine=True, track_running_stats=True))
    x, y = torch.randn(4, 3, 4, 4), torch.randn(4, 2)
    with pytest.raises(ValueError, match=r"running_mean .*repair"):
        ClippedGradients(model, squared_error)(x, y)
    repaired = repair(model)
    assert not list(repaired.buffers())
    assert torch.equal(repaired(x), repaired.eval()(x))
    assert list(model.buffers())
    check(repaired.train(), x)


def test_lazy_layers_are_refused_until_they_have_shapes() -> None:
    model = nn.Sequential(nn.LazyConv2d(6, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))
    with pytest.raises(ValueError, match=r"0\.weight has no shape yet"):
        repair(model)
    with pytest.raises(ValueError, match=r"0\.weight has no shape yet"):
        ClippedGradients(model, squared_error)
    x = torch.randn(4, 3, 4, 4)
    model(x)
    check(repair(model), x)
