"""JAX-Privacy: clipped_grad and its Gaussian privatizer in one jitted step, on the same weights, channels-last."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
import torch
from jax import Array, lax
from torch import Tensor, nn

from benchmarks.contenders import LEARNING_RATE, NOISE_MULTIPLIER
from benchmarks.rows import Batch, Row
from sordino.models import BiLSTMClassifier, ResNet

Parameters = dict[str, Array]
Layer = Callable[[Parameters, Array], Array]


class JaxPrivacy:
    """One compiled step; with a microbatch, the largest divisor of the batch size up to it."""

    def __init__(self, row: Row, model: nn.Module, l2_clip: float, microbatch: int | None) -> None:
        network = translate(model)
        self._parameters = {name: _to_jax(value.detach()) for name, value in model.named_parameters()}
        self._l2_clip, self._microbatch = l2_clip, microbatch

        def loss(parameters: Parameters, x: Array, y: Array) -> Array:
            return optax.softmax_cross_entropy_with_integer_labels(network(parameters, x), y).mean()

        self._loss = loss
        self._step: Any = None

    def _clipped(self, batch_size: int) -> Callable[[Parameters, Array, Array], Parameters]:
        micro = self._microbatch and max(d for d in range(1, self._microbatch + 1) if batch_size % d == 0)
        return jax_privacy.clipped_grad(
            self._loss, l2_clip_norm=self._l2_clip, batch_argnums=(1, 2), microbatch_size=micro
        )

    def prepare(self, batch: Batch) -> tuple[Array, Array]:
        """Arrays of JAX, and the step compiled for them: compiling is not measured."""
        x, y = _to_jax(batch[0], image=True), jnp.asarray(batch[1].numpy().astype(np.int32))
        clipped = self._clipped(len(y))
        privatizer = jax_privacy.noise_addition.gaussian_privatizer(
            stddev=NOISE_MULTIPLIER * self._l2_clip, prng_key=jax.random.key(0)
        )
        optimizer = optax.sgd(LEARNING_RATE)

        def step(parameters: Parameters, noise: Any, state: Any, x: Array, y: Array) -> tuple[Any, Any, Any]:
            noisy, noise = privatizer.update(clipped(parameters, x, y), noise)
            updates, state = optimizer.update(jax.tree.map(lambda g: g / len(y), noisy), state, parameters)
            return optax.apply_updates(parameters, updates), noise, state

        self._state = (self._parameters, privatizer.init(self._parameters), optimizer.init(self._parameters))
        self._step = jax.jit(step, donate_argnums=(0, 1, 2)).lower(*self._state, x, y).compile()
        return x, y

    def sums(self, batch: tuple[Array, Array]) -> dict[str, Tensor]:
        sums = jax.jit(self._clipped(len(batch[1])))(self._parameters, *batch)
        return {name: _to_torch(value) for name, value in sums.items()}

    def step(self, batch: tuple[Array, Array]) -> None:
        self._state = jax.block_until_ready(self._step(*self._state, *batch))


def _to_jax(value: Tensor, image: bool = False) -> Array:
    """Kernels OIHW → HWIO and images NCHW → NHWC, the layouts of JAX's own libraries."""
    if value.dim() == 4:
        value = value.permute(0, 2, 3, 1) if image else value.permute(2, 3, 1, 0)
    return jnp.array(value.contiguous().numpy())


def _to_torch(value: Array) -> Tensor:
    tensor = torch.from_numpy(np.array(value))
    return tensor.permute(3, 2, 0, 1) if tensor.dim() == 4 else tensor


def translate(model: nn.Module) -> Layer:
    """The same function of the same parameters, in JAX."""
    if isinstance(model, BiLSTMClassifier):
        return _bilstm
    if isinstance(model, ResNet):
        return _resnet(model)
    return _chain(list(_layers(model, "")))


def _layers(model: nn.Module, prefix: str) -> Iterator[Layer]:
    for name, module in model.named_children():
        yield _layer(module, prefix + name)


def _chain(layers: list[Layer]) -> Layer:
    def apply(parameters: Parameters, x: Array) -> Array:
        for layer in layers:
            x = layer(parameters, x)
        return x

    return apply


