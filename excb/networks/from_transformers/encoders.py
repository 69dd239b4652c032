"""transformers' encoders as our other networks are: pooled features, class tokens, and maps as timm gives them."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from excb.errors import UserError, first_line, require
from excb.networks.from_transformers import families
from excb.networks.from_transformers.families import EncoderFamily


def build_encoder(kind: str, options: Mapping[str, Any]) -> "Tokens | Stages":
    """The encoder of a type with random weights, [B, 3, H, W] -> [B, D].

    Raises:
        UserError: no such type, or options that it does not take.
    """
    family, config = families.encoder_family(kind), families.config_of(kind, options)
    try:
        return encoder(getattr(families.transformers_library(), family.model)(config, **dict(family.arguments)), family)
    except families.refusals() as error:
        raise UserError(f"transformers' {kind} does not take these options: {first_line(error)}") from None


def encoder(model: nn.Module, family: EncoderFamily) -> "Tokens | Stages":
    """The encoder around a model of transformers. Raises UserError where its patches are not square."""
    return Tokens(model, family) if family.norm else Stages(model)


class TransformersEncoder(nn.Module):
    """A model of transformers: [B, 3, H, W] -> [B, D].

    Attributes:
        num_features: D.
        feature_info: the width and the stride of every map.
    """

    num_features: int
    feature_info: list[dict[str, int]]

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Features of normalised images."""
        return self._pooled(self._run(images))

    def forward_head(self, pooled: Tensor) -> Tensor:
        """The features in what `forward_intermediates` gives beside maps: the same."""
        return pooled

    def _run(self, images: Tensor, **wanted: Any) -> Any:
        return self.model(images, **wanted)

    def _pooled(self, outputs: Any) -> Tensor:
        pooled: Tensor = outputs.pooler_output.flatten(1)
        return pooled

    def _outputs(self, images: Tensor, indices: int | Sequence[int]) -> tuple[Any, list[Tensor]]:
        """The outputs, and the hidden states after the blocks or stages of these numbers, or after the last few."""
        outputs, depth = self._run(images, output_hidden_states=True), len(self.feature_info)
        numbers = range(depth - indices, depth) if isinstance(indices, int) else sorted(indices)
        states = outputs.hidden_states[-depth:]  # without what goes into the first block
        return outputs, [states[number] for number in numbers]


class Tokens(TransformersEncoder):
    """A ViT. Its features are the class token after the final norm; of SigLIP, which has none, its attention pooling.

    DINOv2, DINOv3 and CLIP call this their `pooler_output`. SigLIP without its head is averaged, as timm does.
    """

    def __init__(self, model: Any, family: EncoderFamily) -> None:
        super().__init__(model)
        config, self._family = model.config, family
        side = config.patch_size
        require(isinstance(side, int), f"this {type(model).__name__} has patches of {side} pixels, not square ones")
        self.patch, self.num_features = side, config.hidden_size
        registers = getattr(config, "num_register_tokens", 0)
        self._prefix = registers + 1 if family.class_token else 0
        one = {"num_chs": config.hidden_size, "reduction": side}
        self.feature_info = [one] * config.num_hidden_layers

    @property
    def norm(self) -> nn.Module:
        """The final norm."""
        norm: nn.Module = getattr(self.model, self._family.norm)
        return norm

    @property
    def blocks(self) -> range:
        """The numbers of the blocks."""
        return range(len(self.feature_info))

    @property
    def cls_token(self) -> Tensor | None:
        """The class token, or None."""
        embeddings: Any = self.model.embeddings
        token: Tensor | None = getattr(embeddings, "cls_token", getattr(embeddings, "class_embedding", None))
        return token

    def forward_intermediates(
        self,
        images: Tensor,
        indices: int | Sequence[int],
        *,
        return_prefix_tokens: bool = False,
        norm: bool = True,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Patch tokens after blocks as maps [B, D, H / patch, W / patch], as timm's ViTs give them.

        Args:
            images: normalised.
            indices: of the blocks, or how many of the last.
            return_prefix_tokens: pairs of the map, and of class token and registers [B, N, D].
            norm: whether tokens go through the final norm.
            output_fmt: "NCHW", the only format.
            intermediates_only: leave out the pooled features, which else come first.
        """
        require(output_fmt == "NCHW", f"maps are NCHW, not {output_fmt}")
        outputs, states = self._outputs(images, indices)
        grid = [side // self.patch for side in images.shape[-2:]]
        maps: list[Any] = []
        for state in states:
            tokens = self.norm(state) if norm else state
            patches = tokens[:, self._prefix :].transpose(1, 2).unflatten(2, grid).contiguous()
            maps.append((patches, tokens[:, : self._prefix]) if return_prefix_tokens else patches)
        return maps if intermediates_only else (self._pooled(outputs), maps)

    def _run(self, images: Tensor, **wanted: Any) -> Any:
        config: Any = self.model.config
        if self._family.fixed and tuple(images.shape[-2:]) != (config.image_size, config.image_size):
            wanted["interpolate_pos_encoding"] = True
        return self.model(images, **wanted)

    def _pooled(self, outputs: Any) -> Tensor:
        tokens: Tensor = outputs.last_hidden_state
        pooled: Tensor | None = outputs.pooler_output
        if pooled is None:
            return tokens[:, 0] if self._family.class_token else tokens.mean(1)
        return pooled


class Stages(TransformersEncoder):
    """A convolutional network: its pooled map, of ConvNeXt after the final norm, is transformers' `pooler_output`."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        config = model.config
        widths, stride = config.hidden_sizes, 4  # of ResNet's stem; ConvNeXt's is one patch
        stride = getattr(config, "patch_size", stride) * (
            2 if getattr(config, "downsample_in_first_stage", False) else 1
        )
        self.num_features = widths[-1]
        self.feature_info = [{"num_chs": width, "reduction": stride << stage} for stage, width in enumerate(widths)]

    def forward_intermediates(
        self,
        images: Tensor,
        indices: int | Sequence[int],
        *,
        norm: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """The maps [B, D, h, w] of stages; arguments as in `Tokens.forward_intermediates`, but none has a norm."""
        require(output_fmt == "NCHW" and not norm, "maps of stages are NCHW and without a norm")
        outputs, maps = self._outputs(images, indices)
        return maps if intermediates_only else (self._pooled(outputs), maps)
