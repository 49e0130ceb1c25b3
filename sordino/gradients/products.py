"""Matrix products with a thin side, which BLAS leaves waiting for memory."""

import torch
import torch.nn.functional as F
from torch import Tensor

_THIN = 32


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear; for few outputs by oneDNN, which reads the wide operand about twice as fast as BLAS does."""
    if len(weight) <= _THIN and _plain(x, weight):
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return result
    return F.linear(x, weight, bias)


def transposed_product(left: Tensor, right: Tensor) -> Tensor:
    """leftᵀ·right for left (n, a), right (n, b)."""
    if left.shape[1] <= _THIN < right.shape[1] and _plain(left, right):
        result: Tensor = torch.ops.mkldnn._linear_pointwise(left.T.contiguous(), right.T, None, "none", [], "")
        return result
    return left.T @ right


def _plain(*operands: Tensor) -> bool:
    return (
        bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)
        and all(operand.dtype == torch.float32 and operand.device.type == "cpu" for operand in operands)
        and not torch.is_autocast_enabled("cpu")
    )
