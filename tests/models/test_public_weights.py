"""Public weights: what of a file is loaded under which names, and that the network then computes what it should."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from sordino import models
from sordino.data import DataError

BLOCKS = (3, 4, 6, 3)


def timm_resnet(width: int = 2, classes: int = 5) -> dict[str, Tensor]:
    """The names and shapes of timm's resnetv2_50x1_bit."""
    torch.manual_seed(0)
    found = {"stem.conv.weight": torch.randn(width, 3, 7, 7)}
    inputs = width
    for stage, count in enumerate(BLOCKS):
        outputs = 4 * width * 2**stage
        middle = outputs // 4
        for block in range(count):
            name = f"stages.{stage}.blocks.{block}"
            if not block:
                found[f"{name}.downsample.conv.weight"] = torch.randn(outputs, inputs, 1, 1)
            shapes = [(middle, inputs, 1), (middle, middle, 3), (outputs, middle, 1)]
            for place, (after, before, kernel) in enumerate(shapes, 1):
                found[f"{name}.norm{place}.weight"] = torch.rand(before) + 0.5
                found[f"{name}.norm{place}.bias"] = torch.randn(before)
                found[f"{name}.conv{place}.weight"] = torch.randn(after, before, kernel, kernel)
            inputs = outputs
    found["norm.weight"], found["norm.bias"] = torch.rand(inputs) + 0.5, torch.randn(inputs)
    found["head.fc.weight"], found["head.fc.bias"] = torch.randn(classes, inputs, 1, 1), torch.randn(classes)
    return {name: value.double() for name, value in found.items()}


def scores_of_timm(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """What BiT's ResNet-50 computes, from its names."""

    def conv(name: str, x: Tensor, stride: int = 1) -> Tensor:
        kernel = weights[f"{name}.weight"]
        flat = kernel.flatten(1)
        flat = (flat - flat.mean(1, keepdim=True)) / (flat.var(1, correction=0, keepdim=True) + 1e-8).sqrt()
        return functional.conv2d(x, flat.view_as(kernel), stride=stride, padding=kernel.shape[2] // 2)

    def norm(name: str, x: Tensor) -> Tensor:
        scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
        groups = models.group_norm(32)(len(scale)).num_groups
        return functional.group_norm(x, groups, scale, shift).relu()

    hidden = functional.max_pool2d(functional.pad(conv("stem.conv", x, 2), (1, 1, 1, 1)), 3, 2)
    for stage, count in enumerate(BLOCKS):
        for block in range(count):
            name, stride = f"stages.{stage}.blocks.{block}", 2 if stage and not block else 1
            first = norm(f"{name}.norm1", hidden)
            shortcut = hidden if block else conv(f"{name}.downsample.conv", first, stride)
            inner = conv(f"{name}.conv2", norm(f"{name}.norm2", conv(f"{name}.conv1", first)), stride)
            hidden = shortcut + conv(f"{name}.conv3", norm(f"{name}.norm3", inner))
    pooled = norm("norm", hidden).mean((2, 3))
    return pooled @ weights["head.fc.weight"][:, :, 0, 0].T + weights["head.fc.bias"]


def timm_vit(classes: int = 5, side: int = 4) -> dict[str, Tensor]:
    """The names and shapes of timm's vit_tiny_patch16_224, but narrow, for 3 channels and 4 blocks."""
    torch.manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, 12),
        "pos_embed": (1, side**2 + 1, 12),
        "patch_embed.proj.weight": (12, 3, 4, 4),
        "patch_embed.proj.bias": (12,),
        "norm.weight": (12,),
        "norm.bias": (12,),
        "head.weight": (classes, 12),
        "head.bias": (classes,),
    }
    for block in range(4):
        for layer, outputs, inputs in (
            ("attn.qkv", 36, 12),
            ("attn.proj", 12, 12),
            ("mlp.fc1", 48, 12),
            ("mlp.fc2", 12, 48),
        ):
            shapes[f"blocks.{block}.{layer}.weight"] = (outputs, inputs)
            shapes[f"blocks.{block}.{layer}.bias"] = (outputs,)
        for norm in ("norm1", "norm2"):
            shapes[f"blocks.{block}.{norm}.weight"] = shapes[f"blocks.{block}.{norm}.bias"] = (12,)
    return {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}


