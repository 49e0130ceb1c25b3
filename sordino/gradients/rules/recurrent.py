"""RNN, LSTM and GRU, unrolled: PyTorch's fused kernels hide the gradients of the gates.

A layer is one product with all inputs, then a loop over time that multiplies with the hidden state only. Going back,
the gates' gradients of all times are saved, and both weights become affine maps at T positions, as in a linear layer.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.gradients.per_example_gradients import (
    OuterProducts,
    PerExampleGradient,
    Vectors,
    WholeGradient,
    at_least_single,
    linear,
    product,
)
from sordino.gradients.precision import without_autocast
from sordino.gradients.rules.registry import register_rule
from sordino.gradients.tape import Gradients, Tape
from sordino.gradients.tracked_parameters import NoRuleError

_Recurrent = nn.RNN | nn.LSTM | nn.GRU


@register_rule(nn.RNN, nn.LSTM, nn.GRU)
def recurrent(tape: Tape, name: str, layer: _Recurrent, x: Tensor, state: Any = None) -> Any:
    weight: Any = layer.weight_ih_l0
    with without_autocast(weight.device.type):
        return _unrolled(tape, name, layer, x.to(weight.dtype) if isinstance(x, Tensor) else x, state)


def _unrolled(tape: Tape, name: str, layer: _Recurrent, x: Tensor, state: Any) -> Any:
    if not isinstance(x, Tensor) or x.ndim != 3 or (isinstance(layer, nn.LSTM) and layer.proj_size):
        raise NoRuleError("packed or unbatched sequences and projections have no rule")
    examples_first = tape.dimension(name, x) == 0
    if examples_first != layer.batch_first and not tape.layouts.learning:
        raise NoRuleError(f"the examples are not where {name} expects them")
    x = x if layer.batch_first else x.transpose(0, 1)
    directions = 2 if layer.bidirectional else 1
    states = _initial_states(layer, x, state, directions)
    last: list[list[Tensor]] = []
    for depth in range(layer.num_layers):
        outputs = []
        for direction in range(directions):
            suffix = f"l{depth}" + "_reverse" * direction
            start = [value[depth * directions + direction] for value in states]
            cell = next(cell for kind, cell in _CELLS.items() if isinstance(layer, kind))
            output, *final = tape.record(cell(tape, layer, suffix, reverse=direction == 1), x, *start)
            outputs.append(output)
            last.append(final)
        x = outputs[0] if directions == 1 else torch.cat(outputs, 2)
        if layer.dropout and layer.training and depth + 1 < layer.num_layers:
            x = F.dropout(x, layer.dropout)
    finals = tuple(torch.stack(values) for values in zip(*last, strict=True))
    return x if layer.batch_first else x.transpose(0, 1), finals if isinstance(layer, nn.LSTM) else finals[0]


def _initial_states(layer: _Recurrent, x: Tensor, state: Any, directions: int) -> list[Tensor]:
    count = 2 if isinstance(layer, nn.LSTM) else 1
    if state is None:
        zeros = x.new_zeros(layer.num_layers * directions, len(x), layer.hidden_size)
        return [zeros] * count
    return list(state) if count == 2 else [state]


class _Cell:
    """One layer in one direction: inputs (N, T, D) and states (N, H) to outputs (N, T, H) and last states."""

    def __init__(self, tape: Tape, layer: _Recurrent, suffix: str, *, reverse: bool) -> None:
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh") if layer.bias else ("weight_ih", "weight_hh")
        self._known = {kind: tape.parameter(getattr(layer, f"{kind}_{suffix}")) for kind in kinds}
        self.parameters = tuple(name for name, _ in self._known.values() if name)
        self._examples, self._reverse, self._hidden = tape.examples, reverse, layer.hidden_size
        self._layer, self._buffers = layer, tape.buffers

    def _value(self, kind: str, like: Tensor) -> Tensor:
        value = self._known[kind][1]
        assert value is not None
        return value.to(like.dtype)

    def _bias(self, kind: str, like: Tensor) -> Tensor | None:
        return self._value(kind, like) if kind in self._known else None

    def _in_order(self, *sequences: Tensor, back: bool = False) -> Iterator[tuple[Tensor, ...]]:
        """The sequences (N, T, …) time by time, as this direction goes, or back."""
        times = zip(*(sequence.unbind(1) for sequence in sequences), strict=True)
        return reversed(list(times)) if self._reverse != back else iter(list(times))

    def _before(self, states: Tensor, start: Tensor) -> Tensor:
        """The state before each time, (N, T, H)."""
        start = start[:, None]
        return torch.cat([states[:, 1:], start] if self._reverse else [start, states[:, :-1]], 1)

    def _parameter_gradients(self, from_inputs: Tensor, x: Tensor, from_states: Tensor, before: Tensor) -> Gradients:
        """Of all four parameters, from the gates' gradients (N, T, gates·H)."""
        found: dict[str, PerExampleGradient] = {}
        g = Vectors(self._by_example(from_inputs))
        for kind, vectors, a in (
            ("ih", g, x),
            ("hh", g if from_states is from_inputs else Vectors(self._by_example(from_states)), before),
        ):
            weight, bias = self._known[f"weight_{kind}"][0], self._known.get(f"bias_{kind}", (None, None))[0]
            if weight:
                found[weight] = OuterProducts(vectors, self._by_example(a), self._buffers, weight)
            if bias:
                found[bias] = WholeGradient(vectors.values.sum(1))
        return found

    def _by_example(self, x: Tensor) -> Tensor:
        return at_least_single(x.reshape(self._examples, -1, x.shape[2]))


