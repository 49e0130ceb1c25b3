"""Networks in groups of layers, of which the first can be frozen (INS, its Appendix G).

INS freezes the input convolution and up to three groups of blocks, or everything but the last layer. What is frozen
never changes, so its outputs can be computed once for each example and stored, as `sordino.features.Activations`, when
no example is augmented; the rest of the network then trains on them.
"""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn


def in_groups(
    groups: Sequence[nn.Module], head: nn.Linear, *, stem: nn.Module | None = None, pool: nn.Module | None = None
) -> nn.Sequential:
    """A network with the parts stem, group1, group2, …, pool and head, one after the other."""
    named = {f"group{number}": group for number, group in enumerate(groups, 1)}
    parts = {"stem": stem, **named, "pool": pool, "head": head}
    return nn.Sequential(OrderedDict((name, part) for name, part in parts.items() if part is not None))


def freeze(model: nn.Sequential, groups: int) -> nn.Sequential:
    """Freeze the stem and this many groups, and train the rest; as many as there are freeze all but the head.

    Guarantee: frozen weights get no noise, so they must be public or random: loaded from public data's training, or as
    they were initialised. Weights trained on private data are paid for by the ledger that they were trained with.

    >>> from sordino.models import wrn_16_4
    >>> model = freeze(wrn_16_4(width=2), 3)
    >>> [name for name, weight in model.named_parameters() if weight.requires_grad]
    ['head.weight', 'head.bias']
    """
    cut = _cut(model, groups)
    for place, part in enumerate(model):
        part.requires_grad_(place >= cut)
    return model


def split(model: nn.Sequential, groups: int) -> tuple[nn.Sequential, nn.Sequential]:
    """The frozen part, in evaluation mode, and the trained rest, whose inputs are the outputs of the frozen part.

    Both share their layers with the model, and parameters keep their names: what the rest learns, the model knows.

    Guarantee: the frozen part (`freeze`) keeps examples apart, so its outputs are a function of one example and of
    frozen weights: if these are public, the outputs cost no privacy. They reveal as much as the example itself.

    >>> import torch
    >>> from sordino.models import wrn_16_4
    >>> frozen, rest = split(wrn_16_4(width=2), 2)
    >>> activations = frozen(torch.zeros(5, 3, 32, 32))
    >>> activations.shape, rest(activations).shape
    (torch.Size([5, 16, 16, 16]), torch.Size([5, 10]))
    """
    cut = _cut(freeze(model, groups), groups)
    parts = list(model.named_children())
    return nn.Sequential(OrderedDict(parts[:cut])).eval(), nn.Sequential(OrderedDict(parts[cut:]))


def replace_head(model: nn.Sequential, classes: int, *, zeros: bool = True) -> nn.Sequential:
    """Give the network a new last layer for this many classes: of zeros, as is usual under DP, or random as in INS.

    A head of zeros has no scores to unlearn: its first gradients have the smallest norms there are.

    >>> from sordino.models import wrn_16_4
    >>> replace_head(wrn_16_4(width=2), 7).head
    Linear(in_features=32, out_features=7, bias=True)
    """
    before = parts_of(model)["head"]
    if not isinstance(before, nn.Linear):
        raise ValueError(f"the head is {type(before).__name__}, not a linear layer: replace it by hand")
    head = nn.Linear(before.in_features, classes).to(before.weight)
    if zeros:
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
    model.head = head
    return model


def parts_of(model: nn.Module) -> dict[str, nn.Module]:
    """Stem, groups, pool and head, as far as the network has them, by name; other networks are refused."""
    parts = dict(model.named_children())
    if not isinstance(model, nn.Sequential) or not {"group1", "head"} <= parts.keys():
        raise ValueError(
            f"{type(model).__name__} has no groups and head to tell apart: take a network of sordino.models that has, "
            "such as resnet18_v2"
        )
    return parts


def _cut(model: nn.Sequential, groups: int) -> int:
    """How many parts are frozen."""
    names = list(parts_of(model))
    count = sum(name.startswith("group") for name in names)
    if type(groups) is not int or not 0 <= groups <= count:
        raise ValueError(f"this network has {count} groups: freeze 0 to {count} of them, not {groups!r}")
    return names.index("head") if groups == count else names.index(f"group{groups}") + 1 if groups else 0
