"""Trained drafters' modules: what a head is, how it is stored, and the kinds that exist."""

from .artefact import as_stored, check_target, fill, read_spec, read_weights, save_head, weights_digest
from .base import Head, HeadSpec, Identity, own_parameters
from .blocks.falcon import FalconHead
from .blocks.forerunner import ForerunnerHead
from .draft_length import LengthHead
from .draft_vocab import DraftVocab, by_frequency
from .eagle import DovetailHead, Eagle3Head, EagleHead, FeatureHead, GriffinHead
from .language import AcceptHead, FastDraft, KangarooHead
from .layer_skip import LayerSkip
from .loader import BUILDERS, load_head, settle
from .medusa import MedusaHead, RecurrentHead, SpeculatorHead
from .published.published_modules import ParallelEagle3
from .sdsat import SdsatHead
from .sorted_draft import SortedDraft

__all__ = [
    "BUILDERS",
    "AcceptHead",
    "DovetailHead",
    "DraftVocab",
    "Eagle3Head",
    "EagleHead",
    "FalconHead",
    "FastDraft",
    "FeatureHead",
    "ForerunnerHead",
    "GriffinHead",
    "Head",
    "HeadSpec",
    "Identity",
    "KangarooHead",
    "LayerSkip",
    "LengthHead",
    "MedusaHead",
    "ParallelEagle3",
    "RecurrentHead",
    "SdsatHead",
    "SortedDraft",
    "SpeculatorHead",
    "as_stored",
    "by_frequency",
    "check_target",
    "fill",
    "load_head",
    "own_parameters",
    "read_spec",
    "read_weights",
    "save_head",
    "settle",
    "weights_digest",
]
