"""One example more or less moves the sums, taken together, by at most the clip: whatever the example is."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sordino.gradients import Automatic, ClippedGradients, Clipping, Flat, PerLayer

from .reference import check, difference, forced, length, squared_error

CLIP = 0.7
POLICIES: dict[str, tuple[Clipping, dict[str, Any]]] = {
    "flat": (Flat(), {}),
    "layers": (PerLayer(), {}),
    "shares": (PerLayer({"0": 3.0, "3": 0.2, "5": 1.0}), {}),
    "automatic": (Automatic(), {}),
    "automatic nearly unstable": (Automatic(1e-30), {}),
    "penalty": (Flat(), {"l2_penalty": 0.3}),
    "large penalty by layer": (PerLayer(), {"l2_penalty": 1e4}),
    "views": (Flat(), {"views": 2}),
    "views with a penalty": (Automatic(), {"views": 2, "l2_penalty": 0.01}),
}


def model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Nothing in it saturates: what goes in large comes out large, and comes back large."""
    torch.manual_seed(0)
    layers = (
        nn.Conv1d(3, 4, 3, padding=1),
        nn.LeakyReLU(),
        nn.Identity(),
        nn.Linear(6, 3),
        nn.Flatten(),
        nn.Linear(12, 2),
    )
    return nn.Sequential(*layers).to(dtype)


def absolute(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target).square() + 1e-6).sqrt().sum(1)


def adversarial(kind: str, shape: tuple[int, ...]) -> Tensor:
    torch.manual_seed(1)
    x = torch.randn(shape)
    if kind == "cancelling":  # positions alternate in sign
        return 1e4 * x[..., :1].sign() * torch.tensor([1.0, -1.0]).repeat(shape[-1])[: shape[-1]].expand(shape)
    if kind == "nearly cancelling":
        return adversarial("cancelling", shape) + 1e-2 * x
    if kind == "constant":
        return torch.full(shape, 37.0)
    if kind in ("nan", "inf", "-inf"):
        x[0, ..., -1] = float(kind)
        return x
    if kind == "one huge entry":
        x[..., 0] = 3e38
        return x
    return float(kind) * x


KINDS = ["1e4", "1e10", "1e19", "1e30", "1e38", "1e-20", "1e-30", "0", "nan", "inf", "-inf"]
KINDS += ["cancelling", "nearly cancelling", "constant", "one huge entry"]


def moved(clipped: ClippedGradients, x: Tensor, y: Tensor) -> float:
    """How far the sums move as the first example is taken away; in sums of one and the same scale as the clip."""
    return difference(clipped(x, y).sums, clipped(x[1:], y[1:]).sums)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("loss", [squared_error, absolute])
def test_one_example_moves_the_sums_by_at_most_the_clip(policy: str, loss: Any) -> None:
    clipping, options = POLICIES[policy]
    views = (2,) if "views" in options else ()
    torch.manual_seed(2)
    others, y = torch.randn(3, *views, 3, 6), torch.randn(4, 2)
    clipped = ClippedGradients(model(), loss, CLIP, clipping=clipping, **options)
    clipped(others, y[1:])
    for kind in KINDS:
        x = torch.cat([adversarial(kind, (1, *views, 3, 6)), others])
        assert moved(clipped, x, y) <= CLIP * (1 + 1e-5), kind
        assert length(clipped(x[:1], y[:1]).sums) <= CLIP * (1 + 1e-5), kind
        y[0] = 1e6 * y[0].sign()  # a target far away, for the next ones


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(list(POLICIES)),
    st.floats(-30, 30),
    st.floats(-6, 6),
    st.floats(-6, 3),
    st.sampled_from(["whole", "gram"]),
    st.integers(0, 99),
)
def test_random_scales(policy: str, size: float, weights: float, clip: float, route: str, seed: int) -> None:
    """Inputs, weights and clips of any size."""
    clipping, options = POLICIES[policy]
    views = (2,) if "views" in options else ()
    net = model()
    torch.manual_seed(seed)
    with torch.no_grad():
        net[3].weight *= 10**weights
    y, x = torch.randn(3, 2), torch.randn(3, *views, 3, 6)
    clipped = ClippedGradients(net, squared_error, 10**clip, clipping=clipping, **options)
    plain = ClippedGradients(net, squared_error, views=options.get("views", 1))
    clipped.choices = forced(plain, x, y, route)
    x[0] *= 10**size
    assert moved(clipped, x, y) <= 10**clip * (1 + 1e-5)


