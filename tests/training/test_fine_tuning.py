"""Adapters and biases of Hugging Face's models learn by `make_private` and by `fit`; nothing else moves."""

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import sordino
from sordino.data import PoissonSampler, dataset_records

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

# peft asks transformers for something by its old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

_TEXTS, _WORDS = 40, 12


def loss(output: Any, labels: Tensor) -> Tensor:
    return cross_entropy(output.logits, labels, reduction="none")


class Texts(Dataset[dict[str, Tensor]]):
    """Texts as transformers has them, padded; the label is whether the first word is one of the first half."""

    def __init__(self) -> None:
        self.tokens = torch.randint(1, _WORDS, (_TEXTS, 4), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return _TEXTS

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        tokens = self.tokens[place]
        mask = (torch.arange(4) < 3 + place % 2).long()
        return {"input_ids": tokens, "attention_mask": mask, "labels": (tokens[0] < _WORDS // 2).long()}


def bert() -> nn.Module:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    sizes |= {"vocab_size": _WORDS, "max_position_embeddings": 8}
    config = transformers.BertConfig(**sizes, pad_token_id=0, initializer_range=0.5)
    model: nn.Module = transformers.BertForSequenceClassification(config)
    return model


def with_lora() -> nn.Module:
    options = {"task_type": "SEQ_CLS", "r": 2, "target_modules": ["query", "value"]}
    model: nn.Module = peft.get_peft_model(bert(), peft.LoraConfig(**options))
    return model


def biases_alone() -> nn.Module:
    model = bert()
    for name, value in model.named_parameters():
        value.requires_grad_(name.endswith("bias") or name.startswith("classifier"))
    return model


def by_loop(model: nn.Module) -> None:
    private = sordino.make_private(
        model,
        torch.optim.SGD(model.parameters(), 0.5),
        loss,
        Texts(),
        expected_batch_size=20,
        epochs=2,
        l2_clip=1.0,
        target_epsilon=8,
        target_delta=1e-3,
    )
    for x, y in private.batches():
        private.step(x, y)
    assert private.drawn == 4
    assert private.epsilon() <= 8


def by_fit(model: nn.Module) -> None:
    ledger = sordino.Ledger(target_epsilon=8, target_delta=1e-3)
    plan = sordino.Plan.calibrated(n=_TEXTS, expected_batch_size=20, epochs=2, l2_clip=1, ledger=ledger)
    fitted = sordino.fit(plan, model, Texts(), loss=loss, optimiser=sordino.Adam(0.05), ledger=ledger)
    assert fitted.model is model
    assert fitted.steps == 4


@pytest.mark.parametrize("train", [by_loop, by_fit])
@pytest.mark.parametrize("build", [with_lora, biases_alone])
def test_what_is_trained_moves_and_nothing_else(build: Any, train: Any) -> None:
    model = build()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    train(model)
    moved = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    assert moved == {name for name, value in model.named_parameters() if value.requires_grad}
    assert any("lora_A" in name or "query.bias" in name for name in moved)


def test_adapters_alone_learn() -> None:
    """With next to no noise the loss of always the same class falls, though the head is frozen too."""
    model: Any = with_lora()
    for name, value in model.named_parameters():
        value.requires_grad_("lora" in name)
    x, _ = dataset_records(Texts()).batch(torch.arange(_TEXTS).numpy())

    def first(output: Any, labels: Tensor) -> Tensor:
        return loss(output, torch.zeros_like(labels))

    def total() -> float:
        with torch.no_grad():
            return float(first(model.eval()(**x), torch.ones(_TEXTS).long()).mean())

    before = total()
    plan = sordino.Plan(PoissonSampler(_TEXTS, _TEXTS), l2_clip=1.0, noise_multiplier=0.01, steps=20)
    ledger = sordino.Ledger(target_epsilon=1e9, target_delta=1e-3)
    sordino.fit(plan, model.train(), Texts(), loss=first, optimiser=sordino.Adam(0.1), ledger=ledger)
    assert total() < 0.9 * before


@pytest.mark.parametrize("train", [by_loop, by_fit])
def test_adapters_that_take_no_part_are_told_of_before_anything_is_charged(train: Any) -> None:
    model: Any = with_lora()
    model.merge_adapter()
    with pytest.warns(UserWarning, match=r"4 of the model's trainable parameters \(.*lora_A.*\): noise alone"):
        train(model)
    for name, value in model.named_parameters():
        value.requires_grad_("lora" in name)
    with pytest.raises(ValueError, match="depends on none of the model's trainable parameters"):
        train(model)


def test_an_optimizer_made_before_the_adapters_is_refused() -> None:
    model = bert()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    options = {"task_type": "SEQ_CLS", "r": 2, "target_modules": ["query"]}
    adapted = peft.get_peft_model(model, peft.LoraConfig(**options))
    with pytest.raises(ValueError, match=r"it lacks \d+ and holds 0 of others\): make it from model.parameters"):
        sordino.make_private(adapted, optimizer, loss, Texts(), expected_batch_size=20, epochs=1, l2_clip=1.0)
