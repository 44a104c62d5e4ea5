"""Vision models of transformers and timm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.real_models.model import Batch, RealModel, called_with_batch


def _pictures(size: int, rows: int = 4) -> Callable[[], Batch]:
    """Return a batch of pictures with one of five classes each."""

    def batch() -> Batch:
        return {"pixel_values": torch.randn(rows, 3, size, size), "labels": torch.randint(5, (rows,))}

    return batch


def _swin() -> nn.Module:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=5
    )
    return SwinForImageClassification(config).train()


def _segformer() -> nn.Module:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[16, 32],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=32,
        num_labels=5,
    )
    return SegformerForSemanticSegmentation(config).train()


def _segmented_pictures() -> Batch:
    return {"pixel_values": torch.randn(3, 3, 32, 32), "labels": torch.randint(5, (3, 32, 32))}


def _detr() -> nn.Module:
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        num_queries=5,
        num_labels=4,
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
    )
    return DetrForObjectDetection(config).train()


def _boxed_pictures() -> Batch:
    return {
        "pixel_values": torch.randn(2, 3, 64, 64),
        "classes": torch.randint(5, (2, 5)),
        "boxes": torch.rand(2, 5, 4) * 0.5 + 0.25,
    }


def _matched_boxes(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Return DETR's losses for queries that are matched in order: the usual matching needs SciPy."""
    outputs = model(pixel_values=batch["pixel_values"])
    classes = functional.cross_entropy(outputs.logits.flatten(0, 1), batch["classes"].flatten())
    boxes = functional.l1_loss(outputs.pred_boxes, batch["boxes"])
    return {"loss": classes + 5 * boxes, "logits": outputs.logits, "boxes": outputs.pred_boxes}


def _timm(name: str, **arguments: Any) -> Callable[[], nn.Module]:
    """Return a function that creates a model of timm for five classes."""

    def build() -> nn.Module:
        import timm

        built: nn.Module = timm.create_model(name, num_classes=5, **arguments)
        return built.train()

    return build


def _smoothed_classes(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    logits = model(batch["pixel_values"])
    return {"loss": functional.cross_entropy(logits, batch["labels"], label_smoothing=0.1), "logits": logits}


def _regnet() -> nn.Module:
    from timm.models.regnet import RegNet, RegNetCfg

    config = RegNetCfg(depth=4, w0=16, wa=8.0, wm=1.4, group_size=8, se_ratio=0.25)
    return RegNet(config, num_classes=5, drop_path_rate=0.1).train()


_of_transformers = partial(RealModel, library="transformers", loss=called_with_batch)
_of_timm = partial(RealModel, library="timm", loss=_smoothed_classes)

MODELS = (
    _of_transformers(
        name="swin",
        shows="attention in shifted windows, stochastic depth",
        build=_swin,
        batch=_pictures(32),
        dtypes={"swin.encoder.layers.*.mlp.fc1": "low", "classifier": "low"},
        selected=True,
    ),
    _of_transformers(
        name="segformer",
        shows="classes of pixels, BatchNorm in the head, bilinear interpolation",
        build=_segformer,
        rate=1e-2,
        batch=_segmented_pictures,
    ),
    _of_transformers(
        name="detr",
        shows="frozen BatchNorm, attention across a picture, boxes by sigmoid",
        build=_detr,
        steps=40,
        rate=3e-3,
        batch=_boxed_pictures,
        loss=_matched_boxes,
    ),
    _of_timm(
        name="efficientnet",
        shows="depthwise convolutions, squeeze and excitation, SiLU, BatchNorm, drop path",
        build=_timm("test_efficientnet", drop_rate=0.2, drop_path_rate=0.1),
        batch=_pictures(64, rows=6),
    ),
    _of_timm(
        name="regnet",
        shows="grouped convolutions, squeeze and excitation, BatchNorm",
        build=_regnet,
        batch=_pictures(64, rows=6),
    ),
    _of_timm(
        name="convnextv2",
        shows="global response normalisation",
        build=_timm("convnextv2_atto", depths=(1, 1, 2, 1), dims=(16, 32, 48, 64), drop_path_rate=0.1),
        batch=_pictures(64),
        dtypes={"stages.*.blocks.*.conv_dw": "low", "head.fc": "low"},
        selected=True,
    ),
    _of_timm(
        name="deit3",
        shows="scales of layers, stochastic depth, fused attention with biases",
        build=_timm("deit3_small_patch16_224", img_size=64, depth=2, embed_dim=48, num_heads=3, drop_path_rate=0.1),
        batch=_pictures(64),
    ),
    _of_timm(
        name="maxvit",
        shows="attention in blocks and on grids, and convolutions with BatchNorm",
        build=_timm("test_maxvit", img_size=64),
        batch=_pictures(64, rows=6),
        since="1.0.31",
    ),
)
