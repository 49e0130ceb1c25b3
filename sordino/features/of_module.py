"""What any trained network that the user brings says of an example."""

import copy
import hashlib
from dataclasses import InitVar, dataclass, field

import torch
from torch import Tensor, nn

from sordino.features.feature import Feature

_EXAMPLES = 3
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class OfModule(Feature):
    """Examples (B, …) in floating point → float32 (B, D): the module's output, planes averaged, all else flattened.

    The module is copied and put in evaluation mode; `block` examples go through it at a time. `name` says what the
    weights and the layers do not: where they come from, which output is taken. The digest is of the layers and weights.

    Guarantee: if the weights are public, a function of one example and of public constants: it costs no privacy. A
    module in which examples mix, that draws at random or that changes as examples pass is refused, by a trial on noise.
    """

    module: InitVar[nn.Module]
    name: str
    block: int = 32
    digest: str = field(init=False)
    _module: nn.Module = field(init=False, repr=False, compare=False)
    _tried: set[tuple[int, ...]] = field(init=False, repr=False, compare=False, default_factory=set)

    def __post_init__(self, module: nn.Module) -> None:
        if self.block < 1:
            raise ValueError(f"examples go through a module at least one at a time, not {self.block}")
        for layer, part in module.named_modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is None:
                raise ValueError(
                    f"layer {layer or 'module'} ({type(part).__name__} without running statistics) mixes examples in "
                    "evaluation mode too: use a network with running statistics or group norms"
                )
        own = copy.deepcopy(module).eval().requires_grad_(False)
        object.__setattr__(self, "_module", own)
        object.__setattr__(self, "digest", _digest(own))

    @torch.no_grad()
    def __call__(self, batch: Tensor) -> Tensor:
        if not batch.is_floating_point() or batch.ndim < 2:
            raise ValueError(
                f"expected examples (B, …) in floating point, not {batch.dtype} of shape {tuple(batch.shape)}: "
                "images in uint8 go through Pixels first"
            )
        if batch.shape[1:] not in self._tried:
            self._try(batch)
            self._tried.add(batch.shape[1:])
        parts = [self._describe(part) for part in batch.split(self.block)] if len(batch) else []
        return torch.cat(parts) if parts else self._describe(batch.new_zeros(1, *batch.shape[1:]))[:0]

    def _describe(self, batch: Tensor) -> Tensor:
        found = self._module(batch)
        if not isinstance(found, Tensor) or not found.ndim or len(found) != len(batch):
            raise ValueError(f"{type(self._module).__name__} gives no tensor with a row for each example")
        return (
            found.mean((2, 3)) if found.ndim == 4 else found.flatten(1) if found.ndim > 1 else found[:, None]
        ).float()

    def _try(self, like: Tensor) -> None:
        """Noise, which is no one's data, of the examples' shape: what is told of the rest must not change with one."""
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(_EXAMPLES + 1, *like.shape[1:], generator=generator).to(like)
        name = type(self._module).__name__
        base = self._describe(noise[:_EXAMPLES])
        if not torch.equal(base, self._describe(noise[:_EXAMPLES])) or _digest(self._module) != self.digest:
            raise ValueError(
                f"{name} gives another result the second time: its features are no function of the example"
            )
        for other in (noise[-1], torch.zeros_like(noise[-1]), 1e3 * noise[-1]):
            for place in range(_EXAMPLES):
                changed = noise[:_EXAMPLES].clone()
                changed[place] = other
                rest = [each for each in range(_EXAMPLES) if each != place]
                scale = float(base.abs().max())
                if not torch.allclose(
                    self._describe(changed)[rest], base[rest], rtol=_TOLERANCE, atol=_TOLERANCE * scale
                ):
                    raise ValueError(
                        f"{name} mixes examples in evaluation mode: another example changes what is told of an example"
                    )


def _digest(module: nn.Module) -> str:
    """Of the class, the layers as they print, and every parameter and buffer, also those that are not saved."""
    total = hashlib.blake2b(digest_size=20)
    total.update(f"{type(module).__module__}.{type(module).__qualname__} {module!r}".encode())
    for name, values in (*module.named_parameters(), *module.named_buffers()):
        total.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        total.update(values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()
