"""Normalisations that a model is built with: functions from a number of channels to a layer, for planes and vectors.

SI's have no learned scale or shift, and its batch norm no running statistics: what they learned or kept of private data
would have to be released under noise too.

SI's Algorithm 2 normalises a batch of private examples together with M = 30 public images, and at test a single example
with the same images. `AmongPublic` does at all times what SI does at test: an example is normalised by its own
statistics and those of the public images. That takes 1 + M rows for each example, because after the first norm even the
public images' activations depend on the example beside them. Before it they do not: without gradients, they are
computed once.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Norm = Callable[[int], nn.Module]
"""From the number of channels (dimension 1 of the input) to a layer."""
_EPSILON = 1e-5
_BLOCK = 16
"""Examples that pass together without gradients: few enough for the processor's cache."""


def no_norm(channels: int) -> nn.Module:
    return nn.Identity()


def layer_norm(channels: int) -> nn.Module:
    """Over all of an example's channels and positions, which is a group norm of one group."""
    return nn.GroupNorm(1, channels, affine=False)


def group_norm(groups: int) -> Norm:
    """With a learned scale and shift, as in INS; fewer groups where these do not divide the channels.

    A group has two channels or more if it can: of one channel at one position nothing would be left.
    """

    def norm(channels: int) -> nn.Module:
        suits = (count for count in range(groups, 1, -1) if channels % count == 0 and channels // count >= 2)
        return nn.GroupNorm(next(suits, 1), channels)

    return norm


class BatchNorm(_BatchNorm):
    """Each channel by the mean and variance of the batch at hand, in training and in evaluation mode alike.

    Guarantee: none. Examples mix, so `ClippedGradients` refuses it.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, affine=False, track_running_stats=False)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2 or input.shape[1] != self.num_features:
            raise ValueError(f"expected (B, {self.num_features}, …), not {tuple(input.shape)}")


def normalised_in_runs(x: Tensor, size: int) -> Tensor:
    """Rows (B·size, C, …): each channel by the mean and variance of every run of `size` rows by itself."""
    rows = x.reshape(len(x) // size, size, *x.shape[1:])
    over = (1, *range(3, rows.ndim))
    centred = rows - rows.mean(over, keepdim=True)
    return (centred * torch.rsqrt(centred.square().mean(over, keepdim=True) + _EPSILON)).reshape(x.shape)


class OwnBatchNorm(nn.Module):
    """Batch norm of every run of `size` rows by itself: an example and its public images."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.channels, self.size = channels, size

    def forward(self, x: Tensor) -> Tensor:
        return normalised_in_runs(x, self.size)

    def extra_repr(self) -> str:
        return f"{self.channels}, size={self.size}"


class FirstOwnBatchNorm(OwnBatchNorm):
    """The first of a network. Without gradients it gets the public rows once, after the examples' own rows.

    Up to here the public rows are the same for every example, and so are their mean and variance. With gradients each
    example brings its own public rows: an example's gradient has to come from rows of that example alone.
    """

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return super().forward(x)
        planes = x.flatten(2) if x.ndim > 2 else x[:, :, None]
        count = self.size - 1
        own, public = planes[:-count], planes[-count:]
        own_mean = own.mean(2, keepdim=True)
        own_variance = (own - own_mean).square().mean(2, keepdim=True)
        variance, mean = torch.var_mean(public, (0, 2), correction=0, keepdim=True)
        gap = own_mean - mean
        # Two parts' statistics joined (Chan, Golub, LeVeque 1983).
        joined = (own_variance + count * variance) / self.size + gap.square() * count / self.size**2
        rows = torch.cat((own[:, None], public.expand(len(own), *public.shape)), 1)
        centred = rows - (mean + gap / self.size)[:, None]
        return (centred * torch.rsqrt(joined + _EPSILON)[:, None]).reshape(len(own) * self.size, *x.shape[1:])


class SharedBatchNorm(BatchNorm):
    """Batch norm of the whole batch in training mode, and of each example with its public images in evaluation mode."""

    def __init__(self, alone: OwnBatchNorm) -> None:
        super().__init__(alone.channels)
        self.alone = alone

    def forward(self, input: Tensor) -> Tensor:
        found: Tensor = super().forward(input) if self.training else self.alone(input)
        return found


class AmongPublic(nn.Module):
    """A network with batch norms in which each example is normalised with itself and the public images alone.

    `build` makes the network with the norm it is given, in the order in which layers are applied; `public` has the
    shape (M, …) of a batch of examples.

    Guarantee: an example's scores are a function of that example, the weights and public images, in training and at
    test; so is its gradient, a clip bounds what it adds to a sum, and nothing but the weights is released.
    """

    public: Tensor

    def __init__(self, build: Callable[[Norm], nn.Module], public: Tensor) -> None:
        super().__init__()
        if public.ndim < 2 or not len(public) or not public.is_floating_point():
            raise ValueError(f"public images must be a batch (M, …) of numbers, not {tuple(public.shape)}")
        self.size = 1 + len(public)
        self._norms = 0
        self.net = build(self._norm)
        if not self._norms:
            raise ValueError("the network has no norm: public images would do nothing")
        self.register_buffer("public", public.detach().clone())

    def _norm(self, channels: int) -> nn.Module:
        return self._own_norm(channels)

    def _own_norm(self, channels: int) -> OwnBatchNorm:
        self._norms += 1
        return OwnBatchNorm(channels, self.size) if self._norms > 1 else FirstOwnBatchNorm(channels, self.size)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        if torch.is_grad_enabled():
            public = self.public.expand(len(x), *self.public.shape)
            return self._own_scores(torch.cat((x[:, None], public), 1).flatten(0, 1))
        return torch.cat([self._own_scores(torch.cat((part, self.public))) for part in x.split(_BLOCK)])

    def _own_scores(self, rows: Tensor) -> Tensor:
        scores: Tensor = self.net(rows)
        return scores.reshape(len(scores) // self.size, self.size, *scores.shape[1:])[:, 0]

    def _check(self, x: Tensor) -> None:
        if x.shape[1:] != self.public.shape[1:]:
            raise ValueError(f"examples of shape {tuple(x.shape[1:])} beside images of {tuple(self.public.shape[1:])}")


class BesidePublic(AmongPublic):
    """SI's Algorithm 2 as it is written: in training mode one batch of all examples and the public images.

    Guarantee: none. In training mode every example changes every other's scores and gradient, so no clip bounds what
    one does: `ClippedGradients` refuses it, and training it all the same must charge ε=∞.
    """

    def _norm(self, channels: int) -> nn.Module:
        return SharedBatchNorm(self._own_norm(channels))

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        if self.training:
            scores: Tensor = self.net(torch.cat((x, self.public)))
            return scores[: len(x)]
        return super().forward(x)
