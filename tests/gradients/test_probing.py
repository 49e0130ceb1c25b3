"""Models whose examples mix are refused by name, can be repaired, and are looked at without leaving a trace."""

import copy

import pytest
import torch
from torch import Tensor, nn

from sordino.gradients import ClippedGradients, ExamplesMixError, repair

from .reference import check, close, gradients, squared_error


class Centred(nn.Module):
    """Subtracts the batch's mean."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class OverTheBatch(nn.Module):
    """Attends from each example to the others."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x[:, None], x[:, None], x[:, None])[0][:, 0]


class Running(nn.Module):
    """Keeps a running mean, which it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x


class Shifted(nn.Module):
    """Each example sees its neighbour."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.01 * x.roll(1, 0)


class Mirrored(nn.Module):
    """The first example sees the last, and the one in the middle only itself."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.flip(0)


def within(layer: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), layer, nn.Linear(4, 2))


def refused(model: nn.Module, name: str, x: Tensor | None = None) -> None:
    x = torch.randn(5, 4) if x is None else x
    y = torch.randn(len(x), 2)
    with pytest.raises(ExamplesMixError, match=name) as error:
        ClippedGradients(model, squared_error)(x, y)
    assert "\n" not in str(error.value)


class Bounded(nn.Module):
    """Takes small numbers alone."""

    def forward(self, x: Tensor) -> Tensor:
        assert float(x.detach().abs().max()) < 100
        return x


def test_a_model_that_asserts_what_it_takes_is_tried_on_what_it_takes() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(5, 4), torch.randn(5, 2)
    found = ClippedGradients(nn.Sequential(Bounded(), nn.Linear(4, 2)), squared_error)(x, y)
    assert torch.isfinite(found.norms).all()
    refused(nn.Sequential(Bounded(), Centred(), nn.Linear(4, 2)), "layer 1 ", x)


@pytest.mark.parametrize("examples", [1, 2, 5])
@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), Centred(), OverTheBatch(), Shifted(), Mirrored()])
def test_mixing_layers_are_refused_by_name(layer: nn.Module, examples: int) -> None:
    refused(within(layer), r"layer 2(\.attention)? ", torch.randn(examples, 4))


def test_batch_norm_without_statistics_is_refused_in_evaluation_mode() -> None:
    refused(within(nn.BatchNorm1d(4, track_running_stats=False)).eval(), "layer 2 ")


def test_running_statistics_are_refused() -> None:
    refused(within(Running()), "2.mean")
    model = nn.Sequential(
        nn.Conv1d(1, 3, 1), nn.InstanceNorm1d(3, track_running_stats=True), nn.Flatten(), nn.Linear(12, 2)
    )
    refused(model, "1.running_mean", torch.randn(5, 1, 4))


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_embeddings_that_mix_are_refused(options: dict[str, object]) -> None:
    model = nn.Sequential(nn.Embedding(5, 4, **options), nn.Flatten(), nn.Linear(8, 2))  # type: ignore[arg-type]
    refused(model, "layer 0 ", torch.randint(0, 5, (5, 2)))


def test_a_loss_that_mixes_is_refused() -> None:
    x, y = torch.randn(4, 4), torch.randn(4, 2)
    mixing = [
        lambda output, target: (output - output.mean(0) - target).square().sum(1),
        lambda output, target: (output - target.flip(0)).square().sum(1),
        lambda output, target: (output - target).square().mean().expand(len(target)),
    ]
    for loss in mixing:
        with pytest.raises(ExamplesMixError, match="model or its loss"):
            ClippedGradients(nn.Linear(4, 2), loss)(x, y)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_non_finite_example_hides_no_mixing(bad: float, place: int) -> None:
    """Whatever the first batch holds, a model that mixes must not get through on later batches."""
    x, y = torch.randn(5, 4), torch.randn(5, 2)
    dirty = x.clone()
    dirty[place] = bad
    clipped = ClippedGradients(within(Centred()), squared_error)
    with pytest.raises(ExamplesMixError):  # noqa: PT012
        clipped(dirty, y)
        clipped(x, y)


class Sorting(nn.Module):
    """Puts the examples in order for a layer, as models do that pack sequences by length, and back again."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        return self.head(torch.tanh(self.layer(x[order]))[order.argsort()])


