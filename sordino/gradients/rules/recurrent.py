"""RNN, LSTM and GRU, unrolled: PyTorch's fused kernels hide the gradients of the gates.

A layer is one product with all inputs, then a loop over time that multiplies with the hidden state only. Going back,
the gates' gradients of all times are kept, and both weights become affine maps at T positions, as in a linear layer.
"""

from typing import Any

import torch
from torch import Tensor, nn

from sordino.gradients.pieces import OuterSum, Piece, Whole
from sordino.gradients.tape import Pieces, Tape
from sordino.gradients.watching import Unruled

_Recurrent = nn.RNN | nn.LSTM | nn.GRU


def recurrent(tape: Tape, name: str, layer: _Recurrent, x: Tensor, state: Any = None) -> Any:
    if not isinstance(x, Tensor) or x.ndim != 3 or (isinstance(layer, nn.LSTM) and layer.proj_size):
        raise Unruled("packed or unbatched sequences and projections have no rule")
    examples_first = tape.layouts.dimension(name, x.shape, tape.examples) == 0
    if examples_first != layer.batch_first:
        raise Unruled(f"the examples are not where {name} expects them")
    x = x if layer.batch_first else x.transpose(0, 1)
    directions = 2 if layer.bidirectional else 1
    states = _initial_states(layer, x, state, directions)
    last: list[list[Tensor]] = []
    for depth in range(layer.num_layers):
        outputs = []
        for direction in range(directions):
            suffix = f"l{depth}" + "_reverse" * direction
            start = [value[depth * directions + direction] for value in states]
            use = _CELLS[type(layer)](tape, layer, suffix, len(x), reverse=direction == 1)
            output, *final = tape.tap(use, x, *start)
            outputs.append(output)
            last.append(final)
        x = outputs[0] if directions == 1 else torch.cat(outputs, 2)
        if layer.dropout and layer.training and depth + 1 < layer.num_layers:
            x = torch.nn.functional.dropout(x, layer.dropout)
    finals = tuple(torch.stack(values) for values in zip(*last, strict=True))
    return x if layer.batch_first else x.transpose(0, 1), finals if isinstance(layer, nn.LSTM) else finals[0]


def _initial_states(layer: _Recurrent, x: Tensor, state: Any, directions: int) -> list[Tensor]:
    count = 2 if isinstance(layer, nn.LSTM) else 1
    if state is None:
        zeros = x.new_zeros(layer.num_layers * directions, len(x), layer.hidden_size)
        return [zeros] * count
    return list(state) if count == 2 else [state]


class _Cell:
    """One layer in one direction: inputs (B, T, D) and states (B, H) to outputs (B, T, H) and last states."""

    gates: int

    def __init__(self, tape: Tape, layer: _Recurrent, suffix: str, rows: int, *, reverse: bool) -> None:
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh") if layer.bias else ("weight_ih", "weight_hh")
        self._known = {kind: tape.parameter(getattr(layer, f"{kind}_{suffix}")) for kind in kinds}
        self.parameters = tuple(name for name, _ in self._known.values() if name)
        self._examples, self._reverse, self._hidden = tape.examples, reverse, layer.hidden_size
        self._layer = layer

    def _value(self, kind: str, like: Tensor) -> Tensor:
        value = self._known[kind][1]
        assert value is not None
        return value.to(like.dtype)

    def _from_inputs(self, x: Tensor) -> Tensor:
        """The inputs' share of the gates at all times, time first."""
        y = x.transpose(0, 1) @ self._value("weight_ih", x).T
        return y + self._value("bias_ih", x) if "bias_ih" in self._known else y

    def _times(self, steps: int) -> list[int]:
        return list(range(steps - 1, -1, -1) if self._reverse else range(steps))

    def _affine_pieces(self, kind: str, g: Tensor, a: Tensor) -> dict[str, Piece]:
        """Of weight_ih with bias_ih, or weight_hh with bias_hh: g (T, N, gates·H), a (T, N, inputs)."""
        pieces: dict[str, Piece] = {}
        g, a = self._by_example(g), self._by_example(a)
        weight, bias = self._known[f"weight_{kind}"][0], self._known.get(f"bias_{kind}", (None, None))[0]
        if weight:
            pieces[weight] = OuterSum(g, a)
        if bias:
            pieces[bias] = Whole(g.sum(1))
        return pieces

    def _by_example(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1).reshape(self._examples, -1, x.shape[2])
        return x if x.dtype.itemsize >= 4 else x.float()

    def _previous(self, outputs: Tensor, start: Tensor) -> Tensor:
        """The hidden state before each time, from the outputs (T, N, H)."""
        if self._reverse:
            return torch.cat([outputs[1:], start[None]])
        return torch.cat([start[None], outputs[:-1]])


