"""PAW's networks by name: the dataset and the inputs that each sees, how it is built and how it is scored."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from sordino import models
from sordino.data import Dataset, Split, load, shuffled
from sordino.features import Pixels
from sordino.training import DenseNetwork, Trainable, TrainableModule, cross_entropy, softmax_slope, squared_slope

COMPONENTS = 300
VOCABULARY, LENGTH = 1000, 40
"""PAW's vocabulary, and the words of a message that are read: 40 of its 150, which few messages have."""
CHARGES = 62_649.0
"""The range of the charges in the published table (1,122 to 63,770), by which PAW seems to scale its errors."""
_WORST_CHARGE = 1e5
_WORD = re.compile(r"\w+|[^\w\s]")
_BLOCK = 1000

Rows = NDArray[Any]
Inputs = Callable[[Any, Any], tuple[Rows, Rows]]
"""From the records of the training part and of the examined part to what the network sees of them."""
loaded = lru_cache(maxsize=2)(load)


def _each(seen: Callable[[Any], Rows]) -> Inputs:
    """A function of one record alone, and so free."""
    return lambda train, examined: (seen(train), seen(examined))


def _planes(images: Any) -> Rows:
    return Pixels()(images).numpy()


def _flat(images: Any) -> Rows:
    return _planes(images).reshape(len(images), -1)


def _pooled(images: Any) -> Rows:
    """28×28 pixels → the means of an 8×8 grid: PAW's 64 numbers, which it does not describe."""
    return functional.adaptive_avg_pool2d(Pixels()(images), 8).flatten(1).numpy()


def _bits(vectors: Any) -> Rows:
    return np.asarray(vectors, np.float32)


def _tokens(texts: Any) -> Rows:
    """The first words by a public hash, zeros before them; a vocabulary of frequent words would read the messages."""
    rows = np.zeros((len(texts), LENGTH), np.int64)
    for row, text in zip(rows, texts, strict=True):
        found = [1 + _hash(word) % (VOCABULARY - 1) for word in _WORD.findall(text.lower())[:LENGTH]]
        if found:
            row[-len(found) :] = found
    return rows


@lru_cache(maxsize=2**16)
def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def _attributes(table: Any) -> Rows:
    """Six numbers in [0, 1], as PAW's counts say: categories by their place in the documented order."""
    numbers = []
    for column in load("medical-cost").facts.columns or ():
        low, high = column.bounds or (0, len(column.categories or ()) - 1)
        raw = table[column.name]
        if not column.bounds:
            raw = raw.astype(str).map({name: place for place, name in enumerate(column.categories or ())})
        numbers.append(np.clip((raw.to_numpy(np.float64) - low) / (high - low), 0, 1))
    return np.stack(numbers, axis=1).astype(np.float32)


def _components(train: Any, examined: Any) -> tuple[Rows, Rows]:
    return principal_components(_flat(train), _flat(examined), COMPONENTS)


def principal_components(train: Rows, examined: Rows, count: int) -> tuple[Rows, Rows]:
    """Both in the leading directions of the training records.

    Guarantee: none. The directions are computed from the training records without noise, as in PAW; records say so.
    """
    from sklearn.decomposition import PCA

    fitted = PCA(min(count, *train.shape), svd_solver="auto", random_state=0).fit(train)
    missing = count - fitted.n_components_  # with fewer records than components, in the quick form
    both = [np.pad(fitted.transform(rows), ((0, 0), (0, missing))).astype(np.float32) for rows in (train, examined)]
    return both[0], both[1]


PLANES, FLAT, POOLED, BITS, TOKENS, ATTRIBUTES = map(_each, (_planes, _flat, _pooled, _bits, _tokens, _attributes))
PRINCIPAL: Inputs = _components


@dataclass(frozen=True, eq=False)
class Parts:
    """Inputs and targets to train on, and those to examine."""

    x: Rows
    y: Rows
    examined_x: Rows
    examined_y: Rows


