"""Replacing layers that mix examples."""

import copy

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def repair(model: nn.Module) -> nn.Module:
    """A copy of the model with a group norm in the place of each batch norm.

    Groups: the largest number up to 32 that divides the channels into groups of at least two, or one.
    """
    model = copy.deepcopy(model)
    if isinstance(model, _BatchNorm):
        return _group_norm(model)
    replaced: dict[nn.Module, nn.Module] = {}  # one that stands in several places stays one
    for layer in list(model.modules()):
        for name, child in layer._modules.items():
            if isinstance(child, _BatchNorm):
                layer._modules[name] = replaced.setdefault(child, _group_norm(child))
    return model


def _group_norm(norm: _BatchNorm) -> nn.GroupNorm:
    channels = norm.num_features
    groups = max(g for g in range(1, 33) if channels % g == 0 and (channels // g >= 2 or g == 1))
    like = norm.weight if norm.affine else norm.running_mean
    device, dtype = (None, None) if like is None else (like.device, like.dtype)
    new = nn.GroupNorm(groups, channels, norm.eps, norm.affine, device=device, dtype=dtype)
    if norm.affine:
        new.load_state_dict({"weight": norm.weight.detach(), "bias": norm.bias.detach()})
    return new.train(norm.training)
