"""Normalisations that a model is built with: functions from a number of channels to a layer, for planes and vectors.

SI's have no learnt scale or shift, and its batch norm no running statistics: what they would learn or keep of private
data would have to be told under noise too.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Norm = Callable[[int], nn.Module]
"""From the number of channels (dimension 1 of what passes) to a layer."""


def no_norm(channels: int) -> nn.Module:
    return nn.Identity()


def layer_norm(channels: int) -> nn.Module:
    """Over all of an example's channels and positions, which is a group norm of one group."""
    return nn.GroupNorm(1, channels, affine=False)


def group_norm(groups: int) -> Norm:
    """With a learnt scale and shift, as INS has it."""
    return lambda channels: nn.GroupNorm(groups, channels)


class BatchNorm(_BatchNorm):
    """Each channel by the mean and variance of the batch at hand, in training and in evaluation mode alike.

    Guarantee: none. Examples mix, so `ClippedGradients` refuses it.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, affine=False, track_running_stats=False)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2 or input.shape[1] != self.num_features:
            raise ValueError(f"expected (B, {self.num_features}, …), not {tuple(input.shape)}")
