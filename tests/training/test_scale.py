"""A plan at scale: counted work, stated devices, and time that follows from examples a second."""

import pytest
from torch import nn

from sordino.budget import PoissonGaussian, Repeated, cost
from sordino.training.scale import (
    DEVICES,
    Work,
    plan_for_scale,
    scale_model,
    throughput_here,
    throughput_of,
    work_of,
)

WORK = Work(parameters=1000, operations=2e9, kept=1e6)


def test_work_is_counted_of_one_example() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 10))
    work = work_of(model, (3, 8, 8))
    assert work.parameters == 3 * 4 * 9 + 4 + 4 * 64 * 10 + 10
    assert work.operations == 2 * (64 * 4 * 27 + 4 * 64 * 10)
    assert work.kept == 4 * (3 * 4 * 64 + 10)  # three layers keep 4×8×8 numbers, the last ten
    assert next(model.parameters()).device.type == "cpu"


def test_the_papers_networks_have_their_work_and_their_time() -> None:
    """INS's Table 2: 547 seconds for an epoch of ResNet-50 on eight V100; the reckoning is an estimate."""
    work = work_of(scale_model("resnet50"), (3, 224, 224))
    assert work.operations == pytest.approx(8.18e9, rel=0.01)
    epoch = 1_281_167 / (8 * throughput_of("v100", work))
    assert 0.5 < epoch / 547 < 2


def test_time_memory_and_money_follow_from_the_plan() -> None:
    plan = plan_for_scale(
        10_000, 2.0, 1e-6, WORK, 50.0, epochs=10, batch=1000, devices=4, memory=2e8 + 48_000, price=3.0
    )
    assert (plan.steps, plan.epochs) == (100, 10)
    assert plan.hours == pytest.approx(100 * 1000 / (50 * 4) / 3600)
    assert plan.money == pytest.approx(3 * 4 * plan.hours)
    assert (plan.physical_batch, plan.pieces) == (100, 3)
    event = Repeated(PoissonGaussian(0.1, plan.noise_multiplier), 100)
    assert plan.cost == cost(event, 1e-6)
    assert 1.99 < plan.cost.epsilon <= 2


def test_without_a_batch_one_is_recommended() -> None:
    plan = plan_for_scale(900, 3.0, 1e-5, WORK, 50.0, epochs=20)
    assert 1 < plan.expected_batch_size <= 900
    assert (plan.physical_batch, plan.pieces, plan.money) == (None, None, None)


def test_speed_is_timed_here() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    assert throughput_here(model, (3, 2, 2), batch=2) > 0


def test_devices_are_reckoned_from_what_is_stated() -> None:
    for name, device in DEVICES.items():
        assert throughput_of(name, WORK, 1.0) == pytest.approx(device.teraflops * 1e12 / 1e10)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": 2000}, "at most all 1,000"),
        ({"batch": 0}, "the batch"),
        ({"devices": 0}, "devices"),
        ({"memory": 1e3}, "does not hold the model"),
        ({"price": -1.0}, "the price"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, float], words: str) -> None:
    wish = {"epochs": 5, "batch": 100} | options
    with pytest.raises(ValueError, match=words):
        plan_for_scale(1000, 2.0, 1e-6, WORK, 50.0, **wish)  # type: ignore[arg-type]


def test_names_that_are_not_known_list_those_that_are() -> None:
    with pytest.raises(ValueError, match="profiles: v100"):
        throughput_of("b200", WORK)
    with pytest.raises(ValueError, match="models: resnet18"):
        scale_model("alexnet")
    with pytest.raises(ValueError, match="utilisation"):
        throughput_of("a100", WORK, 0.0)
