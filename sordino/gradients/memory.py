"""How much memory there is, how much has been used at most, and what plain training would keep of an example."""

import resource
import sys
from typing import Any

import torch
from torch import Tensor

from sordino.gradients import batches
from sordino.gradients.batches import Setup
from sordino.gradients.specimens import specimens
from sordino.mechanisms import memory


def available(device: torch.device) -> float:
    """Bytes that may still be taken; infinity where nobody can tell."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return memory.available()


def peak(device: torch.device) -> float:
    """The most bytes that this process has held so far."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return float(unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def saved_bytes(setup: Setup, x: Any, y: Any) -> float:
    """What autograd keeps of one example between the passes."""
    count, kept = 5, dict[int, int]()

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    few, targets = specimens(x, y, setup.views, count)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        batches.losses_of(setup.model, setup.loss, few, targets, count, setup.views)
    for constant in (*setup.model.parameters(), *setup.model.buffers()):
        kept.pop(constant.untyped_storage().data_ptr(), None)
    return sum(kept.values()) / count
