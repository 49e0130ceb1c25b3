"""Opacus in each mode that runs in one process: its own wrapper, clipping and optimiser, without its data loader.

`hooks`, `functorch`, `ew` (expanded weights) and `ghost` are its grad-sample modes; `fast` is `ghost` with
use_ghost_clipping=False. Its other modes are for several processes (ghost_fsdp, ghost_tp) or compute nothing (no_op).
"""

import warnings

import torch
from opacus.grad_sample.utils import prepare_module
from opacus.optimizers import get_optimizer_class
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from opacus.validators import ModuleValidator
from torch import Tensor, nn

from benchmarks.contenders import LEARNING_RATE, NOISE_MULTIPLIER
from benchmarks.rows import Batch, Row


class Opacus:
    """A step as Opacus' own loop makes it; recurrent layers are replaced by its validator, as its users do."""

    def __init__(self, row: Row, model: nn.Module, l2_clip: float, mode: str) -> None:
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        for module in model.modules():
            if getattr(module, "inplace", False):
                module.inplace = False  # Opacus' backward hooks refuse in-place operations
        model = ModuleValidator.fix(model)
        self._ghost = mode in ("ghost", "fast")
        options = {"max_grad_norm": l2_clip, "use_ghost_clipping": mode == "ghost"} if self._ghost else {}
        self._module = prepare_module(model, "ghost" if self._ghost else mode, **options)
        self._module.train()
        self._optimizer = get_optimizer_class("flat", False, "ghost" if self._ghost else mode)(
            torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
            noise_multiplier=NOISE_MULTIPLIER,
            max_grad_norm=l2_clip,
            expected_batch_size=row.batch_size,
        )
        self._loss = nn.CrossEntropyLoss()
        if self._ghost:
            self._loss = DPLossFastGradientClipping(self._module, self._optimizer, self._loss)

    def prepare(self, batch: Batch) -> Batch:
        return batch

    def sums(self, batch: Batch) -> dict[str, Tensor]:
        self._backward(batch)
        self._optimizer.accumulate() if self._ghost else self._optimizer.clip_and_accumulate()
        named = list(self._module.named_parameters())
        sums = {name.removeprefix("_module."): value.summed_grad.detach().clone() for name, value in named}
        self._optimizer.zero_grad()
        return sums

    def step(self, batch: Batch) -> None:
        self._backward(batch)
        self._optimizer.step()
        self._optimizer.zero_grad()  # last, so that no per-example gradients lie about while others are measured

    def _backward(self, batch: Batch) -> None:
        x, y = batch
        self._loss(self._module(x), y).backward()