def scores_of_vit(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """What a vision transformer computes, by torch's own encoder layers."""
    patches = functional.conv2d(x, weights["patch_embed.proj.weight"], weights["patch_embed.proj.bias"], stride=4)
    hidden = torch.cat((weights["cls_token"].expand(len(x), -1, -1), patches.flatten(2).transpose(1, 2)), 1)
    hidden = hidden + weights["pos_embed"]
    for block in range(4):
        layer = nn.TransformerEncoderLayer(12, 3, 48, 0.0, "gelu", 1e-6, batch_first=True, norm_first=True).double()
        theirs = {
            "self_attn.in_proj_": "attn.qkv.",
            "self_attn.out_proj.": "attn.proj.",
            "linear1.": "mlp.fc1.",
            "linear2.": "mlp.fc2.",
            "norm1.": "norm1.",
            "norm2.": "norm2.",
        }
        state = {
            f"{a}{kind}": weights[f"blocks.{block}.{b}{kind}"] for a, b in theirs.items() for kind in ("weight", "bias")
        }
        layer.load_state_dict(state)
        hidden = layer(hidden)
    first = functional.layer_norm(hidden[:, 0], (12,), weights["norm.weight"], weights["norm.bias"], 1e-6)
    return first @ weights["head.weight"].T + weights["head.bias"]


def vit(channels: int = 3, classes: int = 5, side: int = 16) -> nn.Sequential:
    return models.vit_tiny(channels, classes, side=side, patch=4, width=12, depth=4).double()


def resnet(**options: bool) -> nn.Sequential:
    return models.resnet50_v2(3, 5, width=2, **options).double()


def test_timms_resnet_computes_the_same() -> None:
    weights, model = timm_resnet(), resnet(standardised=True)
    found = models.load_public(model, weights)
    assert (found.naming, found.share, found.kept, found.unused, found.caveat) == ("timm's names", 1.0, {}, (), "")
    assert found.reshaped == {"head.weight": "from a 1×1 convolution"}
    assert len(found.matched) == len(weights) - 1
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    assert torch.allclose(model(x), scores_of_timm(weights, x), rtol=1e-8, atol=1e-8)


def test_timms_vit_computes_the_same() -> None:
    weights, model = timm_vit(), vit()
    found = models.load_public(model, weights)
    assert len(found.matched) == len(weights) == len(model.state_dict())
    assert (
        str(found)
        == "the state_dict (timm's names): 56 of 56 parameters loaded, 100.0% of the weights outside the head"
    )
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    assert torch.allclose(model(x), scores_of_vit(weights, x), rtol=1e-8, atol=1e-8)


def test_grey_images_give_what_equal_channels_give() -> None:
    weights, colour, grey = timm_vit(), vit(), vit(channels=1)
    models.load_public(colour, weights)
    found = models.load_public(grey, weights)
    assert found.reshaped == {"stem.patches.weight": "3 input channels added up to 1"}
    x = torch.randn(2, 1, 16, 16, dtype=torch.float64)
    assert torch.allclose(grey(x), colour(x.expand(-1, 3, -1, -1)), atol=1e-10)
    again = models.load_public(colour, grey.state_dict())
    assert again.naming == "Sordino's names"
    assert again.reshaped == {"stem.patches.weight": "1 input channel shared out to 3"}
    assert torch.allclose(grey(x), colour(x.expand(-1, 3, -1, -1)), atol=1e-10)


def test_positions_are_interpolated() -> None:
    weights, model = timm_vit(), vit(side=24)
    rows = torch.linspace(0, 1, 4, dtype=torch.float64).repeat_interleave(4)
    weights["pos_embed"] = torch.cat((torch.full((1, 1, 12), 7.0), rows[None, :, None].expand(1, 16, 12)), 1)
    found = models.load_public(model, weights)
    assert found.reshaped == {"stem.positions": "interpolated from 4×4 patches to 6×6"}
    positions = model.stem.positions.detach()
    assert bool((positions[:, 0] == 7).all())
    grid = positions[0, 1:, 0].view(6, 6)
    assert torch.allclose(grid, grid[:, :1].expand(6, 6))
    assert bool((grid.diff(dim=0) > 0).all())
    assert model(torch.randn(2, 3, 24, 24, dtype=torch.float64)).shape == (2, 5)


def test_a_head_for_other_classes_is_left_as_it_was() -> None:
    model = models.replace_head(vit(), 9)
    found = models.load_public(model, timm_vit())
    assert found.kept == dict.fromkeys(("head.weight", "head.bias"), "5 classes there and 9 here")
    assert found.unused == ()
    assert str(found).endswith("\n  not loaded, 5 classes there and 9 here: head.weight, head.bias")
    assert not model.head.weight.any()


def torchvision_resnet(width: int = 2) -> dict[str, Tensor]:
    """The names and shapes of torchvision's resnet18."""
    torch.manual_seed(0)

    def norm(name: str, channels: int) -> dict[str, Tensor]:
        kinds = {kind: torch.rand(channels) for kind in ("weight", "bias", "running_mean", "running_var")}
        return {f"{name}.{kind}": value for kind, value in kinds.items()} | {
            f"{name}.num_batches_tracked": torch.ones(())
        }

    found = {"conv1.weight": torch.randn(width, 3, 7, 7)} | norm("bn1", width)
    inputs = width
    for stage in range(4):
        outputs = width * 2**stage
        for block in range(2):
            name = f"layer{stage + 1}.{block}"
            for place in (1, 2):
                found[f"{name}.conv{place}.weight"] = torch.randn(outputs, inputs if place == 1 else outputs, 3, 3)
                found |= norm(f"{name}.bn{place}", outputs)
            if inputs != outputs:
                found[f"{name}.downsample.0.weight"] = torch.randn(outputs, inputs, 1, 1)
                found |= norm(f"{name}.downsample.1", outputs)
            inputs = outputs
    return found | {"fc.weight": torch.randn(5, inputs), "fc.bias": torch.randn(5)}


def test_torchvisions_resnets_give_their_convolutions() -> None:
    weights, model = torchvision_resnet(), models.resnet18_v2(3, 5, width=2)
    found = models.load_public(model, weights)
    assert found.naming == "torchvision's names"
    convolutions = {name for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)}
    assert {*found.matched} == {f"{name}.weight" for name in convolutions} | {"head.weight", "head.bias"}
    assert torch.equal(model.group3[0].shortcut.weight, weights["layer3.0.downsample.0.weight"])
    assert torch.equal(model.group4[1].layers.conv2.weight, weights["layer4.1.conv2.weight"])
    assert set(found.kept.values()) == {"not in the file"}
    assert all("norm" in name for name in found.kept)
    assert all(".bn" in name or name.startswith("bn1") or "downsample.1" in name for name in found.unused)
    assert "batch norms, after the convolutions and not before them" in str(found)


