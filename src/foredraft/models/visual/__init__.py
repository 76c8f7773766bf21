"""Visual models in miniature: images as codes of a codebook, and a classifier that says how good images are."""

from .classifier import Classifier, load_classifier, save_classifier
from .codec import Codec, ImageDecoder, load_codec, read_codebook, save_codec
from .token_model import CLASSES, SIDE, visual_config, visual_tokenizer

__all__ = [
    "CLASSES",
    "SIDE",
    "Classifier",
    "Codec",
    "ImageDecoder",
    "load_classifier",
    "load_codec",
    "read_codebook",
    "save_classifier",
    "save_codec",
    "visual_config",
    "visual_tokenizer",
]
