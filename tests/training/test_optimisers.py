"""Optimisers step as torch's do, and the correction for the noise gives what Adam would do without it."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.training.optimisers import SGD, Adam, Averaging, MeanOfIterates, Optimiser
from sordino.training.schedules import WarmupCosine


def path(optimiser: Optimiser, gradients: list[torch.Tensor], deviation: float = 0.0) -> torch.Tensor:
    parameters = {"w": torch.linspace(-1, 1, gradients[0].numel()).to(gradients[0])}
    state = optimiser.start(parameters)
    for step, gradient in enumerate(gradients):
        optimiser.step(parameters, state, {"w": gradient}, step, deviation)
    return parameters["w"]


def reference(make: Any, gradients: list[torch.Tensor], rates: list[float] | None = None) -> torch.Tensor:
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, gradients[0].numel()).to(gradients[0]))
    optimiser = make([parameter])
    for step, gradient in enumerate(gradients):
        parameter.grad = gradient.clone()
        if rates:
            optimiser.param_groups[0]["lr"] = rates[step]
        optimiser.step()
    return parameter.detach()


def some_gradients(seed: int, count: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = np.random.default_rng(seed)
    return [torch.from_numpy(generator.normal(size=7)).to(dtype) for _ in range(count)]


rates = st.floats(1e-3, 1.0)
shares = st.sampled_from([0.0, 0.3, 0.9])
decays = st.sampled_from([0.0, 1e-2, 0.3])
dtypes = st.sampled_from([torch.float32, torch.float64])


@settings(max_examples=60, deadline=None)
@given(rates, shares, st.booleans(), decays, st.integers(1, 12), st.integers(0, 99), dtypes)
def test_sgd_is_torchs(
    rate: float, momentum: float, nesterov: bool, decay: float, count: int, seed: int, dtype: torch.dtype
) -> None:
    gradients = some_gradients(seed, count, dtype)
    nesterov = nesterov and momentum > 0
    ours = path(SGD(rate, momentum, nesterov, decay), gradients)
    theirs = reference(
        lambda p: torch.optim.SGD(p, rate, momentum, nesterov=nesterov, weight_decay=decay, foreach=False), gradients
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@settings(max_examples=60, deadline=None)
@given(rates, shares, st.sampled_from([0.5, 0.99]), decays, st.integers(1, 12), st.integers(0, 99), dtypes)
def test_adam_is_torchs_adamw(
    rate: float, first: float, second: float, decay: float, count: int, seed: int, dtype: torch.dtype
) -> None:
    gradients = some_gradients(seed, count, dtype)
    ours = path(Adam(rate, first, second, 1e-6, decay), gradients)
    settings = {"lr": rate, "betas": (first, second), "eps": 1e-6, "foreach": False}
    torch.testing.assert_close(
        ours, reference(lambda p: torch.optim.AdamW(p, weight_decay=decay, **settings), gradients), rtol=1e-6, atol=1e-7
    )
    if decay == 0:
        torch.testing.assert_close(
            ours, reference(lambda p: torch.optim.Adam(p, **settings), gradients), rtol=1e-6, atol=1e-7
        )


def test_schedules_set_the_rate_of_each_step() -> None:
    schedule = WarmupCosine(0.3, 3, 9)
    gradients = some_gradients(1, 9, torch.float64)
    theirs = reference(
        lambda p: torch.optim.SGD(p, 1.0, 0.9), gradients, rates=[schedule.rate(step) for step in range(9)]
    )
    torch.testing.assert_close(path(SGD(schedule, 0.9), gradients), theirs)
    for optimiser in (SGD(schedule), Adam(schedule)):
        assert json.loads(json.dumps(optimiser.to_json()))["learning_rate"] == {
            "peak": 0.3,
            "warmup_steps": 3,
            "steps": 9,
        }


def test_corrected_adam_moves_as_if_there_were_no_noise_in_its_scale() -> None:
    """A gradient of 0.1 under noise of deviation 1: Adam takes a tenth of the rate, the corrected one all."""
    generator = np.random.default_rng(2)
    steps, width, deviation = 400, 2000, 1.0
    noisy = [torch.from_numpy(0.1 + deviation * generator.normal(size=width)) for _ in range(steps)]
    start = torch.linspace(-1, 1, width, dtype=torch.float64)
    settings = {"learning_rate": 1e-3, "second_decay": 0.9999}
    plain = (start - path(Adam(**settings), noisy, deviation)).mean() / (1e-3 * steps)
    corrected = (start - path(Adam(**settings, noise_floor=0.05**2), noisy, deviation)).mean() / (1e-3 * steps)
    assert float(plain) == pytest.approx(0.1, rel=0.1)
    assert float(corrected) > 5 * float(plain)


def test_the_noise_taken_off_is_averaged_as_the_squares_are() -> None:
    """Squares of pure noise whose size changes: what is taken off is their expectation at every step."""
    adam = Adam(1.0, first_decay=0.0, second_decay=0.9, noise_floor=1e-12)
    parameters = {"w": torch.zeros(1, dtype=torch.float64)}
    state, expected = adam.start(parameters), 0.0
    for step, deviation in enumerate([1.0, 2.0, 0.5, 0.1]):
        adam.step(parameters, state, {"w": torch.zeros(1, dtype=torch.float64)}, step, deviation)
        expected = 0.9 * expected + 0.1 * deviation**2
        assert float(state["noise"]["variance"]) == pytest.approx(expected)
    # A second moment of exactly the noise is floored, and a step is no larger than the floor allows.
    assert path(adam, [torch.ones(1)], 1.0).item() == pytest.approx(-1 - 1 / 1e-6, rel=1e-3)


def test_state_goes_on_where_it_was() -> None:
    gradients = some_gradients(3, 10, torch.float32)
    for optimiser in (SGD(0.1, 0.9, nesterov=True), Adam(0.1, noise_floor=1e-4)):
        parameters = {"w": torch.linspace(-1, 1, 7)}
        state = optimiser.start(parameters)
        for step, gradient in enumerate(gradients):
            if step == 5:  # as a checkpoint would
                parameters = {name: value.clone() for name, value in parameters.items()}
                state = {slot: {name: value.clone() for name, value in kept.items()} for slot, kept in state.items()}
            optimiser.step(parameters, state, {"w": gradient}, step, 0.5)
        assert torch.equal(parameters["w"], path(optimiser, gradients, 0.5))


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        *((SGD, {"learning_rate": rate}) for rate in (0, float("nan"), float("inf"), -1, True, "fast")),
        *((SGD, {"learning_rate": 1, "momentum": momentum}) for momentum in (1, -0.1, float("nan"))),
        (SGD, {"learning_rate": 1, "nesterov": True}),
        (SGD, {"learning_rate": 1, "weight_decay": -1}),
        (Adam, {"learning_rate": 1, "first_decay": 1.0}),
        (Adam, {"learning_rate": 1, "second_decay": -1}),
        (Adam, {"learning_rate": 1, "stability": float("nan")}),
        (Adam, {"learning_rate": 1, "noise_floor": 0.0}),
        (Adam, {"learning_rate": 1, "weight_decay": float("inf")}),
    ],
)
def test_impossible_optimisers_are_refused(kind: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"learning rate|momentum|must"):
        kind(**bad)


# Averaging: The running average forgets its start early and then keeps a long memory.


def test_it_is_the_average_with_its_warm_up() -> None:
    averaging, values = Averaging(0.8), [1.0, 2.0, 4.0, 8.0] * 20
    parameters = {"w": torch.tensor([5.0], dtype=torch.float64)}
    average, expected = averaging.start(parameters), 5.0
    for step, value in enumerate(values):
        parameters["w"].fill_(value)
        averaging.step(average, parameters, step)
        decay = min(0.8, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
        assert float(average["w"]) == pytest.approx(expected)
    assert float(average["w"]) != float(parameters["w"])


def test_the_mean_of_iterates_is_the_mean_after_every_step_and_not_of_the_start() -> None:
    averaging, values = MeanOfIterates(), [1.0, 2.0, 4.0, 8.0] * 5
    parameters = {"w": torch.tensor([100.0], dtype=torch.float64)}
    average = averaging.start(parameters)
    for step, value in enumerate(values):
        parameters["w"].fill_(value)
        averaging.step(average, parameters, step)
        assert float(average["w"]) == pytest.approx(sum(values[: step + 1]) / (step + 1))
    assert averaging.to_json() != Averaging(0.0).to_json()


@pytest.mark.parametrize("decay", [1.0, -0.1, float("nan")])
def test_impossible_decays_are_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="decay"):
        Averaging(decay)
