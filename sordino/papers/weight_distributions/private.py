"""Tables 4 to 6 of SI: trainings that the paper calls private, beside what they cost and what a sound ε gives."""

from dataclasses import replace

from sordino.data import load
from sordino.papers.records import Record
from sordino.papers.trials import Experiment
from sordino.papers.weight_distributions.networks import APART, AS_WRITTEN
from sordino.papers.weight_distributions.noise import PAPER
from sordino.papers.weight_distributions.plan_figures import Descent, Method
from sordino.papers.weight_distributions.private_rows import BATCH_NORM, COLUMNS, NOTES, Form, Published, Rows
from sordino.training import OneCycle, Schedule, Staircase


def _by_tenths(epoch: int, steps: int) -> Schedule:
    return Staircase(0.1, 0.9, epoch)


def _cycle(epoch: int, steps: int) -> Schedule:
    return OneCycle(0.12, steps)


def _halved(epoch: int, steps: int) -> Schedule:
    return Staircase(0.1, 0.5, 4 * epoch)


_MNIST = Published(
    Method(60_000, 32, 10, 3.1, _by_tenths, 0.9),
    (7, 3, 1, 0.5, 0.1, 0.05, 0.025),
    {
        "DPSGD (LeNet-5)": ("97.01", "96.34", "94.11", "91.10", "83.00", "78.96", "31.56"),
        "DPSGD (LN-LeNet-5)": ("97.35", "97.05", "96.68", "94.81", "87.45", "75.76", "49.53"),
        "SI-DPSGD (LeNet-5)": ("98.90", "98.90", "98.72", "99.10", "99.00", "98.84", "90.82"),
        "SI-DPSGD (LN-LeNet-5)": ("98.85", "98.30", "98.41", "98.56", "97.92", "97.54", "98.36"),
        "SI-DPSGD (BN-LeNet-5)": ("99.17", "99.17", "99.15", "99.18", "99.14", "99.12", "98.58"),
    },
)
_CIFAR = Published(
    Method(50_000, 16, 40, 2.5, _cycle),
    (8, 4, 2, 1, 0.5, 0.1, 0.05),
    {
        "DPSGD (TF-tutorial)": ("73.0", "70.0", "67.0", "NA", "NA", "NA", "NA"),
        "SI-DPSGD (TF-tutorial)": ("78.10", "77.70", "76.00", "76.05", "74.20", "73.80", "74.05"),
        "SI-DPSGD (ResNet-18)": ("90.20", "90.16", "90.26", "90.09", "89.67", "84.88", "84.47"),
        "SI-DPSGD (VGG-16)": ("91.48", "90.96", "89.53", "90.01", "88.87", "85.90", "84.98"),
        "SI-DPSGD (Fast-CIFAR-ResNet)": ("93.85", "93.44", "93.38", "92.70", "92.08", "89.11", "87.41"),
    },
)
_NEWS_ROWS = 37_453
_NEWS = Published(
    Method(_NEWS_ROWS, 300, 12, 1.0, _halved),
    (7, 3, 1, 0.5, 0.1, 0.05),
    {
        "DPSGD (BiLSTM-DL)": ("83.86", "80.00", "81.14", "77.88", "37.49", "31.78"),
        "SI-DPSGD (BiLSTM-DL)": ("85.93", "85.70", "83.29", "81.17", "77.88", "56.72"),
        "DPSGD (LN-BiLSTM-DL)": ("83.54", "82.43", "82.03", "78.87", "50.09", "31.59"),
        "SI-DPSGD (LN-BiLSTM-DL)": ("87.80", "87.58", "85.74", "85.36", "84.32", "80.10"),
    },
)
_BN_LENETS = (f"BN-LeNet-5{AS_WRITTEN}", f"BN-LeNet-5{APART}")
_RESNETS = tuple(f"{name}{way}" for name in ("ResNet-18", "VGG-16", "Fast-CIFAR-ResNet") for way in (AS_WRITTEN, APART))
_TUNING = (
    "SI-DPSGD's settings are the paper's and its code's, z computed for the claimed ε and the plan of the row (in full "
    "it comes out as in the authors' code where that has it); sound weight distributions have those of the recipe "
    "of that name, chosen on MNIST images, and their learning rate shrinks with n and ε. "
)


