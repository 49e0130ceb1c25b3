"""Parameters used outside of layers, shared ones and frozen ones, and models that only the fallback takes."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from sordino.gradients import ClippedGradients

from .reference import Applied, check, squared_error


class Bare(nn.Module):
    """A class token, positions, a scale and matrices, all parameters of the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.positions = nn.Parameter(torch.randn(1, 6, 4))
        self.scale = nn.Parameter(torch.randn(4))
        self.gain = nn.Parameter(torch.tensor(1.3))
        self.matrix = nn.Parameter(torch.randn(4, 3))
        self.other = nn.Parameter(torch.randn(2, 3))
        self.shift = nn.Parameter(torch.randn(2))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), self.layer(x)], 1)
        x = torch.tanh((x + self.positions[:, : x.shape[1]]) * self.scale * self.gain)
        return F.linear(torch.tanh(x @ self.matrix), self.other, self.shift) - 2 * self.shift


class Tied(nn.Module):
    """A language model whose decoder is its embedding."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.embedding, self.mix, self.how = nn.Embedding(7, 4), nn.Linear(4, 4), how
        if how == "layer":
            self.decoder = nn.Linear(4, 7)
            self.decoder.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.tanh(self.mix(self.embedding(tokens)))
        if self.how == "layer":
            return self.decoder(x)
        weight = self.embedding.weight
        return F.linear(x, weight) if self.how == "linear" else x @ weight.t()


def test_bare_parameters() -> None:
    torch.manual_seed(0)
    check(Bare(), torch.randn(4, 3, 4))
    check(Bare(), torch.randn(1, 5, 4))


class Windows(nn.Module):
    """Attention in windows, with a bias that a table gives for each pair of places: a Swin transformer's."""

    def __init__(self, side: int, *, fused: bool) -> None:
        super().__init__()
        self.layer, self.mix = nn.Linear(4, 12), nn.Linear(4, 3)
        self.table = nn.Parameter(torch.randn(2 * side - 1, 2))
        places = torch.arange(side)
        self.register_buffer("index", (places[:, None] - places + side - 1).flatten())
        self.side, self.fused = side, fused

    def forward(self, x: Tensor) -> Tensor:
        windows = x.unflatten(1, (-1, self.side)).flatten(0, 1)
        q, k, v = self.layer(windows).unflatten(2, (3, 2, 2)).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index].view(self.side, self.side, 2).permute(2, 0, 1).contiguous()
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, bias.unsqueeze(0))
        else:
            mixed = torch.softmax(q @ k.transpose(2, 3) / 2**0.5 + bias, -1) @ v
        return self.mix(mixed.transpose(1, 2).flatten(2)).unflatten(0, (len(x), -1)).flatten(1)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("side", [5, 7])
def test_relative_positions_in_windows(side: int, fused: bool) -> None:
    """No warning: the layer rules hold, though the table's index is as long as several of the batches tried."""
    torch.manual_seed(0)
    check(Windows(side, fused=fused), torch.randn(4, 2 * side, 4))


