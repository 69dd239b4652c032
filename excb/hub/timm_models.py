"""timm's own models with their published weights and preprocessing, by "timm:NAME"."""

from pathlib import Path

from excb.checkpoint.stored import Stored
from excb.checkpoint.timm_format import preprocessing_of
from excb.console import Reporter
from excb.errors import UserError, first_line
from excb.hub.resolve import TIMM
from excb.hub.same_weights import as_evaluated, row_of_timm
from excb.networks.architecture import Architecture
from excb.remote.hf_repository import kept_copy


def read(name: str, reporter: Reporter) -> Stored:
    """One of timm's models, "timm:NAME", without its classifier, prepared as its authors evaluate it.

    Raises:
        UserError: there is no such model, it has no published weights, they cannot be fetched, or its images are not
            square RGB.
    """
    import timm

    architecture, model = Architecture(name), name.removeprefix(TIMM)
    try:
        cfg = timm.models.get_pretrained_cfg(model)
        copy = kept_copy(cfg.hf_hub_id, reporter) if cfg is not None and cfg.hf_hub_id else None
        overlay = None if copy is None else {"file": str(copy), "custom_load": False}
        published = timm.create_model(model, pretrained=True, num_classes=0, pretrained_cfg_overlay=overlay)
    except (OSError, RuntimeError, ValueError, LookupError) as error:
        if not timm.is_model(model):
            architecture.build()  # refuses, and says which name is meant
        raise UserError(
            f"no published weights for {name} ({first_line(error)}): check the name and the connection, or fetch the "
            "model once where there is one and copy timm's cache"
        ) from None
    preprocessing = preprocessing_of(name, timm.data.resolve_model_data_config(published))
    facts = {"network": "pretrained"}
    stored = Stored(Path(name), dict(published.state_dict()), architecture, preprocessing, facts=facts)
    return as_evaluated(stored, row_of_timm(cfg), reporter.note)
