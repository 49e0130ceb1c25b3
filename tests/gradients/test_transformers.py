"""Models of Hugging Face's transformers, and adapters by peft, take the layer rules and give the naive loop's sums."""

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sordino.gradients import ClippedGradients

from .reference import check, difference, length, select

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

# peft asks transformers for something by its old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

_WORDS, _EXAMPLES, _LENGTH = 19, 4, 5
_SIZES = {"vocab_size": _WORDS, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
_SIZES |= {"intermediate_size": 6, "max_position_embeddings": 12}
_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_OF_BART = {"vocab_size": _WORDS, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0, **_SPECIAL}
_OF_BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 6, "decoder_ffn_dim": 6}
_OF_DEBERTA = {**_SIZES, "type_vocab_size": 0, "relative_attention": True, "position_biased_input": False}
_OF_DEBERTA |= {"pos_att_type": ["c2p", "p2c"], "max_relative_positions": 4}
_GROUPED = {"num_key_value_heads": 1, "head_dim": 4, **_SPECIAL}

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "BERT": ("BertForSequenceClassification", "BertConfig", _SIZES),
    "ALBERT": (
        "AlbertForSequenceClassification",
        "AlbertConfig",
        {**_SIZES, "embedding_size": 4, "num_hidden_layers": 2},
    ),
    "GPT-2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": _WORDS, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 12, **_SPECIAL},
    ),
    "OPT": (
        "OPTForCausalLM",
        "OPTConfig",
        {**_SIZES, "ffn_dim": 6, "word_embed_proj_dim": 8, **_SPECIAL},
    ),
    "BART": ("BartForConditionalGeneration", "BartConfig", {**_OF_BART, "max_position_embeddings": 12}),
    "T5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": _WORDS, "d_model": 8, "d_kv": 4, "d_ff": 6, "num_layers": 1, "num_heads": 2, **_SPECIAL},
    ),
    "DeBERTa": ("DebertaForSequenceClassification", "DebertaConfig", _OF_DEBERTA),
    "DeBERTa 2": ("DebertaV2ForSequenceClassification", "DebertaV2Config", _OF_DEBERTA),
    "Mamba": ("MambaForCausalLM", "MambaConfig", {**_SIZES, "state_size": 2, "layer_norm_epsilon": 1e-3, **_SPECIAL}),
    "Llama": ("LlamaForCausalLM", "LlamaConfig", {**_SIZES, **_SPECIAL}),
    "Gemma": ("GemmaForCausalLM", "GemmaConfig", {**_SIZES, **_GROUPED}),
    "Qwen 3": ("Qwen3ForCausalLM", "Qwen3Config", {**_SIZES, **_GROUPED}),
}


def built(name: str, **changes: Any) -> nn.Module:
    """A tiny random model, moved a little from where it starts: norms start at 1, biases at 0."""
    kind, config, sizes = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**{**sizes, **changes})).eval()
    return moved(model)


def moved(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value), alpha=0.1)
    return model


def batch(name: str) -> dict[str, Tensor]:
    """Texts of different lengths, padded."""
    tokens = torch.randint(3, _WORDS, (_EXAMPLES, _LENGTH))
    lengths = torch.tensor([5, 3, 4, 5])
    x = {"input_ids": tokens, "attention_mask": (torch.arange(_LENGTH) < lengths[:, None]).long()}
    return x | ({"decoder_input_ids": tokens.roll(1, 1)} if name in ("BART", "T5") else {})


def loss(output: Any, target: Tensor) -> Tensor:
    """Of the scores in what Hugging Face's models return: of a class, or of a token at each position."""
    scores = output.logits
    each = nn.functional.cross_entropy(scores.movedim(-1, 1), target, reduction="none")
    return each if each.ndim == 1 else each.mean(1)


def takes_the_rules(model: nn.Module, x: Any, y: Tensor) -> None:
    clipped = check(model, x, y, loss=loss)
    assert clipped.choices is not None
    assert clipped.choices.strategy == "rules"


def targets(name: str, x: dict[str, Tensor]) -> Tensor:
    return torch.arange(_EXAMPLES) % 2 if "BERT" in MODELS[name][0].upper() else x["input_ids"].roll(-1, 1)


@pytest.mark.parametrize("name", MODELS)
def test_whole_models(name: str) -> None:
    model, x = built(name), batch(name)
    takes_the_rules(model, x, targets(name, x))


def lora(**options: Any) -> Any:
    return peft.LoraConfig(r=2, **options)


