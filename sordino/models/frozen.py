"""Random weights training (PAW): the first layers stay as they were drawn, and the last dense ones are trained."""

from torch import nn


def train_last(model: nn.Sequential, layers: int = 2) -> nn.Sequential:
    """The model with all frozen but its last dense layers; their weights are drawn as ever, when it is built.

    Noise then falls on fewer weights, and what the frozen layers give never changes: a `DenseTrainee` computes it once
    for each example.
    """
    found = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not 1 <= layers <= len(found):
        raise ValueError(f"the last {layers} of {len(found)} dense layers cannot be trained")
    model.requires_grad_(False)
    for module in found[-layers:]:
        module.requires_grad_(True)
    return model
