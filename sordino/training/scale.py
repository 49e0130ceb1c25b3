"""What a private training takes at scale, before a machine is rented: steps, noise, ε, memory, hours and money.

Time follows from examples a second: timed here, stated by the user, or reckoned from what a device's maker states. All
of it is arithmetic on public sizes, so it costs no privacy; time, memory and money are estimates.
"""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from sordino import models
from sordino.budget import (
    Cost,
    PoissonGaussian,
    Repeated,
    calibration,
    check_delta_against_draws,
    check_delta_against_n,
    cost,
    steps_for,
)
from sordino.gradients import ClippedGradients
from sordino.training.heads import cross_entropy
from sordino.training.large_rates import GradientSize, recommend
from sordino.training.planning import check_positive, check_whole


@dataclass(frozen=True)
class Device:
    """An accelerator, as its maker states it."""

    teraflops: float
    """Peak in single precision without sparsity; of a TPU in bfloat16, which is what it has."""
    gigabytes: float
    source: str


DEVICES = {
    "v100": Device(15.7, 16, "NVIDIA, Tesla V100 architecture whitepaper"),
    "a100": Device(19.5, 40, "NVIDIA, A100 datasheet"),
    "h100": Device(66.9, 80, "NVIDIA, H100 SXM datasheet"),
    "tpu-v3": Device(123.0, 32, "Google, Cloud TPU v3, a chip"),
    "tpu-v4": Device(275.0, 32, "Google, Cloud TPU v4, a chip"),
}
"""Stated, not measured here."""
UTILISATION = 0.5
"""The share of the stated peak that is assumed to be reached. INS's ResNets on eight V100 (Table 2) reach 0.82 and 0.65
by this count; give a throughput of your own where you have one."""
_MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": models.resnet18_v2,
    "resnet50": models.resnet50_v2,
    "wrn-16-4": models.wrn_16_4,
}
_PASSES = 5
"""In units of a forward pass: itself, and two backward passes of twice its work, for norms and for sums (INS, 2.2)."""
_WEIGHT_BYTES, _KEPT_TWICE = 48, 2
_TIMED = 3


@dataclass(frozen=True)
class Work:
    """What one example takes."""

    parameters: int
    operations: float
    """Floating-point operations of a forward pass: two for each product that is added."""
    kept: float
    """Bytes of the outputs of all layers."""


def scale_model(name: str) -> nn.Module:
    """A network for images, with random weights."""
    if name not in _MODELS:
        raise ValueError(f"there is no model {name!r} to plan with; models: {', '.join(_MODELS)}")
    return _MODELS[name]()


