"""How an example's gradient is scaled before it is summed. Every policy bounds an example's contribution by l2_clip."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


class Clipping(Protocol):
    """Splits the parameters into groups and turns each example's norms, a column for each group, into factors.

    Guarantee: an example whose groups have the norms n contributes a vector of norm √Σ(factor·n)² ≤ l2_clip.
    """

    def groups(self, names: Sequence[str]) -> list[int]: ...

    def factors(self, norms: Tensor, l2_clip: float) -> Tensor: ...

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Flat:
    """The whole gradient is scaled down to l2_clip where it is longer (Abadi et al. 2016)."""

    def groups(self, names: Sequence[str]) -> list[int]:
        return [0] * len(names)

    def factors(self, norms: Tensor, l2_clip: float) -> Tensor:
        return (l2_clip / norms).clamp(max=1)

    def to_json(self) -> dict[str, Any]:
        return {"clipping": "flat"}


@dataclass(frozen=True)
class Automatic:
    """Every gradient is scaled to nearly l2_clip, short ones too: l2_clip/(norm + stability) (Bu et al. 2023)."""

    stability: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.stability < math.inf:
            raise ValueError(f"stability must be a positive finite number, not {self.stability!r}")

    def groups(self, names: Sequence[str]) -> list[int]:
        return [0] * len(names)

    def factors(self, norms: Tensor, l2_clip: float) -> Tensor:
        return l2_clip / (norms + self.stability)

    def to_json(self) -> dict[str, Any]:
        return {"clipping": "automatic", "stability": self.stability}


@dataclass(frozen=True)
class PerLayer:
    """Each layer's part of the gradient has its own clip, a share of l2_clip (McMahan et al. 2018).

    `shares` weighs layers by name (the part of a parameter's name before its last dot); the clips are
    l2_clip·share/√Σ share², so that together they bound the example by l2_clip. Without shares all are equal.
    """

    shares: Mapping[str, float] | None = None

    def groups(self, names: Sequence[str]) -> list[int]:
        layers = self._layers(names)
        return [layers.index(_layer_of(name)) for name in names]

    def factors(self, norms: Tensor, l2_clip: float) -> Tensor:
        return (self._clips(norms.shape[1], l2_clip).to(norms) / norms).clamp(max=1)

    def to_json(self) -> dict[str, Any]:
        return {"clipping": "per-layer", "shares": None if self.shares is None else dict(self.shares)}

    def _layers(self, names: Sequence[str]) -> list[str]:
        found = list(dict.fromkeys(_layer_of(name) for name in names))
        if self.shares is None:
            return found
        if set(self.shares) != set(found) or not all(0 < share < math.inf for share in self.shares.values()):
            raise ValueError(
                f"shares must be one positive number for each layer, and the layers are {', '.join(found)}"
            )
        return list(self.shares)

    def _clips(self, layers: int, l2_clip: float) -> Tensor:
        shares = [1.0] * layers if self.shares is None else list(self.shares.values())
        return torch.tensor(shares, dtype=torch.float64) * (l2_clip / math.hypot(*shares))


def _layer_of(parameter: str) -> str:
    return parameter.rpartition(".")[0]
