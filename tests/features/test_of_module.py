"""Networks that the user brings: known by their weights, and refused where examples are not kept apart."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sordino.features import OfModule, Pixels


def backbone(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5))
    layers(torch.randn(64, 3, 8, 8))  # statistics of its own, and left in training mode
    return layers


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 7), st.integers(3, 9), st.integers(3, 9), st.integers(1, 4))
def test_planes_are_averaged_and_blocks_do_not_show(n: int, height: int, width: int, block: int) -> None:
    module = backbone()
    batch = torch.randn(n, 3, height, width)
    found = OfModule(module, "trial", block)(batch)
    assert module.training
    assert found.shape == (n, 6)
    assert not found.requires_grad
    assert torch.allclose(found, module.eval()(batch).mean((2, 3)), atol=1e-5)


@pytest.mark.parametrize(("module", "width"), [(nn.Identity(), 12), (nn.Flatten(), 12), (nn.Linear(4, 5), 15)])
def test_other_outputs_are_flattened(module: nn.Module, width: int) -> None:
    assert OfModule(module, "trial")(torch.randn(2, 3, 4)).shape == (2, width)


def test_images_come_through_pixels() -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    assert (Pixels() >> OfModule(backbone(), "trial"))(images).shape == (4, 6)
    with pytest.raises(ValueError, match="images in uint8 go through Pixels first"):
        OfModule(backbone(), "trial")(torch.from_numpy(images))


def test_identity_is_of_weights_statistics_and_layers() -> None:
    one = OfModule(backbone(), "trial")
    assert one == OfModule(backbone(), "trial")
    assert one.digest in repr(one)
    others = [backbone(1), backbone().double(), backbone(), backbone(), backbone()]
    with torch.no_grad():
        others[2][1].running_var[0] += 1  # type: ignore[index, operator]
    others[3][2] = nn.Tanh()
    others[4].register_buffer("hidden", torch.ones(()), persistent=False)
    assert len({one.digest, *(OfModule(other, "trial").digest for other in others)}) == 6


def test_later_changes_of_the_module_are_not_followed() -> None:
    module, batch = backbone(), torch.randn(2, 3, 8, 8)
    feature = OfModule(module, "trial")
    before = feature(batch)
    nn.init.zeros_(module[0].weight)  # type: ignore[arg-type]
    assert torch.equal(feature(batch), before)


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


class Counting(nn.Module):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return x


class Summing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Centred(), "Centred mixes examples in evaluation mode"),
        (Noisy(), "Noisy gives another result the second time"),
        (Counting(), "Counting gives another result the second time"),
        (Summing(), "Summing gives no tensor with a row for each example"),
    ],
)
def test_modules_that_do_not_keep_examples_apart_are_refused(module: nn.Module, message: str) -> None:
    feature = OfModule(module, "trial")
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            feature(torch.randn(2, 3))


def test_batch_statistics_are_refused_by_the_layers_name() -> None:
    module = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, track_running_stats=False))
    with pytest.raises(ValueError, match=r"layer 1 \(BatchNorm2d without running statistics\) mixes examples"):
        OfModule(module, "trial")
    assert OfModule(nn.InstanceNorm2d(3), "apart")(torch.randn(2, 3, 4, 4)).shape == (2, 3)
    with pytest.raises(ValueError, match="at least one at a time, not 0"):
        OfModule(module, "trial", block=0)