def work_of(model: nn.Module, shape: tuple[int, ...]) -> Work:
    """Of a model on one example of this shape, without computing anything.

    >>> from sordino.models import resnet18_v2
    >>> work = work_of(resnet18_v2(), (3, 224, 224))
    >>> work.parameters, round(work.operations / 1e9, 1)
    (11687720, 3.6)
    """
    ghost = copy.deepcopy(model).to("meta").eval()
    kept: list[int] = []

    def keep(layer: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            kept.append(output.numel() * output.element_size())

    for layer in ghost.modules():
        if not [*layer.children()]:
            layer.register_forward_hook(keep)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        ghost(torch.zeros(1, *shape, device="meta"))
    return Work(sum(value.numel() for value in model.parameters()), counter.get_total_flops(), sum(kept))


def throughput_here(model: nn.Module, shape: tuple[int, ...], batch: int = 4) -> float:
    """Private examples a second on this machine: the median of a few clipped gradients of made-up examples."""
    check_whole("the timed batch", batch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x = torch.rand(batch, *shape)
        y = torch.zeros(batch, dtype=torch.int64)
        clipped = ClippedGradients(model, cross_entropy, physical_batch=batch)
        clipped(x, y, l2_clip=1.0)  # which settles what is fastest
        seconds = []
        for _ in range(_TIMED):
            begun = time.perf_counter()
            clipped(x, y, l2_clip=1.0)
            seconds.append(time.perf_counter() - begun)
    return batch / median(seconds)


def throughput_of(device: str, work: Work, utilisation: float = UTILISATION) -> float:
    """Private examples a second on a device, reckoned from its stated peak."""
    if device not in DEVICES:
        raise ValueError(f"there is no profile of {device!r}; profiles: {', '.join(DEVICES)}; or give the throughput")
    if not 0 < utilisation <= 1:
        raise ValueError(f"utilisation lies in (0, 1], not {utilisation!r}")
    return utilisation * DEVICES[device].teraflops * 1e12 / (_PASSES * work.operations)


@dataclass(frozen=True)
class ScalePlan:
    """A plan, and what it takes; `cost` is its price in ε."""

    n: int
    expected_batch_size: int
    steps: int
    noise_multiplier: float
    cost: Cost
    delta: float
    devices: int
    throughput: float
    """Private examples a second of one device."""
    physical_batch: int | None
    """Examples that one device holds at once; None where its memory was not told."""
    price: float | None
    """Of a device for an hour."""

    @property
    def epochs(self) -> float:
        return self.steps * self.expected_batch_size / self.n

    @property
    def pieces(self) -> int | None:
        """Physical batches that each device works through in a step (virtual steps, in INS)."""
        share = math.ceil(self.expected_batch_size / self.devices)
        return None if self.physical_batch is None else math.ceil(share / self.physical_batch)

    @property
    def hours(self) -> float:
        """Of all devices at once, as if they never waited for each other or for data."""
        return self.steps * self.expected_batch_size / (self.throughput * self.devices) / 3600

    @property
    def money(self) -> float | None:
        return None if self.price is None else self.price * self.devices * self.hours


def plan_for_scale(
    n: int,
    target_epsilon: float,
    target_delta: float,
    work: Work,
    throughput: float,
    *,
    epochs: float,
    batch: int | None = None,
    devices: int = 1,
    memory: float | None = None,
    price: float | None = None,
) -> ScalePlan:
    """For n records and this many epochs; without a batch, that which `recommend` proposes. `memory` is in bytes.

    >>> work = Work(parameters=25_386, operations=2e6, kept=1e5)
    >>> plan = plan_for_scale(60_000, 3.0, 1e-5, work, throughput=1000.0, epochs=20, batch=6000, devices=2)
    >>> plan.steps, round(plan.noise_multiplier, 2), round(plan.hours, 2)
    (200, 2.18, 0.17)
    """
    check_whole("devices", devices)
    check_positive("the throughput", throughput)
    if price is not None:
        check_positive("the price", price)
    check_delta_against_n(target_delta, n)
    if batch is None:
        size = GradientSize(work.parameters)
        batch = recommend(n, target_epsilon, target_delta, size, compute=epochs * n).chosen.expected_batch_size
    check_whole("the batch", batch)
    if batch > n:
        raise ValueError(f"a batch has at most all {n:,} records, not {batch:,}")
    rate, steps = batch / n, steps_for(epochs, n, batch)
    check_delta_against_draws(target_delta, rate, steps)
    sigma = calibration.noise_multiplier(
        lambda s: Repeated(PoissonGaussian(rate, s), steps), target_epsilon, target_delta
    )
    spent = cost(Repeated(PoissonGaussian(rate, sigma), steps), target_delta)
    held = None if memory is None else _physical_batch(memory, work)
    return ScalePlan(n, batch, steps, sigma, spent, target_delta, devices, throughput, held, price)


def _physical_batch(memory: float, work: Work) -> int:
    """What memory holds beside the weights and what is kept of them: each layer's output, and the gradient by it."""
    each, weights = _KEPT_TWICE * work.kept, _WEIGHT_BYTES * work.parameters
    if not weights + each <= memory < math.inf:
        raise ValueError(
            f"memory of {memory / 1e9:.3g} GB does not hold the model and one example, which take about "
            f"{(weights + each) / 1e9:.3g} GB: give more memory or a smaller model"
        )
    return int((memory - weights) // each)
