"""A step's noise is drawn once, whatever an optimizer does: interrupted, resumed in one process, or forgetful."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sordino.budget import Ledger
from sordino.data import PoissonSampler
from sordino.training import Plan, fit, make_private

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int64)
LOSS = nn.CrossEntropyLoss(reduction="none")
PLAN = Plan(PoissonSampler(40, 10), l2_clip=1.0, noise_multiplier=1.0, steps=12)


class Watch:
    """The noisy gradients that an optimizer is given; stops it at one of them."""

    def __init__(self, model: nn.Module, stop: int) -> None:
        self.seen: list[Tensor] = []
        self._model, self._stop = model, stop

    def __call__(self, *_: Any) -> None:
        self.seen.append(torch.cat([value.grad.flatten() for value in self._model.parameters()]))  # type: ignore[union-attr]
        if len(self.seen) == self._stop:
            raise KeyboardInterrupt


class Cooling(torch.optim.SGD):
    """Remembers its steps where no checkpoint looks."""

    count = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.count += 1
        for group in self.param_groups:
            for value in group["params"]:
                value.data.add_(value.grad, alpha=-group["lr"] / self.count)


def test_a_loop_interrupted_in_its_optimizer_never_draws_that_noise_again() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    watch = Watch(model, stop=1)
    optimizer.register_step_post_hook(watch)
    data = (torch.from_numpy(X), torch.from_numpy(Y))
    private = make_private(
        model, optimizer, LOSS, data, expected_batch_size=10, epochs=1, l2_clip=1.0, target_epsilon=8, target_delta=1e-3
    )
    x, y = next(private.batches())
    with pytest.raises(KeyboardInterrupt):
        private.step(x, y)
    assert private.drawn == 1
    for x, y in private.batches():
        private.step(x, y)
    assert len(watch.seen) == private.plan.steps == private.ledger.entries[0].count


def fitted(folder: Path, optimizer: torch.optim.Optimizer, model: nn.Module) -> Ledger:
    ledger = Ledger(100.0, 1e-3, path=folder / "ledger.json")
    fit(PLAN, model, (X, Y), loss=LOSS, optimiser=optimizer, ledger=ledger, run=folder / "run", checkpoint_every=6)
    return ledger


@pytest.mark.parametrize("kind", [torch.optim.Adam, lambda values, lr: torch.optim.SGD(values, lr, momentum=0.9)])
def test_an_optimizer_that_was_interrupted_is_set_back_to_the_checkpoint(kind: Any, tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = kind(model.parameters(), 0.5)
    watch = Watch(model, stop=4)
    optimizer.register_step_post_hook(watch)
    with pytest.raises(KeyboardInterrupt):
        fitted(tmp_path, optimizer, model)
    assert fitted(tmp_path, optimizer, model).entries[0].count == 12
    assert torch.equal(torch.stack(watch.seen[:4]), torch.stack(watch.seen[4:8]))


def test_steps_of_an_optimizer_that_keeps_more_than_its_state_are_not_repeated(tmp_path: Path) -> None:
    stopped, model = Watch(nn.Linear(3, 2), stop=9), nn.Linear(3, 2)
    stopped._model = model
    start = {name: value.clone() for name, value in model.state_dict().items()}
    first = Cooling(model.parameters(), 2.0)
    first.register_step_post_hook(stopped)
    with pytest.raises(KeyboardInterrupt):
        fitted(tmp_path, first, model)
    model.load_state_dict(start)
    again = Watch(model, stop=-1)
    second = Cooling(model.parameters(), 2.0)
    second.register_step_post_hook(again)
    ledger = fitted(tmp_path, second, model)
    assert ledger.entries[0].count == 12
    # Six steps were kept and six charged besides: those are lost, and none is drawn again under its noise.
    assert not any(torch.equal(one, other) for one in stopped.seen for other in again.seen)
    assert len(again.seen) < 6