@lru_cache(maxsize=2)
def parts_of(dataset: str, inputs: Inputs, validation: int, records: int | None, examined: int | None) -> Parts:
    """The paper's parts of a dataset, its test rows examined; or some training rows held out, to choose by.

    More records than there are means drawn with replacement, as in PAW's Figure 6: then they are copies.
    """
    data = loaded(dataset)
    parts = data.workflow_split()
    train, other = parts.train, parts.test
    if validation:
        order = shuffled(len(train), seed=1)
        train, other = train.take(np.sort(order[validation:])), train.take(np.sort(order[:validation]))
    if records is not None:
        rows = np.random.default_rng(0).choice(len(train), records, replace=records > len(train))
        train = train.take(np.sort(rows))
    if examined is not None:
        other = other.take(np.arange(min(examined, len(other))))
    x, examined_x = inputs(train.x, other.x)
    return Parts(x, _targets(train, data), examined_x, _targets(other, data))


def _targets(split: Split, data: Dataset) -> Rows:
    if data.facts.task != "regression":
        return split.y
    return np.asarray(np.clip(split.y, 0, _WORST_CHARGE) / CHARGES, dtype=np.float32)


@dataclass(frozen=True)
class Network:
    """A network with its dataset; one that ends in dense layers, all else fixed, has gradients in closed form."""

    dataset: str
    inputs: Inputs
    build: Callable[[], nn.Sequential]
    closed_form: bool = True
    regression: bool = False

    def trainable(self, place: tuple[int, int] = (0, 1)) -> Trainable:
        """With a closed form, in its place among trainings side by side."""
        if not self.closed_form:
            return TrainableModule(self.build, cross_entropy)
        return DenseNetwork(self.build, squared_slope if self.regression else softmax_slope, place=place)

    @torch.no_grad()
    def score(self, model: nn.Module, x: Rows, y: Rows) -> float:
        """The share of right answers; of a regression the mean absolute error."""
        blocks = [model(torch.from_numpy(x[start : start + _BLOCK])) for start in range(0, len(x), _BLOCK)]
        answers: Any = torch.cat(blocks)
        if self.regression:
            return float((answers[:, 0] - torch.from_numpy(y)).abs().mean())
        return float((answers.argmax(dim=1) == torch.from_numpy(y)).float().mean())

    @property
    def counts(self) -> tuple[int, int]:
        """All its parameters, as the paper counts them (an LSTM's second bias is PyTorch's own), and the trained."""
        weights = [w for name, w in self.build().named_parameters() if not name.endswith("bias_hh_l0")]
        return sum(w.numel() for w in weights), sum(w.numel() for w in weights if w.requires_grad)

    def constant(self) -> float:
        """The score of the best constant answer on the test records."""
        y = parts_of(self.dataset, self.inputs, 0, None, None).examined_y
        return float(abs(y - np.median(y)).mean()) if self.regression else float(np.bincount(y).max() / len(y))


RWT = " RWT"
"""Ends the name of a network of which only the last two dense layers are trained."""


def _fcn(dataset: str, seen: Inputs, *widths: int) -> Network:
    return Network(dataset, seen, partial(models.dense, *widths))


def _cnn(dataset: str, *shape: Any) -> Network:
    return Network(dataset, PLANES, partial(models.paw_cnn, *shape), closed_form=False)


def _rnn(hidden: int, units: int) -> Network:
    build = partial(models.paw_rnn, hidden, units, vocabulary=VOCABULARY)
    return Network("sms-spam", TOKENS, build, closed_form=False)


def _both(name: str, network: Network) -> dict[str, Network]:
    """Trained in full, and with random weights but for its last two layers."""
    last = Network(network.dataset, network.inputs, lambda: models.train_last(network.build()))
    return {name: network, f"{name}{RWT}": last}