class Gain(nn.Module):
    """A scalar as a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.gain)


def test_a_scalar_in_a_layer_of_its_own() -> None:
    torch.manual_seed(0)
    check(nn.Sequential(nn.Linear(4, 3), Gain()), torch.randn(4, 4))


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: x + m.weight,
        lambda m, x: m.weight[None] * x,
        lambda m, x: x / m.weight.exp(),
        lambda m, x: 1.5 - m.weight.softmax(0) * x,
        lambda m, x: torch.cat([x, m.weight.unsqueeze(0).expand(len(x), 4)], 1),
        lambda m, x: torch.cat([x, m.weight.repeat(len(x), 1)], 1),
        lambda m, x: x @ torch.outer(m.weight, m.weight),
        lambda m, x: x * m.weight.norm(),
        lambda m, x: torch.where(x > 0, x * 2, m.weight),
        lambda m, x: x.T.mul(m.weight[:, None]).T,
        lambda m, x: (x[:, None].expand(-1, 3, -1).transpose(0, 1) + m.weight).transpose(0, 1),
        lambda m, x: F.rms_norm(x, (4,), m.weight),
        lambda m, x: torch.einsum("bi,i->bi", x, m.weight),
        lambda m, x: torch.einsum("ib,ij->jb", x.T, torch.outer(m.weight, m.weight)).T,
        lambda m, x: F.conv1d(x[:, None], m.weight[None, None], padding=2),
        lambda m, x: F.prelu(x, m.weight),
        lambda m, x: x + torch.outer(m.weight, m.weight)[(x > 0).long().argmax(1)],
        lambda m, x: x[:, None] @ torch.outer(m.weight, m.weight)[None],
        lambda m, x: m.weight[:, None].repeat(len(x), 1).unflatten(0, (len(x), 4))[..., 0] * x,
    ],
)
def test_a_vector_used_in_many_ways(forward: object) -> None:
    torch.manual_seed(0)

    class Vector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.weight = nn.Linear(4, 4), nn.Parameter(torch.rand(4) + 0.5)

        def forward(self, x: Tensor) -> Tensor:
            return forward(self, torch.tanh(self.first(x)))  # type: ignore[operator]

    check(Vector(), torch.randn(3, 4))


@pytest.mark.parametrize("how", ["layer", "linear", "transposed"])
def test_tied_embedding_and_decoder(how: str) -> None:
    torch.manual_seed(0)
    check(Tied(how), torch.randint(0, 7, (4, 5)))


def test_a_layer_called_several_times() -> None:
    torch.manual_seed(0)
    check(Applied(nn.Linear(4, 4), lambda layer, x: layer(torch.tanh(layer(torch.tanh(layer(x)))))), torch.randn(4, 4))
    check(Applied(nn.Conv2d(3, 3, 3, padding=1), lambda conv, x: conv(torch.tanh(conv(x)))), torch.randn(3, 3, 4, 5))
    check(Applied(nn.Embedding(5, 3), lambda layer, x: layer(x) * layer(x.flip(1))), torch.randint(0, 5, (3, 4)))
    check(
        Applied(nn.LSTM(3, 3), lambda lstm, x: lstm(lstm(x.transpose(0, 1))[0])[0].transpose(0, 1)),
        torch.randn(3, 2, 3),
    )
    check(Applied(nn.LayerNorm(3), lambda norm, x: norm(x) + norm(x.exp())), torch.randn(3, 2, 3))
    check(Applied(nn.Linear(4, 2), lambda layer, x: layer(x) + 0 * layer(x).detach()), torch.randn(3, 4))


def test_a_layer_and_a_parameter_under_two_names() -> None:
    torch.manual_seed(0)
    shared = nn.Linear(4, 4)
    check(nn.Sequential(shared, nn.Tanh(), shared, nn.Tanh(), nn.Linear(4, 2)), torch.randn(4, 4))
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    check(model, torch.randn(4, 3, 4))


def test_frozen_layers_and_parameters_without_use() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 2))
    for parameter in (*model[0].parameters(), *model[5].parameters()):
        parameter.requires_grad_(False)
    assert list(check(model, torch.randn(3, 2, 4, 4))(torch.zeros(0, 2, 4, 4), torch.zeros(0)).sums) == [
        "3.weight",
        "3.bias",
    ]


class Half(nn.Module):
    """Layers of which some are not used."""

    def __init__(self, used: int) -> None:
        super().__init__()
        self.layers, self.used = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]), used

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[: self.used]:
            x = layer(x)
        return x


def test_what_only_noise_would_move_is_told() -> None:
    """Once, and nothing of it depends on the numbers in the batch."""
    torch.manual_seed(0)
    with pytest.warns(
        UserWarning, match=r"2 of the model's .* \(layers.1.weight, layers.1.bias\): noise alone"
    ) as told:
        check(Half(1), torch.randn(3, 4), dtypes=(torch.float64,))
    assert len(told) == 1
    with pytest.raises(ValueError, match="depends on none of the model's trainable parameters"):
        ClippedGradients(Half(0), squared_error)(torch.randn(3, 4), torch.randn(3, 4))


@pytest.mark.filterwarnings("ignore:.*example by example")
def test_nothing_is_told_of_a_parameter_that_only_some_examples_reach_or_that_checkpoints_hide() -> None:
    class Now(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + (self.other(x) * (x[:, :1] > 0) if bool((x[:, 0] > 0).any()) else 0)

    x = torch.randn(4, 4).abs() * torch.tensor([-1.0, -1, -1, 1])[:, None]
    check(Now(), x, dtypes=(torch.float64,))
    two = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    hidden = Applied(two, lambda two, x: checkpoint(two[1], two[0](x), use_reentrant=True))
    ClippedGradients(hidden, squared_error)(x, torch.randn(4, 4))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch has no batching rule for it
def test_parametrised_weights() -> None:
    torch.manual_seed(0)
    check(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.Tanh()), torch.randn(3, 4))


class Cube(torch.autograd.Function):
    """An operation that torch.func does not know."""

    @staticmethod
    def forward(ctx: object, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)  # type: ignore[attr-defined]
        return x**3 * weight

    @staticmethod
    def backward(ctx: object, g: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors  # type: ignore[attr-defined]
        return g * 3 * x**2 * weight, (g * x**3).sum(0)


class Unruly(nn.Module):
    """A parameter used as no rule foresees."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.weight = nn.Linear(4, 4), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return Cube.apply(torch.tanh(self.first(x)), self.weight)


