"""Which rule a layer has: those whose forward is PyTorch's own, so that a subclass that computes otherwise has none."""

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from sordino.gradients.rules.affine import linear
from sordino.gradients.rules.attention import attention
from sordino.gradients.rules.convolution import convolution
from sordino.gradients.rules.embedding import embedding
from sordino.gradients.rules.normalisation import batch_norm, group_norm, instance_norm, layer_norm
from sordino.gradients.rules.opaque import opaque
from sordino.gradients.rules.recurrent import recurrent
from sordino.gradients.tape import Rule

_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.Conv3d: convolution,
    nn.Embedding: embedding,
    nn.GroupNorm: group_norm,
    nn.LayerNorm: layer_norm,
    nn.InstanceNorm1d: instance_norm,
    nn.InstanceNorm2d: instance_norm,
    nn.InstanceNorm3d: instance_norm,
    nn.BatchNorm1d: batch_norm,
    nn.BatchNorm2d: batch_norm,
    nn.BatchNorm3d: batch_norm,
    nn.RNN: recurrent,
    nn.LSTM: recurrent,
    nn.GRU: recurrent,
    nn.MultiheadAttention: attention,
}


def rules_for(model: nn.Module) -> dict[str, Rule]:
    """A rule for each layer with parameters to train, by the layer's name."""
    found = {}
    for name, layer in model.named_modules():
        if any(parameter.requires_grad for parameter in layer.parameters()):
            rule = _rule_of(layer)
            if rule is not None:
                found[name] = rule
    return found


def _rule_of(layer: nn.Module) -> Rule | None:
    if "forward" in layer.__dict__:
        return None
    for kind, rule in _RULES.items():
        if isinstance(layer, kind) and type(layer).forward is kind.forward and not is_parametrized(layer):
            return rule
    own = next(layer.parameters(recurse=False), None)
    return opaque if own is not None and next(layer.children(), None) is None else None