TRAINING_RECORDS = {
    "mnist": 60_000,
    "fashion-mnist": 60_000,
    "cifar-10": 50_000,
    "svhn": 42_000,
    "location-30": 4010,
    "sms-spam": 4700,
    "medical-cost": 1000,
}
"""In PAW's parts of each dataset."""
_HIDDEN = ((4,), (16,), (64,), (128,), (512,), (2048,), (2048, 256, 64))
"""Of Figure 1, which PAW does not give; the last is the complex network of its Figure 6."""
SIZES = {f"MNIST FCN {'-'.join(map(str, hidden))}": hidden for hidden in _HIDDEN}
WIDTHS = {f"SVHN FCN {width}": width for width in (4, 32, 128, 512, 2048)}
DEPTHS = {f"SVHN FCN {depth}×128": depth for depth in (1, 2, 4, 8, 12)}
REGRESSIONS = {f"medical FCN {layers}×{units}": (layers, units) for layers in (2, 6, 12) for units in (10, 30, 60, 120)}
NETWORKS: dict[str, Network] = {
    "CIFAR-10 CNN STW": _cnn("cifar-10", 3, 32, (48, 96), 512),
    "CIFAR-10 CNN PAW": _cnn("cifar-10", 3, 32, (16, 32, 48), 512),
    "MNIST CNN STW": _cnn("mnist", 1, 28, (48, 96), 64),
    "MNIST CNN PAW": _cnn("mnist", 1, 28, (16, 32), 64),
    "MNIST LeNet-5": Network("mnist", PLANES, models.average_lenet5, closed_form=False),
    "SVHN CNN STW": _cnn("svhn", 1, 32, (48, 96), 512),
    "SVHN CNN PAW": _cnn("svhn", 1, 32, (16, 32), 512),
    "CIFAR-10 FCN STW": _fcn("cifar-10", PRINCIPAL, COMPONENTS, 2048, 10),
    "CIFAR-10 FCN PAW": _fcn("cifar-10", PRINCIPAL, COMPONENTS, 64, 10),
    "MNIST FCN STW": _fcn("mnist", POOLED, 64, 512, 64, 10),
    "MNIST FCN PAW": _fcn("mnist", POOLED, 64, 128, 10),
    "SVHN FCN STW": _fcn("svhn", PRINCIPAL, COMPONENTS, 512, 128, 10),
    "SVHN FCN PAW": _fcn("svhn", PRINCIPAL, COMPONENTS, 128, 10),
    "SVHN FCN STW, no PCA": _fcn("svhn", FLAT, 32 * 32, 512, 128, 10),
    "SVHN FCN PAW, no PCA": _fcn("svhn", FLAT, 32 * 32, 128, 10),
    "Fashion-MNIST FCN STW": _fcn("fashion-mnist", POOLED, 64, 512, 10),
    "Fashion-MNIST FCN PAW": _fcn("fashion-mnist", POOLED, 64, 128, 10),
    "Location-30 FCN STW": _fcn("location-30", BITS, 446, 1024, 256, 30),
    "Location-30 FCN PAW": _fcn("location-30", BITS, 446, 128, 30),
    "MNIST logistic": _fcn("mnist", POOLED, 64, 10),
    **_both("MNIST FCN complex", _fcn("mnist", FLAT, 784, 1024, 512, 64, 10)),
    "MNIST FCN simple": _fcn("mnist", FLAT, 784, 512, 64, 10),
    **_both("MNIST CNN of RWT", Network("mnist", PLANES, models.rwt_cnn, closed_form=False)),
    **_both("SMS RNN STW", _rnn(256, 512)),
    "SMS RNN PAW": _rnn(4, 16),
    **{name: _fcn("mnist", POOLED, 64, *hidden, 10) for name, hidden in SIZES.items()},
    **{name: _fcn("svhn", PRINCIPAL, COMPONENTS, width, 10) for name, width in WIDTHS.items()},
    **{name: _fcn("svhn", PRINCIPAL, COMPONENTS, *[128] * depth, 10) for name, depth in DEPTHS.items()},
    **{
        name: Network("medical-cost", ATTRIBUTES, partial(models.dense, 6, *[units] * layers, 1), regression=True)
        for name, (layers, units) in REGRESSIONS.items()
    },
}