def test_batch_norms_of_a_version_2_are_told() -> None:
    weights = timm_resnet() | {"norm.running_mean": torch.zeros(64)}
    found = models.load_public(resnet(), weights)
    assert found.share == 1
    assert "its norms are batch norms" in str(found)


def test_a_small_stem_does_not_take_a_large_kernel() -> None:
    found = models.load_public(resnet(small_images=True), timm_resnet())
    assert found.kept == {"stem.conv.weight": "2×3×7×7 there and 2×3×3×3 here"}
    assert 0.9 < found.share < 1


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_files_are_read(suffix: str, tmp_path: Path) -> None:
    weights, path = timm_vit(), tmp_path / f"vit{suffix}"
    if suffix == ".pth":  # as DeiT's checkpoints, after parallel training
        torch.save({"model": {f"module.{name}": value for name, value in weights.items()}, "epoch": 3}, path)
    else:
        save_file(weights, path)
    model, expected = vit(), vit()
    found = models.load_public(model, path)
    models.load_public(expected, weights)
    assert str(found).startswith(f"{path} (timm's names): 56 of 56")
    assert all(torch.equal(*both) for both in zip(model.parameters(), expected.parameters(), strict=True))


class Harmful:
    def __reduce__(self) -> tuple[object, ...]:
        return (pytest.fail, ("code of the file was run",))


def test_bad_files_are_refused_in_one_line(tmp_path: Path) -> None:
    def refused(name: str, message: str, content: object = None) -> None:
        if isinstance(content, bytes):
            (tmp_path / name).write_bytes(content)
        elif content is not None:
            torch.save(content, tmp_path / name)
        with pytest.raises(DataError, match=message) as problem:
            models.load_public(vit(), tmp_path / name)
        assert "\n" not in str(problem.value)

    refused("none.pth", "does not exist")
    refused("weights.npz", "neither a .safetensors nor a .pth file", b"")
    refused("broken.safetensors", "not a readable .safetensors file", b"{}")
    refused("harmful.pth", "not a readable weights-only .pth file", {"w": Harmful()})
    refused("list.pth", "holds no state_dict", [torch.ones(3)])
    refused("empty.pth", "holds no weights", {"epoch": 3})
    refused("other.pth", "0% of the weights outside the head have their like there", {"fc1.weight": torch.ones(3)})
    refused(
        "nan.pth",
        r"not finite numbers, in blocks.2.mlp.fc1.bias",
        timm_vit() | {"blocks.2.mlp.fc1.bias": torch.full((48,), torch.nan)},
    )


def test_a_refused_file_changes_nothing() -> None:
    model = resnet()
    before = [value.clone() for value in model.parameters()]
    with pytest.raises(DataError, match=r"does not fit this network: \d+% of the weights"):
        models.load_public(model, timm_vit())
    with pytest.raises(DataError, match="does not fit this network"):
        models.load_public(model, torchvision_resnet(1))
    assert all(torch.equal(*both) for both in zip(before, model.parameters(), strict=True))


def test_networks_without_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="no groups and head"):
        models.load_public(models.mnist_cnn(), timm_vit())
