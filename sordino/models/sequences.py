"""Networks for sequences: SI's BiLSTM, PAW's LSTM and a small transformer."""

from typing import Any

import torch
from torch import Tensor, nn

from sordino.models.fully_connected import dense
from sordino.models.normalisation import Norm, no_norm


class BiLSTMClassifier(nn.Module):
    """SI's BiLSTM for AG News: both directions' last states and one dense layer, on word vectors (B, length, width).

    With a vocabulary it takes token ids (B, length) instead and learns their vectors. SI's LN-BiLSTM has a layer norm
    as `score_norm`, after the dense layer alone: there its code has it, and an LSTM's states are bounded anyway.
    """

    def __init__(
        self,
        width: int = 100,
        hidden: int = 32,
        classes: int = 4,
        vocabulary: int | None = None,
        score_norm: Norm = no_norm,
    ) -> None:
        super().__init__()
        self.embedding = nn.Identity() if vocabulary is None else nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, classes)
        self.score_norm = score_norm(classes)

    def forward(self, x: Tensor) -> Tensor:
        _, (last, _) = self.lstm(self.embedding(x))
        scores: Tensor = self.score_norm(self.head(torch.cat((last[0], last[1]), dim=1)))
        return scores


def paw_rnn(hidden: int, units: int, classes: int = 2, vocabulary: int = 1000, width: int = 50) -> nn.Sequential:
    """PAW's LSTM on token ids (B, length): (256, 512) has 496,978 trained parameters, (4, 16) 50,994."""
    return nn.Sequential(nn.Embedding(vocabulary, width), LastState(width, hidden), *dense(hidden, units, classes))


class LastState(nn.Module):
    """The last hidden state of an LSTM with one bias, as Keras has it.

    PyTorch adds two biases: the second would take as much noise and bring nothing, so it stays at zero.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        second: Any = self.lstm.bias_hh_l0
        nn.init.zeros_(second).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        _, (last, _) = self.lstm(x)
        hidden: Tensor = last[0]
        return hidden


class TransformerClassifier(nn.Module):
    """Embedded tokens with learned positions, encoder layers, the mean over positions, a dense layer."""

    def __init__(
        self,
        vocabulary: int,
        length: int,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        classes: int = 4,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, batch_first=True) for _ in range(layers))
        )
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.layers(self.embedding(tokens) + self.positions[: tokens.shape[1]])
        scores: Tensor = self.head(hidden.mean(dim=1))
        return scores