@pytest.mark.filterwarnings("ignore:.*example by example")
@pytest.mark.parametrize("first", [1, 2, 5])
def test_examples_that_change_places_inside_the_model(first: int) -> None:
    """A layer's rows are not taken for another example's, even if the first batch was in order."""
    torch.manual_seed(0)
    model, x, y = Sorting().double(), torch.randn(5, 4).double(), torch.randn(5, 2).double()
    x[:, 0] = torch.arange(5)
    clipped = ClippedGradients(model, squared_error, 0.1)
    clipped(x[:first], y[:first])
    found = clipped(x.flip(0), y.flip(0))
    close(found, gradients(model, squared_error, x.flip(0), y.flip(0), 5), 0.1, 1e-9)


class OnValidRows(nn.Module):
    """Applies a layer to the positions that are not padding, all examples' in one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        y = x.new_zeros(*x.shape[:2], 2)
        y[valid] = torch.tanh(self.layer(x[valid]))
        return y


@pytest.mark.filterwarnings("ignore:.*example by example")
def test_examples_of_different_lengths_in_one_tensor() -> None:
    """Rows that could be shared out evenly need not belong to the examples evenly."""
    torch.manual_seed(0)
    model, x, y = OnValidRows().double(), torch.randn(3, 4, 3).double(), torch.randn(3, 4, 2).double()
    clipped = ClippedGradients(model, squared_error, 0.1)
    clipped((x, torch.ones(3, 4, dtype=torch.bool)), y)
    batch = x, torch.arange(4) < torch.tensor([1, 4, 1])[:, None]
    close(clipped(batch, y), gradients(model, squared_error, batch, y, 3), 0.1, 1e-9)


def test_a_later_change_of_mode_is_seen() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(5, 4), torch.randn(5, 2)
    model = within(nn.BatchNorm1d(4)).eval()
    clipped = ClippedGradients(model, squared_error)
    before = clipped(x, y)
    model.train()
    with pytest.raises(ExamplesMixError, match="layer 2 "):
        clipped(x, y)
    with pytest.raises(ExamplesMixError, match="layer 2 "):
        clipped(x, y)
    model.eval()
    assert torch.equal(clipped(x, y).norms, before.norms)


def test_repair_puts_group_norms_in_place() -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(6, 64, 1), nn.BatchNorm2d(64, eps=1e-3), nn.Tanh())
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Tanh(), block, nn.Flatten(), nn.Linear(256, 2))
    nn.init.normal_(model[1].weight)
    x = torch.randn(4, 3, 4, 4)
    refused(model, "layer 1 .*repair", x)
    repaired = repair(model)
    assert isinstance(model[1], nn.BatchNorm2d)
    assert [type(layer) for layer in (repaired[1], repaired[3][1])] == [nn.GroupNorm] * 2
    assert (repaired[1].num_groups, repaired[3][1].num_groups, repaired[3][1].eps) == (3, 32, 1e-3)
    assert torch.equal(repaired[1].weight, model[1].weight)
    check(repaired, x)


def test_repair_of_a_lone_norm_and_of_shared_norms() -> None:
    assert isinstance(repair(nn.BatchNorm1d(7)), nn.GroupNorm)
    assert repair(nn.BatchNorm1d(7)).num_groups == 1
    shared = nn.BatchNorm1d(4)
    model = nn.Sequential(nn.Linear(4, 4), shared, nn.Tanh(), shared)
    repaired = repair(model)
    assert repaired[1] is repaired[3]
    check(repaired, torch.randn(4, 4))


def test_looking_leaves_no_trace() -> None:
    torch.manual_seed(0)
    model = within(nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.3)))
    model[2][0].eval()
    kept, x, y = copy.deepcopy(model), torch.randn(5, 4), torch.randn(5, 2)
    inputs, state = (x.clone(), y.clone()), torch.get_rng_state()
    ClippedGradients(model, squared_error).prepare(x, y)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, inputs[0])
    assert torch.equal(y, inputs[1])
    assert [layer.training for layer in model.modules()] == [layer.training for layer in kept.modules()]
    before, after = kept.state_dict(), model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert all(type(value) is nn.Parameter and value.grad is None for value in model.parameters())
    assert not any("forward" in layer.__dict__ for layer in model.modules())
    assert torch.is_grad_enabled()


@pytest.mark.filterwarnings("ignore:.*example by example")
def test_a_refused_or_broken_model_is_left_as_it_was() -> None:
    model, x, y = within(nn.Identity()), torch.randn(5, 4), torch.randn(5, 2)

    def failing(output: Tensor, target: Tensor) -> Tensor:
        if output.requires_grad:
            raise RuntimeError("no")
        return squared_error(output, target)

    with pytest.raises(RuntimeError, match="no"):
        ClippedGradients(model, failing)(x, y)
    assert all(type(value) is nn.Parameter for value in model.parameters())
    assert not any("forward" in layer.__dict__ for layer in model.modules())
