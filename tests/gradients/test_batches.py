"""Inputs, outputs, losses and precisions of every kind, and one clear line for what is wrong."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sordino.gradients import Automatic, ClippedGradients, PerLayer, batches

from .reference import Applied, cast, check, close, difference, gradients, length, squared_error


class TwoInputs(nn.Module):
    """Takes two tensors by place or by name, and gives a dict with a tuple in it."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 2), nn.Linear(4, 2)

    def forward(self, first: Tensor, second: Tensor) -> dict[str, Any]:
        return {"scores": (torch.tanh(self.left(first)), self.right(second)), "name": "scores"}


def of_dict(output: dict[str, Any], target: dict[str, Tensor] | tuple[Tensor, ...]) -> Tensor:
    wanted = target["a"] if isinstance(target, dict) else target[0]
    return squared_error(output["scores"][0] * output["scores"][1], wanted)


class OneBatch(nn.Module):
    """Takes all its inputs as one dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        found: Tensor = self.linear(batch["input_ids"])
        return found


def test_a_model_that_takes_a_dict_whole_is_refused_with_the_way_out() -> None:
    clipped = ClippedGradients(OneBatch(), lambda output, target: (output[:, 0] - target) ** 2)
    with pytest.raises(TypeError, match=r"keyword arguments, which it does not take .*name its parameters input_ids"):
        clipped({"input_ids": torch.rand(4, 3)}, torch.rand(4))


def test_an_error_within_a_model_that_takes_the_names_stays_what_it_is() -> None:
    def model(input_ids: Tensor) -> None:
        raise TypeError(f"of {input_ids.ndim} dimensions")

    with pytest.raises(TypeError, match=r"^of 2 dimensions$"):
        batches.run(model, {"input_ids": torch.rand(4, 3)})


@pytest.mark.parametrize("as_dict", [True, False])
def test_tuples_and_dicts(as_dict: bool) -> None:
    torch.manual_seed(0)
    first, second, y = torch.randn(5, 3), torch.randn(5, 4), torch.randn(5, 2)
    x: Any = {"first": first, "second": second} if as_dict else (first, second)
    target: Any = {"a": y, "b": torch.arange(5)} if as_dict else (y,)
    model = TwoInputs().double()
    x, target = cast(x, torch.float64), cast(target, torch.float64)
    found = ClippedGradients(model, of_dict, 1.0, physical_batch=2)(x, target)
    close(found, gradients(model, of_dict, x, target, 5), 1.0, 1e-10)


def test_losses_that_ignore_positions() -> None:
    """A sequence loss averaged over the positions that count; an example may have none at all."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        each = F.cross_entropy(output.transpose(1, 2), target, ignore_index=-100, reduction="none")
        return each.sum(1) / (target != -100).sum(1).clamp(min=1)

    torch.manual_seed(0)
    y = torch.randint(0, 3, (4, 5))
    y[0, 2:], y[2] = -100, -100
    model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 3))
    clipped = check(model, torch.randint(0, 6, (4, 5)), y, loss=loss)
    assert clipped(torch.randint(0, 6, (4, 5)), y).norms[2] == 0


def test_in_place_activations_and_integer_inputs() -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Flatten()
    check(
        nn.Sequential(*layers, nn.Linear(16, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)),
        torch.randn(4, 2, 4, 4),
        dtypes=(torch.float64,),
    )
    model = Applied(nn.Linear(3, 2), lambda layer, x: layer(F.one_hot(x, 3).to(layer.weight.dtype)))
    check(model, torch.randint(0, 3, (4, 5)))
    check(Applied(nn.Linear(3, 2), lambda layer, x: layer(x).mul_(2).add_(1)), torch.randn(4, 3))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 4)),
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True),
        Applied(nn.LSTM(4, 4, 2, dropout=0.5, batch_first=True), lambda lstm, x: lstm(x)[0]),
    ],
)
def test_dropout(layer: nn.Module) -> None:
    """Runs without a fallback; the same seed gives the same result, another one another."""
    torch.manual_seed(0)
    x, y = torch.randn(6, 3, 4), torch.randn(6, 3, 4)
    clipped = ClippedGradients(layer, squared_error, 0.3)
    clipped.prepare(x, y)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(clipped(x, y))
    assert all(torch.equal(found[0].sums[name], found[1].sums[name]) for name in found[0].sums)
    assert not torch.allclose(found[0].norms, found[2].norms)
    assert length(clipped(x[:1], y[:1]).sums) <= 0.3 * (1 + 1e-5)


