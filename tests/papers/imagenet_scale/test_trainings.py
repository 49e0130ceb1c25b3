"""INS's trainings: priced as what they are, started from public weights that stay, and trained once."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sordino.budget import Ledger, PoissonGaussian, Repeated, cost
from sordino.papers.imagenet_scale.networks import NETWORKS, PRIVATE, PUBLIC, SIMPLE_VGGS, image_parts
from sordino.papers.imagenet_scale.trainings import AVERAGES, PrivateTraining, PublicTraining, tuned
from sordino.papers.trials import Experiment, TrialStore

TRIAL = PrivateTraining("fashion-mnist", "pooled CNN", 1.0, 24, 0.5, records=96, held_out=24, tested=24, delta=1e-3)
START = PublicTraining("ResNet-18, 1/8", 1, records=64, tested=24, pooled=True)


def test_a_budget_and_a_noise_are_priced_and_charged(tmp_path: Path) -> None:
    store = TrialStore(tmp_path)
    noisy = replace(TRIAL, noise_multiplier=2.0)
    found = noisy.run(store=store)
    price = cost(Repeated(PoissonGaussian(0.25, 2.0), 2), 1e-3).epsilon
    assert (found["steps"], found["epsilon"]) == (2, price)
    assert Ledger.open(tmp_path / noisy.key / "ledger.json").epsilon(1e-3) == pytest.approx(price)
    assert replace(TRIAL, epsilon=2.0).run(store=store)["epsilon"] <= 2
    plain = TRIAL.run(store=store)
    assert (plain["epsilon"], plain["noise_multiplier"]) == (None, 0.0)


def test_public_and_private_images_are_of_different_classes() -> None:
    public, private = (image_parts(name, 200, 50, 30, pooled=True) for name in (PUBLIC, PRIVATE))
    assert public.classes == private.classes == 5
    assert set(np.unique(private.y)) <= set(range(5))
    assert public.x.shape == (200, 3, 16, 16)
    assert not any(torch.equal(one, other) for one in public.x[:20] for other in private.x[:20])
    held = {tuple(image.flatten().tolist()) for image in private.held_x}
    assert not held & {tuple(image.flatten().tolist()) for image in private.x}


def test_frozen_groups_stay_as_they_were_on_public_images(tmp_path: Path) -> None:
    trial = replace(
        TRIAL, dataset=PRIVATE, network=START.network, pooled=True, start=START, frozen=3, noise_multiplier=1
    )
    frozen, build = trial._cut(image_parts(PRIVATE, 96, 24, 24, True), tmp_path, print)
    public = START.module(tmp_path, print)
    for name, weights in frozen.state_dict().items():
        assert torch.equal(weights, public.state_dict()[name])
    trained = dict(build().named_parameters())
    assert all(name.startswith(("group4", "pool", "head")) for name in trained)
    assert all(weights.requires_grad for weights in trained.values())
    assert trained["head.weight"].shape[0] == 5
    assert 0 <= trial.run(store=TrialStore(tmp_path))["accuracy"] <= 1


def test_the_rate_is_chosen_by_held_out_images(tmp_path: Path) -> None:
    experiment = Experiment(store=TrialStore(tmp_path))
    rate, found = tuned(experiment, replace(TRIAL, epochs=2), [1e-6, 0.5])
    others = [replace(TRIAL, epochs=2, learning_rate=each).run(store=experiment.store) for each in (1e-6, 0.5)]
    assert found["held_out"] == max(other["held_out"] for other in others)
    assert rate in (1e-6, 0.5)


@pytest.mark.parametrize("average", [None, *AVERAGES])
def test_what_is_released_may_be_an_average(average: str | None, tmp_path: Path) -> None:
    assert replace(TRIAL, average=average).run(store=TrialStore(tmp_path))["steps"] == 2


def test_narrow_networks_are_narrow() -> None:
    for name in SIMPLE_VGGS:
        whole, quarter = (
            sum(weights.numel() for weights in NETWORKS[f"simpleVGG-{name}{suffix}"]().parameters())
            for suffix in ("", ", 1/4")
        )
        assert 12 < whole / quarter < 64
