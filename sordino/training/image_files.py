"""`sordino train` on images in files: what is taken as public, and the noisy score of those that are held out."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.budget import Gaussian, Ledger, Planned, calibration
from sordino.data import DataError, Dataset, Facts, FirstImage, ImageFiles, Split, first_image, read_index
from sordino.features import StoredImages
from sordino.mechanisms import data_tag, noisy_accuracy
from sordino.runs import Binding, Key, Purpose, Run, RunError, charged_key, digest
from sordino.training.description import Request
from sordino.training.recipes import BEST, RECIPES, strongest_for_files

SCORE, HELD_OUT = "score", "validation"
_KEPT = "score.json"
NOTES = (
    "the number of images, the names of the classes and the size and kind of the first image are taken as public",
    "images that cannot be decoded count as empty records; how many there are stays in the private part of the run",
    "the test accuracy has noise, and is charged to the images that are held out for it; no other number reads them",
)


def image_dataset(request: Request) -> tuple[str, Dataset]:
    """The recipe's name, and the images as it takes them, decoded as they are asked for.

    The strongest recipe follows from the size and kind of the first image, the number of images and ε.
    """
    if not Path(request.dataset).exists():
        raise DataError(
            f"there is no dataset and no folder {request.dataset!r}: `sordino data list` names the datasets; a folder "
            "of images has a folder for each class"
        )
    train, held_out = read_index(request.dataset, request.classes)
    known = request.side is not None and request.channels is not None
    first = FirstImage(request.side or 0, request.channels or 0) if known else first_image(train)
    if request.channels is not None:
        first = first._replace(channels=request.channels)
    name = request.recipe
    if name == BEST:
        name = strongest_for_files(first.side, first.channels, len(train), request.epsilon)
    side = RECIPES[name].side(request.side, first.side, first.channels)
    parts = [
        Split(ImageFiles(index, side, first.channels, request.channels is not None), index.labels)
        for index in (train, held_out)
    ]
    facts = Facts(
        task="classification",
        kind="image",
        classes=train.classes,
        shape=parts[0].x.shape[1:],
        value_range=(0.0, 255.0),
        n_train=len(train),
        n_test=len(held_out),
        source="images in files",
        licence="",
        complete=True,
        note="",
        protected="one image",
    )
    return name, Dataset(request.dataset, facts, parts[0], parts[1])


def score_charge(epsilon: float, delta: float) -> Planned:
    """The noise of the score: as the training, it may cost all of ε, since they read different images.

    Guarantee: no image is in both parts (`read_index`), so a record pays for one of the two, and the ledger's ε is the
    larger.
    """
    return Planned(Gaussian(calibration.noise_multiplier(Gaussian, epsilon, delta)), SCORE, HELD_OUT)


def deviation_of(charge: Planned) -> float:
    """Of the noise on the number of correct predictions."""
    noise: float = getattr(charge.event, "noise_multiplier")  # noqa: B009
    return noise


def noisy_score(run: Run, correct: NDArray[np.bool_], charge: Planned, ledger: Ledger, seed: int | None) -> float:
    """The accuracy on images that are held out, released once for a run.

    Guarantee: `noisy_accuracy`'s, charged under the name of this run before anything is counted. After a kill it is
    repeated with the same noise on the same predictions, or refused.
    """
    path = run.folder / _KEPT
    noise = deviation_of(charge)
    with run.alone():
        ledger.reload()
        if not path.exists():
            # What a score is computed from is bound to its noise: other predictions never meet the same.
            binding = Binding(
                digest([SCORE, noise]),
                lambda secret: data_tag(secret, correct),
                seed,
                purpose=Purpose.SCORE,
                anywhere=True,
            )
            with charged_key(run, ledger, binding) as key:
                paid = ledger.number_of(key.name) is not None
                streams = key.streams_for({"for": SCORE, "plan": key.plan, "data": key.data})
                value = noisy_accuracy(correct, noise, ledger, SCORE, HELD_OUT, streams, key.name, paid)
                run.write_sealed(_KEPT, {"run": key.name, "accuracy": value})
        Key.end(run, purpose=Purpose.SCORE)
        kept = run.read_sealed(_KEPT)
        paid_for = [(entry.event, entry.what) for entry in ledger.entries if entry.run == kept.get("run")]
        if paid_for != [(charge.event, SCORE)]:
            raise RunError(f"{path} was made under another plan or ledger: what it cost is not in this one")
        return float(kept["accuracy"])


def note_unreadable(run: Run, **parts: Any) -> None:
    """Which images do not decode, for the owner's eyes alone."""
    found = {name: images.unreadable() for name, images in parts.items() if isinstance(images, StoredImages)}
    if found:
        counts = {name: len(lost) for name, lost in found.items()}
        run.write_private("unreadable.json", {"count": counts, "files": found})