class _LstmCell(_Cell):
    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Any, tuple[Tensor, ...]]:
        start, start_cell, size = h, c, self._hidden
        gates = linear(x, self._value("weight_ih", x), self._bias("bias_ih", x))
        if "bias_hh" in self._known:
            gates += self._value("bias_hh", x)
        weight = self._value("weight_hh", x).T.contiguous()
        outputs, cells = (x.new_empty(*x.shape[:2], size) for _ in range(2))
        for gate, output, cell in self._in_order(gates, outputs, cells):
            gate.addmm_(h, weight)
            gate[:, : 2 * size].sigmoid_()
            gate[:, 2 * size : 3 * size].tanh_()
            gate[:, 3 * size :].sigmoid_()
            i, f, g, o = gate.chunk(4, 1)
            c = torch.addcmul(i * g, f, c, out=cell)
            h = torch.mul(o, torch.tanh(c), out=output)
        return (outputs, h.clone(), c.clone()), (x, start, start_cell, gates, outputs, cells)

    def backward(self, saved: tuple[Tensor, ...], needed: tuple[bool, ...], *gradients: Any) -> tuple[Any, Gradients]:
        x, start, start_cell, gates, outputs, cells = saved
        from_outputs = torch.zeros_like(outputs) if gradients[0] is None else gradients[0]
        dh, dc = (torch.zeros_like(start) if value is None else value for value in gradients[1:])
        weight = self._value("weight_hh", x)
        i, f, g, o = gates.chunk(4, 2)
        tanh_c = torch.tanh(cells)
        # What each gate's gradient is multiplied with, at all times at once: only dh and dc need the loop.
        slope_c = o * (1 - tanh_c.square())
        d_gates = torch.empty_like(gates)
        d_i, d_f, d_g, d_o = d_gates.chunk(4, 2)
        torch.mul(g * i, 1 - i, out=d_i)
        torch.mul(self._before(cells, start_cell) * f, 1 - f, out=d_f)
        torch.mul(i, 1 - g.square(), out=d_g)
        torch.mul(tanh_c * o, 1 - o, out=d_o)
        by_gate = d_gates.unflatten(2, (4, -1))
        for d_gate, gate, d_output, slope, forget in self._in_order(
            d_gates, by_gate, from_outputs, slope_c, f, back=True
        ):
            dh = dh + d_output
            dc = torch.addcmul(dc, dh, slope)
            gate[:, :3] *= dc[:, None]
            gate[:, 3] *= dh
            dc = dc * forget
            dh = d_gate @ weight
        found = self._parameter_gradients(d_gates, x, d_gates, self._before(outputs, start))
        dx = product(d_gates, self._value("weight_ih", x)) if needed[0] else None
        return (dx, dh if needed[1] else None, dc if needed[2] else None), found