def _layer(module: nn.Module, name: str) -> Layer:
    match module:
        case nn.Conv2d():
            return _convolution(module, name)
        case nn.GroupNorm():
            return _group_norm(module, name)
        case nn.Linear():
            return lambda parameters, x: x @ parameters[f"{name}.weight"].T + parameters[f"{name}.bias"]
        case nn.Tanh():
            return lambda _, x: jnp.tanh(x)
        case nn.ReLU():
            return lambda _, x: jax.nn.relu(x)
        case nn.MaxPool2d():
            window, stride = (1, module.kernel_size, module.kernel_size, 1), (1, module.stride, module.stride, 1)
            return lambda _, x: lax.reduce_window(x, -jnp.inf, lax.max, window, stride, "VALID")
        case nn.AvgPool2d():
            side = int(module.kernel_size)  # by itself in both directions, without overlap
            return lambda _, x: (
                lax.reduce_window(x, 0.0, lax.add, (1, side, side, 1), (1, side, side, 1), "VALID") / side**2
            )
        case nn.Flatten():  # in PyTorch's order, which the next layer's weights expect
            return lambda _, x: (jnp.moveaxis(x, 3, 1) if x.ndim == 4 else x).reshape(len(x), -1)
        case nn.Identity():
            return lambda _, x: x
        case nn.Sequential():
            return _chain(list(_layers(module, f"{name}.")))
    raise TypeError(f"no translation of {type(module).__name__}")


def _convolution(module: nn.Conv2d, name: str) -> Layer:
    padding = [(int(pad), int(pad)) for pad in module.padding]

    def apply(parameters: Parameters, x: Array) -> Array:
        kernel = parameters[f"{name}.weight"]
        y = lax.conv_general_dilated(x, kernel, module.stride, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return y if module.bias is None else y + parameters[f"{name}.bias"]

    return apply


def _group_norm(module: nn.GroupNorm, name: str) -> Layer:
    def apply(parameters: Parameters, x: Array) -> Array:
        grouped = x.reshape(*x.shape[:3], module.num_groups, -1)
        mean = grouped.mean(axis=(1, 2, 4), keepdims=True)
        variance = grouped.var(axis=(1, 2, 4), keepdims=True)
        normed = ((grouped - mean) * lax.rsqrt(variance + module.eps)).reshape(x.shape)
        return normed * parameters[f"{name}.weight"] + parameters[f"{name}.bias"]

    return apply


def _resnet(model: ResNet) -> Layer:
    stem, head = _layer(model.stem, "stem"), _layer(model.head, "head")
    blocks = []
    for index, block in enumerate(model.stages):
        name = f"stages.{index}."
        inner = [_layer(getattr(block, part), name + part) for part in ("conv1", "norm1", "relu", "conv2", "norm2")]
        blocks.append((_chain(inner), _layer(block.shortcut, name + "shortcut"), _layer(block.relu, name + "relu")))

    def apply(parameters: Parameters, x: Array) -> Array:
        x = stem(parameters, x)
        for inner, shortcut, relu in blocks:
            x = relu(parameters, inner(parameters, x) + shortcut(parameters, x))
        return head(parameters, x.mean(axis=(1, 2)))

    return apply


def _bilstm(parameters: Parameters, x: Array) -> Array:
    last = [_lstm(parameters, x, ""), _lstm(parameters, x[:, ::-1], "_reverse")]
    return jnp.concatenate(last, axis=1) @ parameters["head.weight"].T + parameters["head.bias"]


def _lstm(parameters: Parameters, x: Array, direction: str) -> Array:
    """The last hidden state of one direction."""
    w_ih, w_hh, b_ih, b_hh = (
        parameters[f"lstm.{part}_l0{direction}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    projected = jnp.moveaxis(x @ w_ih.T + b_ih + b_hh, 1, 0)

    def tick(state: tuple[Array, Array], gates: Array) -> tuple[tuple[Array, Array], None]:
        hidden, cell = state
        i, f, g, o = jnp.split(gates + hidden @ w_hh.T, 4, axis=-1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(cell), cell), None

    zeros = jnp.zeros((len(x), w_hh.shape[1]))
    (hidden, _), _ = lax.scan(tick, (zeros, zeros), projected)
    return hidden
