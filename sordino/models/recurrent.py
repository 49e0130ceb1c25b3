"""The recurrent text classifier of SI."""

import torch
from torch import Tensor, nn

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