@pytest.mark.parametrize("kind", ["nan", "inf", "one huge entry"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_non_finite_example_adds_exactly_nothing(kind: str, policy: str) -> None:
    clipping, options = POLICIES[policy]
    views = (2,) if "views" in options else ()
    torch.manual_seed(3)
    x, y = torch.randn(5, *views, 3, 6), torch.randn(5, 2)
    clipped = ClippedGradients(model(), squared_error, CLIP, clipping=clipping, **options)
    whole, clean = clipped(x, y), clipped(x[[0, 2, 3]], y[[0, 2, 3]])
    bad, blank = adversarial(kind, (1, *views, 3, 6)), torch.full((1, *views, 3, 6), torch.nan)
    found, others = (clipped(torch.cat([x[:1], row, x[2:4], row]), y) for row in (bad, blank))
    assert all(torch.equal(found.sums[name], others.sums[name]) for name in clean.sums)
    assert difference(found.sums, clean.sums) <= 1e-6 * CLIP
    assert torch.equal(found.norms[[0, 2, 3]], whole.norms[[0, 2, 3]])
    assert found.norms[[1, 4]].tolist() == [torch.inf] * 2
    assert all(not total.any() for total in clipped(bad, y[:1]).sums.values())


def test_a_non_finite_example_does_not_change_how_others_round() -> None:
    """Scores of 1e10 are equal but for rounding: in a batch of another shape, another class would win."""
    torch.manual_seed(0)
    net = nn.Linear(3969, 10)
    with torch.no_grad():
        net.weight.copy_(torch.randn(3969) + 1e-7 * torch.randn(10, 3969))
    clipped = ClippedGradients(net, nn.CrossEntropyLoss(reduction="none"), CLIP)
    for others in (1, 2, 7):
        x, y = 1e8 * torch.randn(others + 1, 3969), torch.arange(others + 1) % 10
        x[0] = 1.0
        whole = clipped(x, y).sums
        x[0] = torch.nan
        assert difference(whole, clipped(x, y).sums) <= CLIP * (1 + 1e-5)


class NoRuleForSevens(nn.Module):
    """Rows of sevens take a path without a rule, so that only they have to be formed alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.shift = nn.Linear(3969, 10), nn.Parameter(torch.ones(()))
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(3969) + 1e-7 * torch.randn(10, 3969))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, sevens = self.linear(x), x[:, :1] == 7
        return torch.where(sevens, torch.hypot(out, self.shift), out) if sevens.any() else out


@pytest.mark.filterwarnings("ignore:the loss does not depend on 1")  # `shift` is of the sevens alone
@pytest.mark.parametrize("sevens", [1, 3])
def test_an_example_without_a_rule_does_not_change_how_others_round(sevens: int) -> None:
    torch.manual_seed(0)
    clipped = ClippedGradients(NoRuleForSevens(), nn.CrossEntropyLoss(reduction="none"), CLIP)
    for others in (1, 2, 7):
        examples = sevens + others
        x, y = 1e8 * torch.randn(examples, 3969), torch.arange(examples) % 10
        x[:sevens] = torch.nan
        without = clipped(x, y).sums
        x[:sevens] = 7.0
        found = clipped(x, y)
        assert 0 < difference(without, found.sums) <= sevens * CLIP * (1 + 1e-5)
        assert torch.isfinite(found.norms).all()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("bad", [[], [0], [6], [2, 6], list(range(7))])
def test_passes_of_one_shape_give_the_same_sums(policy: str, bad: list[int]) -> None:
    clipping, options = POLICIES[policy]
    views = (2,) if "views" in options else ()
    torch.manual_seed(3)
    x, y = torch.randn(7, *views, 3, 6), torch.randn(7, 2)
    x[bad] = torch.nan
    free, fixed = (
        ClippedGradients(
            model(), squared_error, CLIP, clipping=clipping, physical_batch=4, fixed_shape=fixed_shape, **options
        )
        for fixed_shape in (False, True)
    )
    fixed.prepare(torch.randn(7, *views, 3, 6), y)
    seen: list[int] = []
    assert fixed._strategy is not None
    strategy = fixed._strategy

    def watched(x: Any, y: Any) -> Any:
        seen.append(len(y))
        return strategy(x, y)

    fixed._strategy = watched
    expected, found = free(x, y), fixed(x, y)
    assert set(seen) == {4}
    assert torch.equal(torch.isfinite(found.norms), torch.isfinite(expected.norms))
    assert torch.allclose(found.norms, expected.norms)
    assert torch.allclose(found.losses, expected.losses, equal_nan=True)
    assert all(torch.allclose(found.sums[name], value, atol=1e-6) for name, value in expected.sums.items())


class Picky(nn.Module):
    """Raises on some rows, or on all of them."""

    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.linear, self.error, self.broken = nn.Linear(6, 3), error, False

    def forward(self, x: Tensor) -> Tensor:
        if self.broken or bool((x == 12345.0).any()):
            raise self.error(f"cannot take {float(x.max())}")
        found: Tensor = self.linear(x)
        return found


@pytest.mark.parametrize("error", [ValueError, IndexError, KeyError, RuntimeError, ZeroDivisionError])
@pytest.mark.parametrize("clipping", [Flat(), PerLayer()], ids=repr)
def test_once_sealed_an_example_on_which_the_model_raises_adds_exactly_nothing(
    error: type[Exception], clipping: Clipping
) -> None:
    torch.manual_seed(0)
    model = Picky(error)
    clipped = ClippedGradients(model, nn.CrossEntropyLoss(reduction="none"), CLIP, clipping=clipping)
    x, y = torch.randn(9, 6), torch.arange(9) % 3
    clipped.prepare(x, y)
    clipped.seal()
    x[4] = torch.nan
    without = clipped(x, y)
    x[4] = 12345.0
    found = clipped(x, y)
    assert all(torch.equal(found.sums[name], without.sums[name]) for name in without.sums)
    assert torch.equal(found.norms, without.norms)
    x[4], y[4] = 1.0, 777
    found = clipped(x, y)
    assert all(torch.equal(found.sums[name], without.sums[name]) for name in without.sums)
    assert not any(total.any() for total in clipped(x[4:5], y[4:5]).sums.values())
    model.broken = True  # whatever the example: nobody's, so it is shown, and what it quotes is not of this batch
    with pytest.raises(error) as problem:
        clipped(torch.full((2, 6), 4321.0), y[:2])
    assert "4321" not in str(problem.value)
    assert problem.value.__context__ is None


def test_a_non_finite_example_in_the_first_batch() -> None:
    torch.manual_seed(3)
    x, y = torch.randn(4, 3, 6), torch.randn(4, 2)
    x[0] = torch.nan
    clipped = ClippedGradients(model(), squared_error, CLIP)
    found, clean = clipped(x, y), clipped(x[1:], y[1:])
    assert difference(found.sums, clean.sums) <= 1e-6
    assert length(clean.sums) > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_are_those_of_the_naive_loop(policy: str) -> None:
    clipping, options = POLICIES[policy]
    torch.manual_seed(4)
    views = (2,) if "views" in options else ()
    net = nn.Sequential(*(nn.Tanh() if isinstance(layer, nn.LeakyReLU) else layer for layer in model()))
    check(net, torch.randn(5, *views, 3, 6), torch.randn(5, 2), clipping=clipping, **options)


def test_a_penalty_that_cancels_the_gradient() -> None:
    """g = −λw exactly: what is left is rounding, and must not be blown up."""
    weight = torch.tensor([[3.0, -2.0]])
    net = nn.Linear(2, 1, bias=False)
    net.load_state_dict({"weight": weight})
    clipped = ClippedGradients(net, lambda output, target: (output * target).sum(1), 1.0, l2_penalty=0.5)
    found = clipped(weight.expand(3, 2), torch.tensor([[-0.5], [-0.5000001], [1.0]]))
    assert found.norms[0] == 0
    assert float(found.norms[1]) == pytest.approx(1e-7 * float(weight.norm()), rel=0.3)


def test_the_clip_of_one_call() -> None:
    torch.manual_seed(5)
    x, y = torch.randn(4, 3, 6), torch.randn(4, 2)
    clipped = ClippedGradients(model(), squared_error, CLIP)
    assert difference(clipped(x, y, l2_clip=0.1).sums, ClippedGradients(model(), squared_error, 0.1)(x, y).sums) < 1e-6
    assert length(clipped(x[:1], y[:1], l2_clip=1e-3).sums) <= 1e-3 * (1 + 1e-5)
