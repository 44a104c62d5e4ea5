"""Language models of transformers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from tests.real_models.model import Batch, RealModel, called_with_batch, padding, tokens

#: Size that decoders share; the rest of each configuration is the library's default.
DECODER = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENCODER = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


def _transformers(config: str, model: str, **sizes: Any) -> Callable[[], nn.Module]:
    """Return a function that creates a model of transformers from its configuration."""

    def build() -> nn.Module:
        import transformers

        built: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**sizes))
        return built.train()

    return build


def _next_tokens() -> Batch:
    ids = tokens(3, 12)
    return {"input_ids": ids, "labels": ids.clone()}


def _padded_tokens() -> Batch:
    ids, mask = tokens(3, 12), padding(3, 12)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def _tagged_tokens() -> Batch:
    mask = padding(3, 12)
    labels = tokens(3, 12, vocabulary=5, first=0).masked_fill(mask == 0, -100)
    return {"input_ids": tokens(3, 12), "attention_mask": mask, "labels": labels}


def _classified_sentences() -> Batch:
    labels = tokens(4, 1, vocabulary=3, first=0)[:, 0]
    return {"input_ids": tokens(4, 10), "attention_mask": padding(4, 10), "labels": labels}


def _replaced_tokens() -> Batch:
    labels = tokens(3, 12, vocabulary=2, first=0)
    return {"input_ids": tokens(3, 12), "attention_mask": padding(3, 12), "labels": labels}


def _source_and_target() -> Batch:
    return {"input_ids": tokens(3, 10), "attention_mask": padding(3, 10), "labels": tokens(3, 7)}


_row = partial(RealModel, library="transformers", loss=called_with_batch)

MODELS = (
    _row(
        name="qwen3",
        shows="grouped-query attention, normed queries and keys, rotary positions",
        build=_transformers("Qwen3Config", "Qwen3ForCausalLM", **DECODER, num_key_value_heads=2, head_dim=8),
        batch=_next_tokens,
        dtypes={"model.layers.*.self_attn.o_proj": "low", "model.norm": "float32", "lm_head": "low"},
        selected=True,
    ),
    _row(
        name="mistral",
        shows="grouped-query attention in a sliding window, with padding",
        build=_transformers("MistralConfig", "MistralForCausalLM", **DECODER, num_key_value_heads=1, sliding_window=5),
        batch=_padded_tokens,
    ),
    _row(
        name="gemma2",
        shows="scores and logits through tanh, norms before and after each block",
        build=_transformers(
            "Gemma2Config", "Gemma2ForCausalLM", **DECODER, num_key_value_heads=2, head_dim=8, sliding_window=6
        ),
        batch=_next_tokens,
    ),
    _row(
        name="opt",
        shows="dropout 0.1, learned positions, ReLU",
        build=_transformers(
            "OPTConfig",
            "OPTForCausalLM",
            **{key: value for key, value in DECODER.items() if key != "intermediate_size"},
            ffn_dim=64,
            word_embed_proj_dim=32,
        ),
        batch=_padded_tokens,
        dtypes={"model.decoder.layers.*.fc?": "low", "model.decoder.layers.*.final_layer_norm": "float32"},
        selected=True,
    ),
    _row(
        name="bloom",
        shows="linear biases in place of positions (ALiBi), its own GELU",
        build=_transformers("BloomConfig", "BloomForCausalLM", vocab_size=96, hidden_size=32, n_layer=2, n_head=4),
        batch=_padded_tokens,
    ),
    _row(
        name="falcon",
        shows="one head of keys for all queries, attention and MLP in parallel",
        build=_transformers(
            "FalconConfig",
            "FalconForCausalLM",
            vocab_size=96,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
        ),
        batch=_next_tokens,
    ),
    _row(
        name="qwen2_moe",
        shows="four experts by grouped products and one that is shared, the loss that balances them",
        build=_transformers(
            "Qwen2MoeConfig",
            "Qwen2MoeForCausalLM",
            **DECODER,
            num_key_value_heads=2,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=32,
            output_router_logits=True,
        ),
        batch=_next_tokens,
    ),
    _row(
        name="roberta",
        shows="tags for tokens, dropout 0.1",
        build=_transformers("RobertaConfig", "RobertaForTokenClassification", **ENCODER, num_labels=5),
        batch=_tagged_tokens,
    ),
    _row(
        name="deberta",
        shows="attention to content and to distance, masks of a dtype's minimum",
        build=_transformers(
            "DebertaV2Config",
            "DebertaV2ForSequenceClassification",
            **ENCODER,
            num_labels=3,
            relative_attention=True,
            pos_att_type=["c2p", "p2c"],
            position_buckets=8,
        ),
        batch=_classified_sentences,
    ),
    _row(
        name="electra",
        shows="which tokens were replaced: binary cross entropy of logits, narrow embeddings",
        build=_transformers("ElectraConfig", "ElectraForPreTraining", **ENCODER, embedding_size=16),
        batch=_replaced_tokens,
    ),
    _row(
        name="bart",
        shows="encoder and decoder, dropout 0.1",
        build=_transformers(
            "BartConfig",
            "BartForConditionalGeneration",
            vocab_size=96,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_position_embeddings=64,
        ),
        batch=_source_and_target,
        selected=True,
        dtypes={"model.*coder.layers.*.fc?": "low", "lm_head": "low"},
    ),
)