class _LstmCell(_Cell):
    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Any, tuple[Tensor, ...]]:
        start, start_cell = h, c
        gates = self._from_inputs(x)
        if "bias_hh" in self._known:
            gates = gates + self._value("bias_hh", x)
        weight, size = self._value("weight_hh", x).T.contiguous(), self._hidden
        outputs, cells = (x.new_empty(x.shape[1], len(x), size) for _ in range(2))
        for t in self._times(x.shape[1]):
            gate = gates[t].addmm_(h, weight)
            gate[:, : 2 * size].sigmoid_()
            gate[:, 2 * size : 3 * size].tanh_()
            gate[:, 3 * size :].sigmoid_()
            i, f, g, o = gate.chunk(4, 1)
            c = torch.addcmul(i * g, f, c, out=cells[t])
            h = torch.mul(o, torch.tanh(c), out=outputs[t])
        return (outputs.transpose(0, 1), h.clone(), c.clone()), (x, start, start_cell, gates, outputs, cells)

    def backward(self, kept: tuple[Tensor, ...], needed: tuple[bool, ...], *gradients: Any) -> tuple[Any, Pieces]:
        x, start, start_cell, gates, outputs, cells = kept
        from_outputs, dh, dc = gradients
        dh, dc = (torch.zeros_like(start) if value is None else value for value in (dh, dc))
        weight = self._value("weight_hh", x)
        before = self._previous(cells, start_cell)
        i, f, g, o = gates.chunk(4, 2)
        tanh_c = torch.tanh(cells)
        # What each gate's gradient is multiplied with, at all times at once: only dh and dc need the loop.
        slope_c = o * (1 - tanh_c.square())
        slopes = torch.stack([g * i * (1 - i), before * f * (1 - f), i * (1 - g.square())], 2)
        slope_o = tanh_c * o * (1 - o)
        d_gates = torch.empty_like(gates)
        for t in reversed(self._times(x.shape[1])):
            if from_outputs is not None:
                dh = dh + from_outputs[:, t]
            dc = torch.addcmul(dc, dh, slope_c[t])
            gate = d_gates[t].view(len(x), 4, -1)
            torch.mul(slopes[t], dc[:, None], out=gate[:, :3])
            torch.mul(slope_o[t], dh, out=gate[:, 3])
            dc = dc * f[t]
            dh = d_gates[t] @ weight
        pieces = self._affine_pieces("ih", d_gates, x.transpose(0, 1))
        pieces |= self._affine_pieces("hh", d_gates, self._previous(outputs, start))
        dx = (d_gates @ self._value("weight_ih", x)).transpose(0, 1) if needed[0] else None
        return (dx, dh if needed[1] else None, dc if needed[2] else None), pieces


