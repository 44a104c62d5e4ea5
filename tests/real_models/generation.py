"""Diffusion models of diffusers, and networks for volumes of MONAI."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.real_models.model import Batch, RealModel


def _unet() -> nn.Module:
    from diffusers import UNet2DModel

    model: nn.Module = UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        attention_head_dim=8,
        dropout=0.1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return model.train()


def _noisy_pictures() -> Batch:
    return {"sample": torch.randn(3, 3, 16, 16), "noise": torch.randn(3, 3, 16, 16), "step": torch.tensor([7, 80, 900])}


def _predicted_noise(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    share = (1 - batch["step"] / 1000).view(-1, 1, 1, 1)
    noisy = share.sqrt() * batch["sample"] + (1 - share).sqrt() * batch["noise"]
    predicted = model(noisy, batch["step"]).sample
    return {"loss": functional.mse_loss(predicted.float(), batch["noise"]), "predicted": predicted}


def _dit() -> nn.Module:
    from diffusers import DiTTransformer2DModel

    model: nn.Module = DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=10,
    )
    return model.train()


def _latents_of_classes() -> Batch:
    return {
        "sample": torch.randn(3, 4, 8, 8),
        "noise": torch.randn(3, 4, 8, 8),
        "step": torch.tensor([7, 80, 900]),
        "labels": torch.randint(10, (3,)),
    }


def _noise_of_classes(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    predicted = model(batch["sample"] + batch["noise"], timestep=batch["step"], class_labels=batch["labels"]).sample
    return {"loss": functional.mse_loss(predicted.float(), batch["noise"]), "predicted": predicted}


def _quantised_autoencoder() -> nn.Module:
    from diffusers import VQModel

    model: nn.Module = VQModel(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        latent_channels=4,
        num_vq_embeddings=16,
        norm_num_groups=8,
    )
    return model.train()


def _pictures() -> Batch:
    return {"pictures": torch.randn(2, 3, 16, 16)}


def _reconstruction(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    outputs = model(batch["pictures"])
    error = functional.l1_loss(outputs.sample.float(), batch["pictures"])
    return {"loss": error + outputs.commit_loss.float(), "pictures": outputs.sample}


def _attention_unet() -> nn.Module:
    from monai.networks.nets import AttentionUnet

    return AttentionUnet(spatial_dims=2, in_channels=1, out_channels=3, channels=(8, 16, 32), strides=(2, 2)).train()


def _swin_unetr() -> nn.Module:
    from monai.networks.nets import SwinUNETR

    return SwinUNETR(
        in_channels=1,
        out_channels=3,
        spatial_dims=2,
        feature_size=12,
        depths=(1, 1, 1, 1),
        num_heads=(1, 2, 2, 4),
        window_size=4,
        drop_rate=0.1,
    ).train()


def _segresnet() -> nn.Module:
    from monai.networks.nets import SegResNet

    return SegResNet(
        spatial_dims=3,
        init_filters=8,
        in_channels=1,
        out_channels=3,
        blocks_down=(1, 1),
        blocks_up=(1,),
        dropout_prob=0.2,
    ).train()


def _slices() -> Batch:
    return {"scans": torch.randn(4, 1, 32, 32), "classes": torch.randint(3, (4, 1, 32, 32))}


def _larger_slices() -> Batch:
    return {"scans": torch.randn(2, 1, 64, 64), "classes": torch.randint(3, (2, 1, 64, 64))}


def _volumes() -> Batch:
    scans = torch.randn(2, 1, 16, 16, 16)
    return {"scans": scans, "classes": (scans > -0.5).long() + (scans > 0.5).long()}


def _overlap(model: nn.Module, batch: Batch) -> dict[str, Any]:
    from monai.losses import DiceFocalLoss

    logits = model(batch["scans"])
    loss = DiceFocalLoss(to_onehot_y=True, softmax=True)(logits, batch["classes"])
    return {"loss": loss, "logits": logits}


_of_diffusers = partial(RealModel, library="diffusers")
_of_monai = partial(RealModel, library="monai", loss=_overlap)

MODELS = (
    _of_diffusers(
        name="unet2d",
        shows="GroupNorm, SiLU, embeddings of time, attention over pixels, dropout",
        build=_unet,
        batch=_noisy_pictures,
        loss=_predicted_noise,
        dtypes={"time_embedding.linear_1": "low", "conv_out": "low", "": "low"},
        selected=True,
    ),
    _of_diffusers(
        name="dit",
        shows="LayerNorm with scale and shift from a condition, dropped labels",
        build=_dit,
        batch=_latents_of_classes,
        loss=_noise_of_classes,
    ),
    _of_diffusers(
        name="vq_autoencoder",
        shows="nearest codes by distance, gradients passed straight through",
        build=_quantised_autoencoder,
        rate=1e-2,
        batch=_pictures,
        loss=_reconstruction,
    ),
    _of_monai(
        name="attention_unet",
        shows="gates on skipped maps, transposed convolutions, BatchNorm, Dice and focal loss",
        build=_attention_unet,
        batch=_slices,
    ),
    _of_monai(
        name="swin_unetr",
        shows="windows of attention that feed a decoder of convolutions, InstanceNorm, dropout",
        build=_swin_unetr,
        batch=_larger_slices,
        also="einops",
    ),
    _of_monai(
        name="segresnet",
        shows="three-dimensional convolutions, GroupNorm, dropout of channels",
        build=_segresnet,
        steps=40,
        rate=3e-3,
        batch=_volumes,
        selected=True,
        dtypes={"convInit.conv": "low", "": "low"},
    ),
)
