"""Models that `fully_shard` (FSDP2) has cut: weights and the optimiser's state lie in shards, one on each process.

A clip needs the whole gradient of an example, and layers whose per-example gradients are taken need plain weights. So
beside the shards each process has a whole module: steps are computed with that, and what they release is cut again.
What is saved is the optimiser's state and its work. FSDP's own gathering, prefetch and mixed precision have no part.
"""

from typing import Any

import torch
from torch import Tensor, nn

Named = dict[str, Tensor]
_STATE = "__composable_api_state_key"


def whole_module(model: nn.Module) -> nn.Module:
    """The model as if it had never been cut, with whole weights of its own; one that was not, as it is.

    All processes call this together.
    """
    sharded = any(is_sharded(layer) for layer in model.modules())
    whole: nn.Module = _whole(model, {}) if sharded else model
    return whole


def is_sharded(layer: nn.Module) -> bool:
    """Whether `fully_shard` was called on it; torch's own class takes half a second to import."""
    return hasattr(layer, "unshard")


def trained(model: nn.Module) -> Named:
    """What an optimizer of the model holds: shards, if it was cut."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


def cut_as(value: Any, like: Any) -> Any:
    """This process's shard of a whole tensor, where `like` is one; everybody has the same whole."""
    if not _is_shard(like) or _is_shard(value) or getattr(value, "shape", None) != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor  # whoever has shards has imported it

    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


@torch.no_grad()
def spread(whole: Named, own: Named) -> None:
    """Give shards the numbers of whole weights."""
    for name, value in own.items():
        if _is_shard(value):
            local(value).copy_(local(cut_as(whole[name].detach(), value)))


@torch.no_grad()
def gather(own: Named, whole: Named) -> None:
    """Give whole weights the numbers of the shards; all processes call this together."""
    for name, value in own.items():
        if _is_shard(value):
            whole[name].detach().copy_(_joined(value.detach()))


def gathered(slots: dict[str, Named]) -> dict[str, Named]:
    """An optimiser's state with whole tensors for shards; all processes call this together."""
    return {slot: {name: _joined(value) for name, value in values.items()} for slot, values in slots.items()}


def local(value: Any) -> Tensor:
    """What this process has of it."""
    own: Tensor = value.to_local() if _is_shard(value) else value
    return own


def _joined(value: Any) -> Tensor:
    whole: Tensor = value.full_tensor() if _is_shard(value) else value
    return whole


def _is_shard(value: Any) -> bool:
    return hasattr(value, "full_tensor")


def _whole(layer: Any, known: dict[int, Any]) -> Any:
    """A copy of the layer, of the class that it had before; what it shares with others stays shared."""
    if id(layer) in known:
        return known[id(layer)]
    kind: Any = type(layer).__mro__[2] if is_sharded(layer) else type(layer)
    copy = known[id(layer)] = kind.__new__(kind)
    for name, value in vars(layer).items():
        if not name.startswith(_STATE):
            vars(copy)[name] = value.copy() if isinstance(value, dict | list) else value
    for hooks in (copy._forward_pre_hooks, copy._forward_hooks):
        for number, hook in list(hooks.items()):
            if type(getattr(hook, "__self__", None)).__module__.startswith("torch.distributed.fsdp"):
                del hooks[number]
                copy._forward_pre_hooks_with_kwargs.pop(number, None)
                copy._forward_hooks_with_kwargs.pop(number, None)
    for name, child in layer._modules.items():
        copy._modules[name] = None if child is None else _whole(child, known)
    for name, parameter in layer._parameters.items():
        if _is_shard(parameter):
            if id(parameter) not in known:
                value = _joined(parameter.detach()).clone()
                known[id(parameter)] = nn.Parameter(value, requires_grad=parameter.requires_grad)
            setattr(copy, name, known[id(parameter)])  # by the layer's own way: recurrent ones keep a list
    return copy