ADAPTERS: dict[str, tuple[str, Any]] = {
    "LoRA on BERT": ("BERT", lora(task_type="SEQ_CLS", target_modules=["query", "value"])),
    "LoRA on all of GPT-2": ("GPT-2", lora(task_type="CAUSAL_LM", target_modules="all-linear", fan_in_fan_out=True)),
    "LoRA on T5": ("T5", lora(task_type="SEQ_2_SEQ_LM", target_modules=["q", "v"])),
    "LoRA on embeddings": ("Llama", lora(task_type="CAUSAL_LM", target_modules=["embed_tokens", "q_proj"])),
    "DoRA": ("BERT", lora(task_type="SEQ_CLS", target_modules=["query"], use_dora=True)),
    "LoKr": ("BERT", peft.LoKrConfig(task_type="SEQ_CLS", r=2, target_modules=["query"])),
    "IA3": (
        "BERT",
        peft.IA3Config(
            task_type="SEQ_CLS", target_modules=["key", "output.dense"], feedforward_modules=["output.dense"]
        ),
    ),
    "prefix tuning": ("GPT-2", peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters(name: str) -> None:
    base, config = ADAPTERS[name]
    model, x = moved(peft.get_peft_model(built(base), config)).eval(), batch(base)
    takes_the_rules(model, x, targets(base, x))


def test_biases_alone() -> None:
    """BiTFiT: biases, and the new classifier."""
    model, x = built("BERT"), batch("BERT")
    for name, value in model.named_parameters():
        value.requires_grad_(name.endswith("bias") or name.startswith("classifier"))
    takes_the_rules(model, x, targets("BERT", x))
    model, x = built("GPT-2"), batch("GPT-2")
    for name, value in model.named_parameters():
        value.requires_grad_(name.endswith("bias"))
    takes_the_rules(model, x, targets("GPT-2", x))


def test_adapters_that_are_switched_off_are_not_silently_noise() -> None:
    base, config = ADAPTERS["LoRA on BERT"]
    model, x = peft.get_peft_model(built(base), config), batch(base)
    model.merge_adapter()
    with pytest.warns(UserWarning, match=r"4 of the model's trainable parameters \(.*lora_A.*\): noise alone"):
        ClippedGradients(model, loss)(x, targets(base, x))
    for name, value in model.named_parameters():
        value.requires_grad_("lora" in name)
    with pytest.raises(ValueError, match="depends on none of the model's trainable parameters"):
        ClippedGradients(model, loss)(x, targets(base, x))
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter to train"):
        ClippedGradients(model, loss)


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "T5", "Llama", "LoRA on BERT"])
@pytest.mark.parametrize("how", ["autocast", "whole model"])
def test_in_bfloat16_norms_and_sums_are_in_float32_and_the_clip_holds(name: str, how: str) -> None:
    """The passes round to 8 bits; what is clipped and summed are the same numbers, to single precision."""
    base = ADAPTERS[name][0] if name in ADAPTERS else name
    model = built(base)
    model = moved(peft.get_peft_model(model, ADAPTERS[name][1])).eval() if name in ADAPTERS else model
    x = batch(base)
    y, l2_clip, rounding = targets(base, x), 0.05, 1e-5

    def widened(output: Any, target: Tensor) -> Tensor:
        output.logits = output.logits.float()
        return loss(output, target)

    exact = ClippedGradients(model, widened, l2_clip)(x, y)
    if how == "whole model":
        model = model.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        clipped = ClippedGradients(model, widened, l2_clip)
        found, fewer = clipped(x, y), clipped(select(x, slice(1, None)), y[1:])
        alone = [clipped(select(x, slice(place, place + 1)), y[place : place + 1]) for place in range(_EXAMPLES)]
        free = clipped(select(x, slice(1)), y[:1], l2_clip=1e9)
    assert clipped.choices is not None
    assert clipped.choices.strategy == "rules"
    assert found.norms.dtype == torch.float32
    assert {value.dtype for value in found.sums.values()} == {torch.float32}
    assert bool((found.norms > l2_clip).all())  # so that the clip is reached
    assert all(length(one.sums) <= l2_clip * (1 + rounding) for one in alone)
    assert difference(found.sums, fewer.sums) <= l2_clip * (1 + rounding)
    assert length(free.sums) == pytest.approx(float(free.norms[0]), rel=rounding)
    assert difference(found.sums, exact.sums) <= 0.1 * length(exact.sums)