def test_dropout_that_seldom_strikes_is_no_disagreement() -> None:
    """Two runs give the same losses more often than not; the rules hold all the same (a fallback would warn)."""
    for seed in range(20):
        torch.manual_seed(seed)
        clipped = ClippedGradients(
            nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2, 2)), squared_error, 0.3
        )
        clipped.prepare(torch.randn(6, 2), torch.randn(6, 2))
        assert clipped.choices is not None
        assert clipped.choices.strategy == "rules"


class Noisy(nn.Module):
    """A layer of one's own with randomness inside."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.5, self.training) * self.weight


@pytest.mark.filterwarnings("ignore:.*example by example")
def test_dropout_inside_a_layer_without_a_rule() -> None:
    """Whichever way it goes, what was dropped going forward is dropped going back."""
    torch.manual_seed(0)
    x, y = torch.randn(6, 4).exp(), torch.zeros(6, 4)
    layer = Noisy()
    clipped = ClippedGradients(layer, lambda output, target: output.sum(1), 1e6)
    found = [clipped(x[place : place + 1], y[:1]) for place in range(6)]
    # The loss is linear in the weight: the product of the weight with the gradient.
    products = torch.stack([one.sums["weight"] @ layer.weight.detach() for one in found])
    assert torch.allclose(products, torch.cat([one.losses for one in found]), rtol=1e-4)


@pytest.mark.parametrize("net", ["dense", "conv", "attention", "gru", "embedding"])
def test_autocast(net: str) -> None:
    """Norms and sums are float32, and the norms bound what is summed."""
    torch.manual_seed(0)
    tokens = net == "embedding"
    model: nn.Module = {
        "dense": nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 2)),
        "conv": nn.Sequential(nn.Conv1d(5, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Tanh(), nn.Linear(8, 2)),
        "attention": nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), nn.Linear(8, 2)),
        "gru": Applied(nn.GRU(8, 4, bidirectional=True, batch_first=True), lambda gru, x: gru(x)[0]),
        "embedding": nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 2)),
    }[net]
    x = torch.randint(0, 9, (6, 5)) if tokens else 3 * torch.randn(6, 5, 8)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return output.float().square().flatten(1).sum(1)

    y = torch.zeros(6)
    exact = ClippedGradients(model, loss, 0.5)(x, y)
    clipped = ClippedGradients(model, loss, 0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, fewer = clipped(x, y), clipped(x[1:], y[1:])
        alone = [clipped(x[place : place + 1], y[:1]) for place in range(6)]
        unclipped = clipped(x[:1], y[:1], l2_clip=1e9)
    assert found.norms.dtype == torch.float32
    assert all(total.dtype == torch.float32 for total in found.sums.values())
    assert difference(found.sums, fewer.sums) <= 0.5 * (1 + 1e-3)
    assert all(length(one.sums) <= 0.5 * (1 + 1e-3) for one in alone)
    assert length(unclipped.sums) == pytest.approx(float(unclipped.norms[0]), rel=1e-3)
    assert torch.allclose(found.norms, exact.norms, rtol=0.1)
    assert difference(found.sums, exact.sums) <= 0.1 * length(exact.sums)


@pytest.mark.parametrize("layer", [nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 2), nn.PReLU(2))])
def test_a_model_in_bfloat16_has_sums_in_float32_within_the_clip(layer: nn.Module) -> None:
    torch.manual_seed(0)
    x, y = 10 * torch.randn(40, 4).bfloat16(), torch.randn(40, 2).bfloat16()
    clipped = ClippedGradients(layer.bfloat16(), lambda output, target: squared_error(output.float(), target), 0.3)
    assert all(total.dtype == torch.float32 for total in clipped(x, y).sums.values())
    assert max(length(clipped(x[i : i + 1], y[i : i + 1]).sums) for i in range(40)) <= 0.3 * (1 + 1e-3)


def test_sums_have_the_parameters_names_and_shapes() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, (1, 2)), nn.Flatten(), nn.Linear(12, 2))
    result = ClippedGradients(model, squared_error)(torch.randn(2, 3, 1, 4), torch.randn(2, 2))
    assert {name: total.shape for name, total in result.sums.items()} == {
        name: value.shape for name, value in model.named_parameters()
    }
    assert not any(total.requires_grad for total in result.sums.values())
    assert result.norms.shape == result.losses.shape == (2,)
    assert torch.is_grad_enabled()


def one_line(words: str) -> Any:
    return pytest.raises(ValueError, match=rf"\A[^\n]*{words}[^\n]*\Z")


@pytest.mark.parametrize("l2_clip", [0, -1.0, float("inf"), float("nan"), "1", None, torch.tensor(1.0)])
def test_clips_that_are_no_clips(l2_clip: Any) -> None:
    with one_line("l2_clip"):
        ClippedGradients(nn.Linear(2, 2), squared_error, l2_clip)
    if l2_clip is not None:
        with one_line("l2_clip"):
            ClippedGradients(nn.Linear(2, 2), squared_error)(torch.ones(2, 2), torch.ones(2, 2), l2_clip=l2_clip)


@pytest.mark.parametrize("name", ["views", "physical_batch"])
@pytest.mark.parametrize("count", [0, -1, 1.0, "2", True])
def test_counts_that_are_no_counts(name: str, count: Any) -> None:
    with one_line(name):
        ClippedGradients(nn.Linear(2, 2), squared_error, **{name: count})


def test_other_arguments_that_are_wrong() -> None:
    layer = nn.Linear(2, 2)
    for penalty in (-0.1, float("nan"), float("inf")):
        with one_line("l2_penalty"):
            ClippedGradients(layer, squared_error, l2_penalty=penalty)
    with one_line("no parameter to train"):
        ClippedGradients(nn.ReLU(), squared_error)
    with one_line("no parameter to train"):
        ClippedGradients(nn.Linear(2, 2).requires_grad_(False), squared_error)
    for stability in (0.0, -1.0, float("inf"), float("nan")):
        with one_line("stability"):
            Automatic(stability)
    for shares in ({"other": 1.0}, {"": 0.0}, {"": float("inf")}, {"": 1.0, "more": 1.0}):
        with one_line("shares"):
            ClippedGradients(layer, squared_error, clipping=PerLayer(shares))


@pytest.mark.parametrize(
    "loss",
    [
        lambda output, target: (output - target).square().mean(),
        lambda output, target: (output - target).square(),
        lambda output, target: (output - target).square().sum(1, keepdim=True),
        lambda output, target: 0.0,
    ],
)
def test_losses_of_the_wrong_shape(loss: Any) -> None:
    with one_line("reduction='none'"):
        ClippedGradients(nn.Linear(2, 3), loss)(torch.ones(4, 2), torch.ones(4, 3))


def test_batches_that_do_not_fit() -> None:
    clipped = ClippedGradients(TwoInputs(), of_dict)
    with one_line("first dimension"):
        clipped((torch.ones(3, 3), torch.ones(2, 4)), (torch.ones(3, 2),))
    with one_line("3 examples but 2 targets"):
        clipped((torch.ones(3, 3), torch.ones(3, 4)), (torch.ones(2, 2),))
    with one_line("at least one tensor"):
        clipped({}, (torch.ones(2, 2),))
    with one_line("views=2"):
        ClippedGradients(nn.Linear(2, 2), squared_error, views=2)(torch.ones(4, 3, 2), torch.ones(4, 2))
