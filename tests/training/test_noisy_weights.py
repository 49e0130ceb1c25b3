"""Training at noisy weights: where gradients are taken, how large the noise is, and what norms do against it."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sordino import models
from sordino.data import load
from sordino.features import Pixels
from sordino.mechanisms.streams import Streams
from sordino.training import noisy_weights
from sordino.training.noisy_weights import NoisyTraining, accuracy, train_noisy

X, Y = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), np.arange(40) % 3


class Spy(nn.Module):
    """A linear model that notes the weights with which it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.trained: list[Tensor] = []
        self.biases: list[Tensor] = []
        self.examined: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        (self.trained if self.training else self.examined).append(self.layer.weight.detach().clone())
        self.biases.append(self.layer.bias.detach().clone())
        scores: Tensor = self.layer(x)
        return scores


def spied(settings: NoisyTraining) -> tuple[Spy, list[noisy_weights.Look]]:
    made: list[Spy] = []

    def build() -> Spy:
        made.append(Spy())
        return made[0]

    looks = train_noisy(build, (X, Y), (X, Y), settings)
    return made[0], looks


def test_each_step_has_a_draw_of_its_own_and_the_means_are_examined_too() -> None:
    spy, looks = spied(NoisyTraining(0.5, epochs=3, batch=10, learning_rate=1e-6, looks=2))
    assert (len(spy.trained), len(spy.examined)) == (12, 12)
    assert [look.epoch for look in looks] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    drawn = torch.stack([*spy.trained, *spy.examined[::2]])
    means = torch.stack(spy.examined[1::2])
    assert float((means - means[0]).abs().max()) < 1e-4  # which hardly move at this rate
    noise = (drawn - means[0]).flatten(1)
    assert float(noise.std()) == pytest.approx(0.5, rel=0.1)
    assert float(noise.mean().abs()) < 0.1
    correlations = torch.corrcoef(noise) - torch.eye(len(noise))
    assert float(correlations.abs().max()) < 0.85  # no draw is used twice: with 18 entries chance stays below


def test_means_move_by_adam_with_the_gradient_at_the_drawn_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[tuple[Tensor, Tensor]] = []
    step = torch.optim.Adam.step

    def noting(self: torch.optim.Adam) -> None:
        weight = self.param_groups[0]["params"][0]
        before = weight.clone()
        step(self)
        noted.append((weight.grad.clone(), weight - before))

    monkeypatch.setattr(torch.optim.Adam, "step", noting)
    spy, _ = spied(NoisyTraining(2.0, epochs=1, batch=40, learning_rate=0.01))
    ((gradient, moved),) = noted
    assert torch.allclose(moved, -0.01 * gradient.sign(), atol=1e-5)  # Adam's first step
    weight, bias = spy.trained[0].requires_grad_(), spy.biases[0]
    loss = nn.functional.cross_entropy(X @ weight.T + bias, torch.from_numpy(Y))
    assert torch.allclose(gradient, torch.autograd.grad(loss, weight)[0], atol=1e-6)
    assert not torch.allclose(spy.trained[0], spy.examined[1], atol=0.1)


def test_without_noise_it_is_plain_adam() -> None:
    spy, looks = spied(NoisyTraining(0.0, epochs=3, batch=40, learning_rate=0.05))
    plain = nn.Linear(6, 3)
    with torch.no_grad():
        plain.weight.copy_(spy.trained[0])
        plain.bias.copy_(spy.biases[0])
    optimiser = torch.optim.Adam(plain.parameters(), lr=0.05)
    for _ in range(3):
        optimiser.zero_grad()
        nn.functional.cross_entropy(plain(X), torch.from_numpy(Y)).backward()
        optimiser.step()
    assert torch.allclose(spy.examined[-1], plain.weight, atol=1e-5)
    assert all(look.sampled == look.means for look in looks)
    assert looks[2].loss < looks[0].loss


def test_norms_bear_noise_that_plain_networks_do_not() -> None:
    data = load("digits")
    train, test = ((Pixels(white=16.0)(part.x), part.y) for part in (data.train, data.test))

    def network(norm: models.Norm) -> nn.Module:
        layers = (nn.Linear(64, 60), nn.ReLU(), norm(60), nn.Linear(60, 40), nn.ReLU(), norm(40))
        return nn.Sequential(nn.Flatten(), *layers, nn.Linear(40, 10))

    settings = NoisyTraining(1.0, epochs=6, batch=16, learning_rate=0.1)
    found = {
        norm: train_noisy(partial(network, norm), train, test, settings)[-1].sampled
        for norm in (models.no_norm, models.BatchNorm)
    }
    assert found[models.no_norm] < 0.3
    assert found[models.BatchNorm] > 0.6


def test_a_seed_fixes_everything() -> None:
    settings = NoisyTraining(0.3, epochs=2, batch=7)
    assert spied(settings)[1] == spied(settings)[1]
    assert spied(settings)[1] != spied(NoisyTraining(0.3, epochs=2, batch=7, seed=1))[1]


def test_accuracy_counts_what_is_no_number_as_wrong() -> None:
    scores = torch.tensor([[1.0, 0.0], [torch.nan, torch.nan], [torch.nan, 1.0], [0.0, torch.inf]])
    assert accuracy(nn.Identity(), scores, np.array([0, 0, 1, 1])) == 0.75


def test_draws_are_around_the_means() -> None:
    network = nn.Linear(50, 40)
    means = [torch.full_like(parameter, 3.0) for parameter in network.parameters()]
    noisy_weights._draw(network, means, 2.0, Streams(bytes(16)), 5)
    assert float(network.weight.detach().mean()) == pytest.approx(3, abs=0.2)
    assert float(network.weight.detach().std()) == pytest.approx(2, abs=0.1)


def test_bad_settings_are_told() -> None:
    for wrong in ({"deviation": -1.0}, {"deviation": float("nan")}, {"epochs": 0}, {"batch": 0}, {"looks": 0}):
        with pytest.raises(ValueError, match="must be"):
            NoisyTraining(**{"deviation": 1.0, "epochs": 1, **wrong})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="learning rate"):
        NoisyTraining(1.0, 1, learning_rate=0.0)
    with pytest.raises(ValueError, match="40 examples but 3 labels"):
        train_noisy(Spy, (X, Y[:3]), (X, Y), NoisyTraining(0.0, 1))
