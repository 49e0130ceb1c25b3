"""The public images that keep private ones company in batch norm: SI's thirty of KMNIST and of CIFAR-100."""

import torch
from torch import Tensor

from sordino.data import load
from sordino.features import Feature

_PUBLIC = {"mnist": "kmnist", "cifar-10": "cifar-100"}


def company(dataset: str, features: Feature, count: int = 30) -> Tensor:
    """The first images of the public dataset that SI has beside this one, described as the private ones are.

    SI takes KMNIST's training images; where only its test images are at hand, those.
    """
    if dataset not in _PUBLIC:
        raise ValueError(f"SI has no public images beside {dataset}; it has them beside {' and '.join(_PUBLIC)}")
    public = load(_PUBLIC[dataset])
    images = (public.train if len(public.train) else public.test).x
    if not 1 <= count <= len(images):
        raise ValueError(f"from 1 to {len(images)} public images can be taken, not {count}")
    return torch.as_tensor(features(images[:count]))