class _RnnCell(_Cell):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Any, tuple[Tensor, ...]]:
        start, gates = h, self._from_inputs(x)
        if "bias_hh" in self._known:
            gates = gates + self._value("bias_hh", x)
        weight = self._value("weight_hh", x).T.contiguous()
        squash = torch.tanh_ if self._layer.nonlinearity == "tanh" else torch.relu_
        for t in self._times(x.shape[1]):
            h = squash(gates[t].addmm_(h, weight))
        return (gates.transpose(0, 1), h.clone()), (x, start, gates)

    def backward(self, kept: tuple[Tensor, ...], needed: tuple[bool, ...], *gradients: Any) -> tuple[Any, Pieces]:
        x, start, outputs = kept
        from_outputs, dh = gradients[0], torch.zeros_like(start) if gradients[1] is None else gradients[1]
        weight = self._value("weight_hh", x)
        slopes = 1 - outputs.square() if self._layer.nonlinearity == "tanh" else (outputs > 0).to(outputs.dtype)
        d_gates = torch.empty_like(outputs)
        for t in reversed(self._times(x.shape[1])):
            if from_outputs is not None:
                dh = dh + from_outputs[:, t]
            dh = torch.mul(slopes[t], dh, out=d_gates[t]) @ weight
        pieces = self._affine_pieces("ih", d_gates, x.transpose(0, 1))
        pieces |= self._affine_pieces("hh", d_gates, self._previous(outputs, start))
        dx = (d_gates @ self._value("weight_ih", x)).transpose(0, 1) if needed[0] else None
        return (dx, dh if needed[1] else None), pieces


class _GruCell(_Cell):
    def forward(self, x: Tensor, h: Tensor) -> tuple[Any, tuple[Tensor, ...]]:
        start, gates, size = h, self._from_inputs(x), self._hidden
        weight = self._value("weight_hh", x).T.contiguous()
        bias = self._value("bias_hh", x) if "bias_hh" in self._known else x.new_zeros(3 * size)
        hidden = torch.empty_like(gates)  # the hidden state's share of the gates
        outputs = x.new_empty(x.shape[1], len(x), size)
        for t in self._times(x.shape[1]):
            torch.addmm(bias, h, weight, out=hidden[t])
            gate = gates[t]
            gate[:, : 2 * size].add_(hidden[t][:, : 2 * size]).sigmoid_()
            r, z, n = gate.chunk(3, 1)
            n.addcmul_(r, hidden[t][:, 2 * size :]).tanh_()
            h = torch.lerp(n, h, z, out=outputs[t])
        return (outputs.transpose(0, 1), h.clone()), (x, start, gates, hidden, outputs)

    def backward(self, kept: tuple[Tensor, ...], needed: tuple[bool, ...], *gradients: Any) -> tuple[Any, Pieces]:
        x, start, gates, hidden, outputs = kept
        from_outputs, dh = gradients[0], torch.zeros_like(start) if gradients[1] is None else gradients[1]
        weight, size = self._value("weight_hh", x), self._hidden
        before = self._previous(outputs, start)
        r, z, n = gates.chunk(3, 2)
        slope_n = (1 - z) * (1 - n.square())
        slope_z = (before - n) * z * (1 - z)
        slope_r = hidden[:, :, 2 * size :] * r * (1 - r)
        d_gates, d_hidden = torch.empty_like(gates), torch.empty_like(gates)
        for t in reversed(self._times(x.shape[1])):
            if from_outputs is not None:
                dh = dh + from_outputs[:, t]
            dn = torch.mul(slope_n[t], dh, out=d_gates[t][:, 2 * size :])
            torch.mul(slope_r[t], dn, out=d_gates[t][:, :size])
            torch.mul(slope_z[t], dh, out=d_gates[t][:, size : 2 * size])
            d_hidden[t][:, : 2 * size] = d_gates[t][:, : 2 * size]
            torch.mul(r[t], dn, out=d_hidden[t][:, 2 * size :])
            dh = torch.addmm(dh * z[t], d_hidden[t], weight)
        pieces = self._affine_pieces("ih", d_gates, x.transpose(0, 1))
        pieces |= self._affine_pieces("hh", d_hidden, before)
        dx = (d_gates @ self._value("weight_ih", x)).transpose(0, 1) if needed[0] else None
        return (dx, dh if needed[1] else None), pieces


_CELLS: dict[type[nn.Module], type[_LstmCell | _RnnCell | _GruCell]] = {
    nn.LSTM: _LstmCell,
    nn.RNN: _RnnCell,
    nn.GRU: _GruCell,
}
