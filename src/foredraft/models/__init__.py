"""Models: one decoder, the readers that fill it, the tokenizer beside it, and the names that models go by."""

from .config import ModelConfig, read_config, runs_natively, why_foreign
from .decoder import Attend, Decoder, Layer, pack, random_decoder, shallow
from .layers.linear import Linear
from .load.folders import Progress, cache_home
from .load.names import DEFAULT, MODELS, resolve, source_file
from .load.weights import load_decoder
from .presets import SHAPES, shape
from .tokenizer import TextStream, Tokenizer

__all__ = [
    "DEFAULT",
    "MODELS",
    "SHAPES",
    "Attend",
    "Decoder",
    "Layer",
    "Linear",
    "ModelConfig",
    "Progress",
    "TextStream",
    "Tokenizer",
    "cache_home",
    "load_decoder",
    "pack",
    "random_decoder",
    "read_config",
    "resolve",
    "runs_natively",
    "shallow",
    "shape",
    "source_file",
    "why_foreign",
]
