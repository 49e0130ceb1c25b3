"""Weights that were trained on public data, from a file: ours, timm's and torchvision's names.

A timm ResNet-v2 with group norms and standardised weights (BiT's resnetv2_50x1_bit) and a timm or DeiT ViT-Tiny fit as
a whole: the network then computes what theirs computes. BiT's needs `standardised=True`. A timm ResNet-v2 with batch
norms gives its convolutions, scales and shifts, but group norms normalise otherwise, so that it must be fine-tuned.
torchvision's ResNets have norm and ReLU after each convolution, and batch norms: they give their convolutions and head,
and nothing of their norms.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from sordino.data import DataError, reading
from sordino.models.groups import parts_of

_LEAST = 0.5
"""Of the weights outside the head: a network of which less than this is loaded is not the one in the file."""
_NESTED = ("state_dict", "model", "model_ema", "module")
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_SHOWN = 4
_TORCHVISION = "torchvision's names"


@dataclass(frozen=True)
class LoadedWeights:
    """What was loaded into a network and what was not; printed, it says so in a few lines."""

    source: str
    naming: str
    matched: tuple[str, ...]
    """Parameters that were loaded as they are."""
    reshaped: dict[str, str]
    """Parameters that were loaded in another shape, and how."""
    kept: dict[str, str]
    """Parameters that keep the values they had, and why."""
    unused: tuple[str, ...]
    """Names in the file that the network has no place for."""
    share: float
    """Of the network's weights outside its head, how much was loaded."""
    caveat: str
    """Why the network computes something else than the one in the file, as far as names tell; else nothing."""

    def __str__(self) -> str:
        loaded = len(self.matched) + len(self.reshaped)
        lines = [
            f"{self.source} ({self.naming}): {loaded} of {loaded + len(self.kept)} parameters loaded, "
            f"{self.share:.1%} of the weights outside the head"
        ]
        lines += [f"  reshaped: {name}, {how}" for name, how in self.reshaped.items()]
        for why in dict.fromkeys(self.kept.values()):
            lines.append(f"  not loaded, {why}: {_few([name for name in self.kept if self.kept[name] == why])}")
        if self.unused:
            lines.append(f"  unused in the file: {_few(self.unused)}")
        if self.caveat:
            lines.append(f"  {self.caveat}")
        return "\n".join(lines)


def load_public(model: nn.Sequential, weights: str | Path | Mapping[str, Tensor]) -> LoadedWeights:
    """Load public weights into a network of this room: a .safetensors file, a .pth file or a state_dict.

    A .pth file is read as weights alone: no code in it is run. Whatever does not fit keeps its values and is named in
    the result. A first convolution on RGB becomes one on grey by adding up its channels, which gives the same on images
    whose channels are equal; one on grey becomes one on several by sharing it out. Positions of a ViT are interpolated
    to another grid. A head for other classes is not loaded.

    Guarantee: none of its own. Nothing is charged, so the weights must come from public data alone.

    >>> from sordino.models import vit_tiny
    >>> theirs = vit_tiny(3, 5, side=28, patch=7, width=12, depth=4)
    >>> print(load_public(vit_tiny(1, 10, side=28, patch=7, width=12, depth=4), theirs.state_dict()))
    the state_dict (Sordino's names): 54 of 56 parameters loaded, 100.0% of the weights outside the head
      reshaped: stem.patches.weight, 3 input channels added up to 1
      not loaded, 5 classes there and 10 here: head.weight, head.bias
    """
    parts = parts_of(model)
    source = "the state_dict" if isinstance(weights, Mapping) else str(weights)
    theirs = _tensors(source, weights if isinstance(weights, Mapping) else _read(Path(weights)))
    own = dict(model.named_parameters())
    naming, found = _translated(parts, theirs, own)
    ready: dict[str, Tensor] = {}
    reshaped: dict[str, str] = {}
    kept = {name: "not in the file" for name in own if name not in found}
    for name in own.keys() & found.keys():
        value, how = _fitted(name, theirs[found[name]], own[name].shape)
        if value is None:
            kept[name] = how
        else:
            ready[name] = value
            reshaped |= {name: how} if how else {}
    body = {name: value.numel() for name, value in own.items() if not name.startswith("head.")}
    share = sum(count for name, count in body.items() if name in ready) / max(sum(body.values()), 1)
    if share < _LEAST:
        raise DataError(
            f"{source} does not fit this network: {share:.0%} of the weights outside the head have their like there "
            f"(it has {_few(list(theirs))}, the network {_few(list(body))}): build the network that the file is of"
        )
    broken = next((name for name, value in ready.items() if not bool(torch.isfinite(value).all())), None)
    if broken is not None:
        raise DataError(f"{source} holds weights that are not finite numbers, in {found[broken]}: fetch it again")
    with torch.no_grad():
        for name, value in ready.items():
            own[name].copy_(value)
    placed = set(found.values())
    return LoadedWeights(
        source=source,
        naming=naming,
        matched=tuple(name for name in own if name in ready and name not in reshaped),
        reshaped={name: reshaped[name] for name in own if name in reshaped},
        kept={name: kept[name] for name in own if name in kept},
        unused=tuple(name for name in theirs if name not in placed and not name.endswith(_STATISTICS)),
        share=share,
        caveat=_caveat(naming, theirs),
    )


