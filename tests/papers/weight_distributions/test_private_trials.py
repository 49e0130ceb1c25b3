"""A training of Tables 4 to 6 is a real run: charged, resumed, measured at what is released and at the means."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sordino import models
from sordino.budget import BudgetExceeded, Ledger
from sordino.data import load
from sordino.features import Pixels
from sordino.papers import trials
from sordino.papers.trials import TrialStore
from sordino.papers.weight_distributions import private_trials
from sordino.papers.weight_distributions.networks import APART, AS_WRITTEN, NETWORKS, public_images
from sordino.papers.weight_distributions.plans import (
    DELTA,
    PaperSettings,
    SoundSettings,
    dpsgd_optimiser,
    dpsgd_plan,
    sound_plan,
)
from sordino.papers.weight_distributions.private_trials import PrivateTrial
from sordino.training.modules import MixingModule
from sordino.training.noisy_weights import accuracy
from sordino.training.schedules import Schedule, Staircase


def _falling(epoch: int, steps: int) -> Schedule:
    return Staircase(0.1, 0.9, epoch)


_ONCE, _TWICE = (SoundSettings(2, epochs, 1.0) for epochs in (1, 2))
_ONCE, _TWICE = (SoundSettings(2, epochs, 1.0) for epochs in (1, 2))
METHOD = PaperSettings(256, 32, 3, 3.1, _falling, 0.9)
CLAIMED = PrivateTrial(network="LN-LeNet-5", test=200, plan=METHOD.plan(3))
SOUND = PrivateTrial(network="LeNet-5", test=50, budget=(3, DELTA), plan=sound_plan(64, 3, _ONCE))
GRADIENT = PrivateTrial(
    network="LeNet-5", test=50, budget=(3, DELTA), plan=dpsgd_plan(64, 3, _TWICE), optimiser=dpsgd_optimiser(_TWICE)
)


def _folder(store: Path) -> Path:
    (folder,) = store.iterdir()
    return folder


def test_the_ledger_charges_what_holds_not_what_is_claimed(tmp_path: Path) -> None:
    found = CLAIMED.run(store=TrialStore(tmp_path))
    assert found["charged"] == pytest.approx(CLAIMED.plan.epsilon(DELTA))
    assert found["charged"] > 100 * 3
    assert found["plan"] == CLAIMED.plan.to_json()
    with pytest.raises(BudgetExceeded):
        replace(CLAIMED, budget=(3, DELTA)).run(store=TrialStore(tmp_path))


@pytest.mark.parametrize("trial", [SOUND, GRADIENT], ids=["distributions", "gradients"])
def test_a_sound_training_is_held_to_its_budget(trial: PrivateTrial, tmp_path: Path) -> None:
    found = trial.run(store=TrialStore(tmp_path))
    assert 0.9 * 3 < found["charged"] <= 3
    ledger = Ledger.open(_folder(tmp_path) / "ledger.json")
    assert (ledger.terms.target_epsilon, ledger.terms.target_delta) == (3, DELTA)
    assert ("means" in found) == (trial is SOUND)


def test_accuracy_is_that_of_what_is_released(tmp_path: Path) -> None:
    noisy = replace(CLAIMED, plan=replace(CLAIMED.plan, noise_multiplier=300.0))
    found = noisy.run(store=TrialStore(tmp_path))
    folder = _folder(tmp_path)
    model = NETWORKS["LN-LeNet-5"].module(64)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    dataset = private_trials.loaded("mnist")
    test = private_trials.examples_of(NETWORKS["LN-LeNet-5"].features, dataset.test, 200)
    assert found["accuracy"] == accuracy(model, *test)
    assert not list((folder / "private").glob("*means*"))


def test_the_means_are_measured_without_their_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    still = replace(CLAIMED, plan=replace(CLAIMED.plan, noise_multiplier=1e-6)).run(store=TrialStore(tmp_path))
    assert still["means"] == still["accuracy"] > 0.2
    measured: list[torch.Tensor] = []

    def noting(model: torch.nn.Module, *test: Any) -> float:
        measured.append(torch.cat([value.detach().flatten().clone() for value in model.parameters()]))
        return accuracy(model, *test)

    monkeypatch.setattr(private_trials, "accuracy", noting)
    CLAIMED.run(store=TrialStore(tmp_path))
    means, released = measured
    plan = CLAIMED.plan
    deviation = plan.rates[-1] * plan.l2_clip * plan.noise_multiplier / plan.sampler.expected_batch_size
    assert float((released - means).std()) == pytest.approx(deviation, rel=0.05)


def test_a_trial_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = SOUND.run(store=TrialStore(tmp_path))
    monkeypatch.setattr(PrivateTrial, "_fit", None)
    assert SOUND.run(store=TrialStore(tmp_path)) == first
    others = (replace(SOUND, seed=1), replace(SOUND, plan=sound_plan(64, 2, _ONCE)), replace(SOUND, test=40))
    for other in others:
        with pytest.raises(TypeError):
            other.run(store=TrialStore(tmp_path))


def test_a_stopped_training_goes_on(tmp_path: Path) -> None:
    def stop(line: str) -> None:
        if "step 12 " in line:
            raise KeyboardInterrupt

    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        CLAIMED.run(stop, TrialStore(tmp_path))
    CLAIMED.run(said.append, TrialStore(tmp_path))
    assert said[1].endswith("step 12 of 24")


def test_the_means_measurement_outlives_the_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(trials, "write_durably", stop)  # after the end of the run, before its result is kept
        with pytest.raises(KeyboardInterrupt):
            SOUND.run(store=TrialStore(tmp_path))
    kept = json.loads((_folder(tmp_path) / "means.json").read_text())
    assert SOUND.run(store=TrialStore(tmp_path))["means"] == kept["means"]


@pytest.mark.parametrize("name", ["BN-LeNet-5", "Fast-CIFAR-ResNet", "ResNet-18", "VGG-16"])
def test_only_algorithm_2_mixes(name: str) -> None:
    rows: Any = torch.zeros(2, 1, 28, 28) if name == "BN-LeNet-5" else torch.zeros(2, 3, 32, 32)
    for way in (AS_WRITTEN, APART):
        network = NETWORKS[f"{name}{way}"]
        model = network.trainable(2)
        assert network.mixes == isinstance(model, MixingModule) == (way == AS_WRITTEN)
        model.model.train()
        assert model.model(rows + torch.rand(2, 1, 1, 1)).shape == (2, 10)


def test_mixing_is_charged_as_no_privacy(tmp_path: Path) -> None:
    plan = replace(METHOD, n=16, batch=4, epochs=0.5).plan(3, mixing=True)
    trial = PrivateTrial(network=f"BN-LeNet-5{AS_WRITTEN}", test=4, plan=plan)
    assert trial.run(store=TrialStore(tmp_path))["charged"] is None


@pytest.mark.parametrize(("dataset", "shape"), [("mnist", (30, 1, 28, 28)), ("cifar-10", (30, 3, 32, 32))])
def test_thirty_images_of_the_same_shape(dataset: str, shape: tuple[int, ...]) -> None:
    found = public_images(dataset, Pixels())
    assert found.shape == shape
    assert 0.05 < float(found.std()) < 1
    assert len(found.flatten(1).unique(dim=0)) == 30


def test_they_serve_a_network() -> None:
    torch.manual_seed(0)
    model = models.AmongPublic(lambda norm: models.lenet5(norm=norm), public_images("mnist", Pixels(), 3))
    with torch.no_grad():
        assert model(Pixels()(load("mnist").test.x[:5])).shape == (5, 10)


def test_public_images_that_there_are_not_are_refused() -> None:
    with pytest.raises(ValueError, match="no public images beside adult"):
        public_images("adult", Pixels())
    with pytest.raises(ValueError, match=r"public images can be taken, not 0"):
        public_images("mnist", Pixels(), 0)


def test_held_out_records_are_those_after_the_plans() -> None:
    dataset = load("mnist")
    part, count = replace(SOUND, validation=30)._examined(dataset)
    assert (count, len(part)) == (30, len(dataset.train) - 64)
    assert (part.y[:30] == dataset.train.y[64:94]).all()
    assert SOUND._examined(dataset) == (dataset.test, 50)
    assert replace(SOUND, validation=30).key != SOUND.key
