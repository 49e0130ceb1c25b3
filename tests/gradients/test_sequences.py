"""Recurrent and attention layers give the naive loop's sums and norms."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from .reference import Applied, check

few = settings(max_examples=8, deadline=None)
both = (True, False)


def flat(states: Any) -> Tensor:
    """Last states (layers, B, hidden), or a pair of them, as (B, …)."""
    return (
        torch.cat([flat(state) for state in states], 1)
        if isinstance(states, tuple)
        else states.movedim(1, 0).flatten(1)
    )


class Unrolled(nn.Module):
    """A recurrent layer on (B, T, D), with its outputs and last states joined; maybe with given first states."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, *states: Tensor) -> Tensor:
        first: Any = None
        if states:
            first = tuple(state.transpose(0, 1).contiguous() for state in states)
            first = first if isinstance(self.layer, nn.LSTM) else first[0]
        outputs, last = self.layer(x if self.layer.batch_first else x.transpose(0, 1), first)
        outputs = outputs if self.layer.batch_first else outputs.transpose(0, 1)
        return torch.cat([outputs.flatten(1), flat(last)], 1)


@pytest.mark.parametrize("kind", ["tanh", "relu", "lstm", "gru"])
@few
@given(st.data())
def test_recurrent(kind: str, data: st.DataObject) -> None:
    examples, length, width, hidden, layers = (data.draw(st.integers(1, high)) for high in (4, 5, 4, 4, 2))
    batch_first, bidirectional, bias, given_states, seed = (data.draw(st.booleans()) for _ in range(5))
    torch.manual_seed(seed)
    options = {"batch_first": batch_first, "bidirectional": bidirectional, "bias": bias, "num_layers": layers}
    kinds = {"lstm": nn.LSTM, "gru": nn.GRU}
    layer = (
        kinds[kind](width, hidden, **options) if kind in kinds else nn.RNN(width, hidden, nonlinearity=kind, **options)
    )
    x = (torch.randn(examples, length, width),)
    if given_states:
        shape = examples, layers * (2 if bidirectional else 1), hidden
        x += tuple(torch.randn(shape) for _ in range(2 if kind == "lstm" else 1))
    check(Unrolled(layer), x, dtypes=(torch.float64,) if kind == "relu" else (torch.float64, torch.float32))


def test_only_the_last_state_is_used() -> None:
    torch.manual_seed(0)
    for layer in (nn.LSTM(3, 4, 2), nn.GRU(3, 4, bidirectional=True), nn.RNN(3, 4)):
        check(Applied(layer, lambda rnn, x: flat(rnn(x.transpose(0, 1))[1])), torch.randn(3, 5, 3))


@few
@given(st.data())
def test_attention(data: st.DataObject) -> None:
    examples, length, keys, heads = (
        data.draw(st.integers(low, high)) for low, high in ((1, 4), (1, 5), (2, 5), (1, 3))
    )
    batch_first, bias, weights, widths, self_attention, learned, zero = (data.draw(st.booleans()) for _ in range(7))
    masks = data.draw(st.sampled_from(["none", "padding", "bool", "float", "each", "both"]))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    width = 2 * heads
    separate = {"kdim": 3, "vdim": 5} if widths and not self_attention else {}
    options = {"bias": bias, "batch_first": batch_first, "add_bias_kv": learned, "add_zero_attn": zero}
    layer = nn.MultiheadAttention(width, heads, **options, **separate)
    keys = length if self_attention else keys
    padding = torch.rand(examples, keys) < 0.4
    padding[:, 0] = False
    mask = torch.rand(length, keys) < 0.4
    mask[:, 0] = False
    float_mask = torch.randn(length, keys)
    each = mask.expand(examples, heads, length, keys)

    def forward(layer: nn.Module, query: Tensor, key: Tensor, value: Tensor, padding: Tensor, each: Tensor) -> Tensor:
        options: dict[str, Any] = {"need_weights": weights}
        if masks in ("padding", "both"):
            options["key_padding_mask"] = padding
        if masks in ("bool", "both"):
            options["attn_mask"] = mask
        if masks == "float":
            options["attn_mask"] = float_mask.to(query.dtype)
        if masks == "each":
            options["attn_mask"] = each.flatten(0, 1)
        inputs = (query, query, query) if self_attention else (query, key, value)
        if not batch_first:
            inputs = (query.transpose(0, 1),) * 3 if self_attention else tuple(x.transpose(0, 1) for x in inputs)
        output, shown = layer(*inputs, **options)
        output = output if batch_first else output.transpose(0, 1)
        return output.flatten(1) if shown is None else torch.cat([output.flatten(1), shown.flatten(1)], 1)

    key, value = (torch.randn(examples, keys, separate.get(name, width)) for name in ("kdim", "vdim"))
    check(Applied(layer, forward), (torch.randn(examples, length, width), key, value, padding, each))


@pytest.mark.parametrize("weights", both)
def test_attention_weights_of_each_head(weights: bool) -> None:
    torch.manual_seed(0)

    def forward(layer: nn.Module, x: Tensor) -> Tensor:
        y, shown = layer(x, x, x, need_weights=weights, average_attn_weights=False)
        return y if shown is None else torch.cat([y.flatten(1), shown.flatten(1)], 1)

    check(Applied(nn.MultiheadAttention(4, 2, batch_first=True), forward), torch.randn(3, 4, 4))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("batch_first", both)
@pytest.mark.parametrize("norm_first", both)
def test_transformer_layers(batch_first: bool, norm_first: bool) -> None:
    torch.manual_seed(0)
    options = {"dropout": 0.0, "activation": "gelu", "batch_first": batch_first, "norm_first": norm_first}
    model = nn.Transformer(4, 2, 1, 1, 6, **options)  # type: ignore[arg-type]
    mask = nn.Transformer.generate_square_subsequent_mask(3, dtype=torch.float64)

    def forward(model: nn.Module, source: Tensor, target: Tensor) -> Tensor:
        if batch_first:
            return model(source, target, tgt_mask=mask)
        return model(source.transpose(0, 1), target.transpose(0, 1), tgt_mask=mask).transpose(0, 1)

    x = torch.randn(3, 5, 4), torch.randn(3, 3, 4)
    check(Applied(model, forward), x, dtypes=(torch.float64,))


@pytest.mark.parametrize("training", both)
def test_encoder_with_padding(training: bool) -> None:
    """In evaluation mode PyTorch has a fused path of its own, which must not be taken."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 6, 0.0, "gelu", batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] + [True] * 4])
    model = Applied(encoder, lambda encoder, x, p: encoder(x, src_key_padding_mask=p) * ~p[..., None])
    check(model.train(training), (torch.randn(3, 5, 4), padding), dtypes=(torch.float64,))


def test_a_sequence_as_long_as_the_batch_is_not_taken_for_it() -> None:
    torch.manual_seed(0)
    for examples in (2, 3, 4):
        model = Applied(nn.LSTM(3, 3), lambda lstm, x: lstm(x.transpose(0, 1))[0].transpose(0, 1))
        check(model, torch.randn(examples, examples, 3))
        check(
            Applied(nn.Linear(3, 2), lambda layer, x: layer(x.transpose(0, 1)).transpose(0, 1)),
            torch.randn(examples, examples, 3),
        )