def _caveat(naming: str, theirs: Mapping[str, Tensor]) -> str:
    if naming == _TORCHVISION:
        return (
            "torchvision's ResNets have batch norms, after the convolutions and not before them: convolutions and head "
            "were loaded without norms, so fine-tune the whole network"
        )
    if any(name.endswith(_STATISTICS) for name in theirs):
        return "its norms are batch norms: group norms compute something else, so fine-tune the whole network"
    return ""


def _read(path: Path) -> Mapping[str, Tensor]:
    if path.suffix == ".safetensors":
        with reading(path, ".safetensors"):
            return load_file(path)
    if path.suffix not in (".pth", ".pt", ".bin"):
        raise DataError(f"{path} is neither a .safetensors nor a .pth file: save weights as one of them")
    with reading(path, "weights-only .pth"):
        found: Mapping[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return found


def _tensors(source: str, found: object) -> dict[str, Tensor]:
    """The state_dict, also where a checkpoint wraps it, without the prefix that parallel training adds."""
    for name in _NESTED:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    if not isinstance(found, Mapping):
        raise DataError(f"{source} holds no state_dict: save model.state_dict()")
    tensors = {str(name): value for name, value in found.items() if isinstance(value, Tensor)}
    if not tensors:
        raise DataError(f"{source} holds no weights: save model.state_dict()")
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): value for name, value in tensors.items()}
    return tensors


def _translated(
    parts: Mapping[str, nn.Module], theirs: Mapping[str, Tensor], own: Mapping[str, Tensor]
) -> tuple[str, dict[str, str]]:
    """The naming by which most of the network's parameters are found, and each one's name in the file."""
    per_group = len(list(parts["group1"].children()))
    best: tuple[str, dict[str, str]] = ("no known names", {})
    for naming, translate in _NAMINGS.items():
        found = {translate(name, per_group): name for name in theirs}
        matched = {name: found[name] for name in own if name in found}
        if len(matched) > len(best[1]):
            best = naming, matched
    return best


def _torchvision(name: str, per_group: int) -> str:
    return _by_patterns(
        name,
        (r"conv1\.", r"stem.conv."),
        (r"layer(\d+)\.(\d+)\.(conv\d)\.", r"group\1.\2.layers.\3."),
        (r"layer(\d+)\.(\d+)\.downsample\.0\.", r"group\1.\2.shortcut."),
        (r"fc\.", r"head."),
    )


def _timm(name: str, per_group: int) -> str:
    staged = re.fullmatch(r"stages\.(\d+)\.blocks\.(.*)", name)
    if staged:
        return f"group{int(staged[1]) + 1}." + _by_patterns(
            staged[2],
            (r"(\d+)\.norm1\.", r"\1.norm1."),
            (r"(\d+)\.(norm\d|conv\d)\.", r"\1.layers.\2."),
            (r"(\d+)\.downsample\.conv\.", r"\1.shortcut."),
        )
    encoder = re.fullmatch(r"blocks\.(\d+)\.(.*)", name)
    if encoder:
        group, place = divmod(int(encoder[1]), per_group)
        return f"group{group + 1}.{place}.{encoder[2]}"
    return _by_patterns(
        name,
        (r"cls_token$", r"stem.class_token"),
        (r"pos_embed$", r"stem.positions"),
        (r"patch_embed\.proj\.", r"stem.patches."),
        (r"norm\.", r"pool.norm."),
        (r"head\.fc\.", r"head."),
    )


def _by_patterns(name: str, *patterns: tuple[str, str]) -> str:
    """The name with its beginning replaced, by the first pattern that fits."""
    for pattern, replacement in patterns:
        if re.match(pattern, name):
            return re.sub(f"^{pattern}", replacement, name)
    return name


_NAMINGS: dict[str, Callable[[str, int], str]] = {
    "Sordino's names": lambda name, per_group: name,
    "timm's names": _timm,
    _TORCHVISION: _torchvision,
}


def _fitted(name: str, value: Tensor, shape: torch.Size) -> tuple[Tensor | None, str]:
    """The value in the parameter's shape, and how it came to it (nothing if it had it); or None, and why not."""
    value = value.detach()
    if value.shape == shape:
        return value, ""
    if name.startswith("head."):
        if value.shape[2:] == (1, 1) and value.shape[:2] == shape:
            return value[:, :, 0, 0], "from a 1×1 convolution"
        return None, f"{len(value)} classes there and {shape[0]} here"
    if name.startswith("stem.") and value.ndim == 4 and (value.shape[0], *value.shape[2:]) == (shape[0], *shape[2:]):
        if shape[1] == 1:
            return value.double().sum(1, keepdim=True), f"{value.shape[1]} input channels added up to 1"
        if value.shape[1] == 1:
            return value.double().expand(shape) / shape[1], f"1 input channel shared out to {shape[1]}"
    if name == "stem.positions" and value.ndim == 3 and value.shape[2] == shape[2]:
        old, new = math.isqrt(value.shape[1] - 1), math.isqrt(shape[1] - 1)
        if old**2 == value.shape[1] - 1:
            return _interpolated(value.double(), old, new), f"interpolated from {old}×{old} patches to {new}×{new}"
    return None, f"{_size(value.shape)} there and {_size(shape)} here"


def _interpolated(positions: Tensor, old: int, new: int) -> Tensor:
    grid = positions[:, 1:].transpose(1, 2).unflatten(2, (old, old))
    resized = functional.interpolate(grid, (new, new), mode="bicubic", antialias=True)
    return torch.cat((positions[:, :1], resized.flatten(2).transpose(1, 2)), 1)


def _size(shape: torch.Size) -> str:
    return "×".join(str(side) for side in shape)


def _few(names: tuple[str, ...] | list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