def table_4(experiment: Experiment) -> Record:
    """LeNets on MNIST."""
    lenets = ("LeNet-5", "LN-LeNet-5")
    full = Form(
        *(_MNIST.method, _MNIST.epsilons, (*lenets, *_BN_LENETS), lenets, Descent(30, 40, 4.0)),
        *(_MNIST.method, _MNIST.epsilons),
    )
    reduced = replace(
        full,
        method=replace(_MNIST.method, epochs=3),
        epsilons=(3, 0.5, 0.05),
        descent=replace(full.descent, epochs=8),
        slow=replace(_MNIST.method, epochs=0.32),
        slow_epsilons=(3, 0.05),
    )
    made = Rows.of(experiment, _MNIST, experiment.pick(reduced, full))
    return Record(
        PAPER,
        "table-4",
        "MNIST under a claimed and under a sound ε",
        COLUMNS,
        made.rows,
        [*made.what_follows(), *NOTES, BATCH_NORM],
        experiment.shortfall(
            "trained at ε of 3, 0.5 and 0.05 alone, SI-DPSGD for 3 epochs of the paper's 10, with batch norm for 600 "
            "steps of 18,750 at ε of 3 and 0.05, DP-SGD for 8 epochs of 40; the paper's own plans stand first, priced "
            "and audited but not trained",
            "" if len(load("kmnist").train) else "public images are of KMNIST's test part, all that is at hand",
            every_row=1,
        ),
        _TUNING
        + "DP-SGD's clip and, but for rounding, batch are T&B's for a CNN on Fashion-MNIST; its learning rate of 4 "
        "was chosen, uncounted, from 1 and 4 on 5,000 held-out training images (LeNet-5 at ε=3, one seed, 4 epochs: "
        "90.4 to 83.8 %)",
    )


def table_5(experiment: Experiment) -> Record:
    """Convolutional networks on CIFAR-10."""
    full = Form(
        *(_CIFAR.method, _CIFAR.epsilons, ("TF-tutorial", *_RESNETS), ("TF-tutorial",), Descent(50, 40, 1.0)),
        *(_CIFAR.method, _CIFAR.epsilons),
    )
    reduced = replace(
        full,
        method=replace(_CIFAR.method, n=5000, epochs=6),
        epsilons=(2, 0.1),
        networks=("TF-tutorial", *_RESNETS[-2:]),
        descent=Descent(10, 10, 1.0),
        slow=replace(_CIFAR.method, n=5000, epochs=0.8),
        slow_epsilons=(2,),
        test=2000,
        slow_test=500,
        width=8,
    )
    made = Rows.of(experiment, _CIFAR, experiment.pick(reduced, full))
    return Record(
        PAPER,
        "table-5",
        "CIFAR-10 under a claimed and under a sound ε",
        COLUMNS,
        made.rows,
        [
            *made.what_follows(),
            *NOTES,
            BATCH_NORM,
            "One cycle ends with next to no learning rate, and so next to no noise",
        ],
        experiment.shortfall(
            "the first 5,000 of the 50,000 training images; at ε of 2 and 0.1 the TF-tutorial network for 6 epochs of "
            "40, at ε of 2 Fast-CIFAR-ResNet of an eighth of the width for 250 steps of 125,000, which teaches it "
            "little; no ResNet-18, no VGG-16; 2,000 test images, 500 for batch norm: accuracies are not to be compared "
            "with the paper's, whose own plans stand first, priced and audited but not trained",
            "no augmentation",
            every_row=1,
        ),
        _TUNING + "DP-SGD's clip, learning rate and, in full, batch are T&B's for a CNN on CIFAR-10",
    )


def table_6(experiment: Experiment) -> Record:
    """BiLSTMs on AG News."""
    networks = ("BiLSTM-DL", "LN-BiLSTM-DL")
    full = Form(
        *(_NEWS.method, _NEWS.epsilons, networks, networks, Descent(20, 40, 4.0)),
        *(_NEWS.method, _NEWS.epsilons),
    )
    reduced = replace(full, epsilons=(3, 0.5, 0.05), descent=replace(full.descent, epochs=10))
    made = Rows.of(experiment, _NEWS, experiment.pick(reduced, full))
    return Record(
        PAPER,
        "table-6",
        "AG News under a claimed and under a sound ε",
        COLUMNS,
        made.rows,
        [
            *made.what_follows(),
            *NOTES,
            "The layer norm stands after the dense layer, as in the authors' code; 20 words",
        ],
        experiment.shortfall(
            "trained at ε of 3, 0.5 and 0.05 alone, DP-SGD for 10 epochs of 40",
            f"{_NEWS_ROWS:,} of the 120,000 training rows, all that is at hand; GloVe in 50 dimensions, not 100",
            every_row=1,
        ),
        _TUNING + "the clip of 1, which the paper does not tell, and DP-SGD's settings are guesses",
    )
