"""A small transformer for classifying token sequences."""

import torch
from torch import Tensor, nn


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
