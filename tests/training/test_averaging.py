"""The running average forgets its start early and then keeps a long memory."""

import pytest
import torch

from sordino.training.optimisers import Averaging


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


@pytest.mark.parametrize("decay", [1.0, -0.1, float("nan")])
def test_impossible_decays_are_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="decay"):
        Averaging(decay)
