"""Replacing layers that mix examples or keep statistics of them."""

import copy
from collections import OrderedDict

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from sordino.gradients.dry_runs import keep_random_state

_PLAIN = {kind.forward for kind in (_BatchNorm, nn.SyncBatchNorm)}
_DIMENSIONS = (4, 3, 2, 5)


def repair(model: nn.Module) -> nn.Module:
    """A copy of the model with a group norm in place of each batch norm, and without running statistics.

    Batch norms mix examples, so `ClippedGradients` refuses them. The number of groups is the largest up to 32 that
    divides the channels into groups of at least two, or one. Layers that a subclass applies after its batch norm (the
    activation of timm's BatchNormAct2d) are kept; a subclass that computes anything else is refused. Instance norms
    lose their running statistics.

    >>> import sordino
    >>> from torch import nn
    >>> model = sordino.repair(nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU()))
    >>> [type(layer).__name__ for layer in model], model[1].num_groups
    (['Conv2d', 'GroupNorm', 'ReLU'], 8)
    """
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(value):
            raise ValueError(
                f"{name} has no shape yet (a lazy layer): run the model once on an example that is not private, then "
                "repair it"
            )
    model = copy.deepcopy(model)
    if isinstance(model, _BatchNorm):
        return _replacement("model", model)
    replaced: dict[nn.Module, nn.Module] = {}  # a layer used in several places stays one
    for prefix, layer in list(model.named_modules()):
        if isinstance(layer, _InstanceNorm):
            _forget_statistics(layer)
        for name, child in layer._modules.items():
            if isinstance(child, _BatchNorm):
                if child not in replaced:
                    replaced[child] = _replacement(f"{prefix}.{name}" if prefix else name, child)
                layer._modules[name] = replaced[child]
    return model


def _forget_statistics(norm: _InstanceNorm) -> None:
    norm.track_running_stats = False
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        norm._buffers[name] = None


def _replacement(name: str, norm: _BatchNorm) -> nn.Module:
    """A group norm, followed by the layers that the batch norm's subclass adds."""
    added = dict(norm.named_children())
    hooked = norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks or norm._backward_pre_hooks
    if hooked or not _is_followed_by(norm, added):
        what = "has hooks" if hooked else "does more than a batch norm"
        raise ValueError(
            f"layer {name} ({type(norm).__name__}) {what}, which a group norm in its place would drop: replace it by "
            "hand, by a group norm and what comes with it"
        )
    new = _group_norm(norm)
    if not added:
        return new
    whole = nn.Sequential(OrderedDict(norm=new, **added))
    whole.training = norm.training
    return whole


@torch.no_grad()
def _is_followed_by(norm: _BatchNorm, added: dict[str, nn.Module]) -> bool:
    """Whether the layer is a plain batch norm followed by these layers: by its code, or else tried in both modes."""
    if type(norm).forward in _PLAIN and "forward" not in norm.__dict__ and not added:
        return True
    trial = copy.deepcopy(norm)
    generator = torch.Generator().manual_seed(0)
    if trial.running_mean is None or trial.running_var is None:
        return False
    for value in (trial.weight, trial.bias, trial.running_mean, trial.running_var):
        if value is not None:
            value.copy_(0.5 + torch.rand(value.shape, generator=generator))
    for dimensions in _DIMENSIONS:
        shape = (4, trial.num_features, *[3] * (dimensions - 2))
        x = (3 * torch.randn(shape, generator=generator)).to(trial.running_mean)
        try:
            trial.eval()(x.clone())
        except (RuntimeError, ValueError, AssertionError):  # the layer takes another number of dimensions
            continue
        return all(_is_followed_on(x, trial.train(training)) for training in (False, True))
    return False


def _is_followed_on(x: torch.Tensor, trial: _BatchNorm) -> bool:
    """Whether, in its mode, the layer computes what a plain batch norm followed by its layers computes."""
    statistics = (None, None) if trial.training else (trial.running_mean, trial.running_var)
    plain = nn.functional.batch_norm(x, *statistics, trial.weight, trial.bias, trial.training, 0.0, trial.eps)
    after = nn.Sequential(*dict(trial.named_children()).values())
    with keep_random_state({x.device}, 0):
        expected = after(plain)
    try:
        with keep_random_state({x.device}, 0):
            found = trial(x.clone())
    except (RuntimeError, ValueError, AssertionError):  # in this mode only
        return False
    return isinstance(found, torch.Tensor) and torch.allclose(found, expected, rtol=1e-3, atol=1e-4)


def _group_norm(norm: _BatchNorm) -> nn.GroupNorm:
    channels = norm.num_features
    groups = max(g for g in range(1, 33) if channels % g == 0 and (channels // g >= 2 or g == 1))
    like = norm.weight if norm.affine else norm.running_mean
    device, dtype = (None, None) if like is None else (like.device, like.dtype)
    new = nn.GroupNorm(groups, channels, norm.eps, norm.affine, device=device, dtype=dtype)
    if norm.affine:
        new.load_state_dict({"weight": norm.weight.detach(), "bias": norm.bias.detach()})
        for own, old in ((new.weight, norm.weight), (new.bias, norm.bias)):
            own.requires_grad_(old.requires_grad)
    return new.train(norm.training)