class _RnnCell(_Cell):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Any, tuple[Tensor, ...]]:
        start, outputs = h, linear(x, self._value("weight_ih", x), self._bias("bias_ih", x))
        if "bias_hh" in self._known:
            outputs += self._value("bias_hh", x)
        weight = self._value("weight_hh", x).T.contiguous()
        squash = torch.tanh_ if self._layer.nonlinearity == "tanh" else torch.relu_
        for (output,) in self._in_order(outputs):
            h = squash(output.addmm_(h, weight))
        return (outputs, h.clone()), (x, start, outputs)

    def backward(self, saved: tuple[Tensor, ...], needed: tuple[bool, ...], *gradients: Any) -> tuple[Any, Gradients]:
        x, start, outputs = saved
        from_outputs = torch.zeros_like(outputs) if gradients[0] is None else gradients[0]
        dh = torch.zeros_like(start) if gradients[1] is None else gradients[1]
        weight = self._value("weight_hh", x)
        tanh = self._layer.nonlinearity == "tanh"
        d_gates = 1 - outputs.square() if tanh else (outputs > 0).to(outputs.dtype)
        for d_gate, d_output in self._in_order(d_gates, from_outputs, back=True):
            dh = d_gate.mul_(dh + d_output) @ weight
        found = self._parameter_gradients(d_gates, x, d_gates, self._before(outputs, start))
        dx = product(d_gates, self._value("weight_ih", x)) if needed[0] else None
        return (dx, dh if needed[1] else None), found


class _GruCell(_Cell):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Any, tuple[Tensor, ...]]:
        start, size = h, self._hidden
        gates = linear(x, self._value("weight_ih", x), self._bias("bias_ih", x))
        weight, bias = self._value("weight_hh", x), self._bias("bias_hh", x)
        hidden = torch.empty_like(gates)  # the hidden state's share of the gates
        outputs = x.new_empty(*x.shape[:2], size)
        for gate, share, output in self._in_order(gates, hidden, outputs):
            share.copy_(F.linear(h, weight, bias))
            gate[:, : 2 * size].add_(share[:, : 2 * size]).sigmoid_()
            r, z, n = gate.chunk(3, 1)
            n.addcmul_(r, share[:, 2 * size :]).tanh_()
            h = torch.lerp(n, h, z, out=output)
        return (outputs, h.clone()), (x, start, gates, hidden, outputs)

    def backward(self, saved: tuple[Tensor, ...], needed: tuple[bool, ...], *gradients: Any) -> tuple[Any, Gradients]:
        x, start, gates, hidden, outputs = saved
        from_outputs = torch.zeros_like(outputs) if gradients[0] is None else gradients[0]
        dh = torch.zeros_like(start) if gradients[1] is None else gradients[1]
        weight, size = self._value("weight_hh", x), self._hidden
        before = self._before(outputs, start)
        r, z, n = gates.chunk(3, 2)
        d_gates, d_hidden = torch.empty_like(gates), torch.empty_like(gates)
        d_r, d_z, d_n = d_gates.chunk(3, 2)
        torch.mul(1 - z, 1 - n.square(), out=d_n)
        torch.mul((before - n) * z, 1 - z, out=d_z)
        torch.mul(hidden[:, :, 2 * size :] * r, 1 - r, out=d_r)
        for d_gate, d_share, d_output, reset, update in self._in_order(
            d_gates, d_hidden, from_outputs, r, z, back=True
        ):
            dh = dh + d_output
            d_gate[:, size:].unflatten(1, (2, -1)).mul_(dh[:, None])
            d_gate[:, :size] *= d_gate[:, 2 * size :]
            d_share.copy_(d_gate)
            d_share[:, 2 * size :] *= reset
            dh = torch.addmm(dh * update, d_share, weight)
        found = self._parameter_gradients(d_gates, x, d_hidden, before)
        dx = product(d_gates, self._value("weight_ih", x)) if needed[0] else None
        return (dx, dh if needed[1] else None), found


_CELLS: dict[type[nn.Module], type[_LstmCell | _RnnCell | _GruCell]] = {
    nn.LSTM: _LstmCell,
    nn.RNN: _RnnCell,
    nn.GRU: _GruCell,
}