class UnrulyLeaf(nn.Module):
    """A layer of its own without layers inside, that does what vectorised gradients do not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return Cube.apply(x, self.weight)


def test_only_the_fallback_takes_it() -> None:
    """Exact, and said once."""
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="example by example") as told:
        check(Unruly(), torch.randn(4, 4), dtypes=(torch.float64,))
    assert len(told) == 1


def test_a_layer_that_only_the_loop_takes() -> None:
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="example by example") as told:
        clipped = check(nn.Sequential(nn.Linear(4, 4), UnrulyLeaf()), torch.randn(4, 4), dtypes=(torch.float64,))
    assert len(told) == 1
    assert clipped.choices is not None
    assert clipped.choices.strategy == "loop"


def test_packed_sequences_are_looped_over() -> None:
    torch.manual_seed(0)

    def forward(lstm: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return lstm(packed)[1][0].transpose(0, 1).flatten(1)

    x = torch.randn(3, 5, 2), torch.tensor([5, 2, 3])
    with pytest.warns(UserWarning, match="example by example"):
        check(Applied(nn.LSTM(2, 3, batch_first=True), forward), x, dtypes=(torch.float64,))


@pytest.mark.filterwarnings("ignore:.*example by example")
@pytest.mark.parametrize(
    "forward",
    [
        lambda layer, x: torch.stack([layer(row) for row in x]),
        lambda layer, x: layer(x.transpose(0, 1).reshape(-1, 4)).unflatten(0, (3, -1)).transpose(0, 1),
    ],
)
def test_layers_that_see_examples_in_unusual_places(forward: object) -> None:
    """One call an example, or rows of several examples in turn: not what a rule takes, so the fallback does it."""
    torch.manual_seed(0)
    check(Applied(nn.Linear(4, 4), forward), torch.randn(4, 3, 4), dtypes=(torch.float64,))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*example by example")
def test_a_layer_on_what_is_the_same_for_all_examples() -> None:
    """Positions that are embedded once for the whole batch, and broadcast."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions, self.head = nn.Embedding(9, 4), nn.Embedding(6, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.tokens(x) + self.positions(torch.arange(x.shape[1]))))

    torch.manual_seed(0)
    for length in (4, 5, 6):
        check(Positions(), torch.randint(0, 9, (4, length)), dtypes=(torch.float64,))
