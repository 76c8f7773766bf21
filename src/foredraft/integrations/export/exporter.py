"""`foredraft export`: a trained head in the form of another engine, or a refusal that says why there is none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file

from ...errors import UsageError, unknown_name
from ...models import MODELS, source_file
from ...models.heads import Eagle3Head, EagleHead, FastDraft, HeadSpec
from ...models.load.folders import appearing
from ...models.load.names import TUNED
from ...recipes.loading import DTYPES, Loaded, Place, load
from ...recipes.trained import Trained, best_kind, decoder_of, find_head, identity, trained
from ...train.kinds import KINDS
from ..generate_hook.repo_folder import write_custom_generate
from .configs import eagle3_config, eagle_config, language_config, speculators_config
from .folds import Tensors, eagle3_tensors, eagle_tensors, language_tensors
from .gguf_file import STORAGES, write_eagle3, write_language
from .use_page import Use, use_page

TARGET = "target"  # not a head, but the model itself, its delta added where it has one
ENGINES = ("vllm", "sglang", "llama.cpp", "transformers")
SCHEMAS = ("plain", "speculators")
NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
# vLLM takes the method from these parts of a path, whatever method it is given.
MISREAD = {
    "eagle3": ["dflash", "dspark", "eagle-"],
    "eagle": ["dflash", "dspark", "eagle3"],
    "fastdraft": ["dflash", "dspark", "eagle3", "eagle-"],
}
WHY_NOT = {
    "medusa": "engines read its last state only, and ours joins several by a product of its own",
    "mlp-speculator": "vLLM has switched its class off, and no other engine has one",
    "accept-head": "no engine stops drafts by a trained head",
    "griffin": "no engine knows its fusion of tokens",
    "kangaroo": "no engine drafts with the target's own first layers",
}


@dataclass(frozen=True, slots=True)
class ExportOrder:
    """What to export, and how."""

    head: str  # a folder, or the kind of a head that comes with the package
    engine: str
    out: Path
    target: str
    schema: str = "plain"
    dtype: str = "bf16"
    storage: str = "q8_0"  # of GGUF files
    target_gguf: Path | None = None  # None = the one that the target came from

    def check(self) -> None:
        for what, name, known in (
            ("engine", self.engine, ENGINES),
            ("schema", self.schema, SCHEMAS),
            ("dtype", self.dtype, tuple(NAMES)),
            ("storage", self.storage, STORAGES),
        ):
            if name not in known:
                raise unknown_name(what, name, known)
        if self.out.exists() and any(self.out.iterdir() if self.out.is_dir() else (self.out,)):
            raise UsageError(f"{self.out} is not empty; name a folder that does not exist yet")


def export_head(order: ExportOrder) -> list[Path]:
    """Write a head for an engine; returns the files."""
    order.check()
    target = load(order.target, Place("fp32", "cpu", packed=False))
    if order.head == TARGET:
        return _export_target(order, target)
    folder = Path(order.head).expanduser()
    named = str(folder) if folder.is_dir() else None
    kind = best_kind((order.head,), target, named) or order.head
    write = _writer(kind, order)
    head = trained(kind, target, named)
    if order.engine == "vllm":
        _check_path(kind, order.out.absolute())
    with appearing(order.out.absolute()) as place:
        write(Work(order, target, head, find_head(kind, target, named)), place)
        use = Use(head.spec, order.engine, order.target, _file_of(order, kind), order.schema)
        (place / "USE.md").write_text(use_page(use), encoding="utf-8")
    return sorted(path for path in order.out.rglob("*") if path.is_file())


def _export_target(order: ExportOrder, target: Loaded) -> list[Path]:
    """The model itself, as an ordinary folder or GGUF file."""
    decoder = decoder_of(target)
    tensors = language_tensors(decoder, decoder)
    spec = HeadSpec(TARGET, identity(target), 0, (), decoder.config.num_layers, 0)
    with appearing(order.out.absolute()) as place:
        if order.engine == "llama.cpp":
            file = place / _file_of(order, TARGET).name
            write_language(file, tensors, decoder.config, spec, _gguf_of(order), order.storage)
        else:
            tied = decoder.config.tied_head
            _save(place, tensors, language_config(decoder.config, spec, NAMES[order.dtype], tied), order.dtype)
            _copy_tokenizer(target, place)
    return sorted(path for path in order.out.rglob("*") if path.is_file())


@dataclass(frozen=True, slots=True)
class Work:
    """A head that is loaded, and what is wanted of it."""

    order: ExportOrder
    target: Loaded
    head: Trained
    source: Path  # the head's own folder

    @property
    def dtype(self) -> str:
        return NAMES[self.order.dtype]


def _writer(kind: str, order: ExportOrder) -> Callable[[Work, Path], None]:
    """What writes a kind of head for an engine."""
    engine = order.engine
    if order.schema == "speculators" and (kind, engine) != ("eagle3", "vllm"):
        raise UsageError("the speculators schema is for eagle3 heads and vllm; leave --schema out")
    if engine == "transformers":
        return _language_folder if kind == "fastdraft" else _custom_generate
    table = {
        "eagle3": _eagle3_gguf if engine == "llama.cpp" else _eagle3_folder,
        "eagle": None if engine == "llama.cpp" else _eagle_folder,
        "fastdraft": _language_gguf if engine == "llama.cpp" else _language_folder,
    }
    found = table.get(kind)
    if found is None:
        if kind not in {**KINDS, **WHY_NOT}:
            raise unknown_name("kind of head", kind, KINDS)
        reason = "it has no such architecture" if kind in table else WHY_NOT.get(kind, "it is a kind of our own")
        able = "transformers, or export eagle3 or fastdraft"
        raise UsageError(f"a {kind} head cannot go to {engine}: {reason}; use --to {able}")
    return found


def _eagle3_folder(work: Work, place: Path) -> None:
    head, spec, order = cast(Eagle3Head, work.head.head), work.head.spec, work.order
    tensors, config = eagle3_tensors(head, spec.target.vocab_size), eagle3_config(head.config, spec, work.dtype)
    if order.schema == "speculators":
        tensors = {name.replace("midlayer.", "layers.0."): value for name, value in tensors.items()}
        config = speculators_config(head.config, spec, work.dtype, order.target)
    _save(place, tensors, config, order.dtype)


def _eagle_folder(work: Work, place: Path) -> None:
    head, spec, engine = cast(EagleHead, work.head.head), work.head.spec, work.order.engine
    tensors = eagle_tensors(head, bias=engine == "sglang")
    _save(place, tensors, eagle_config(head.config, spec, work.dtype, engine), work.order.dtype)


def _language_folder(work: Work, place: Path) -> None:
    head, spec, target = cast(FastDraft, work.head.head), work.head.spec, decoder_of(work.target)
    config = language_config(head.config, spec, work.dtype, target.config.tied_head)
    _save(place, language_tensors(head, target), config, work.order.dtype)
    _copy_tokenizer(work.target, place)


def _copy_tokenizer(target: Loaded, place: Path) -> None:
    for name in TOKENIZER_FILES:
        if (target.folder / name).exists():
            shutil.copyfile(target.folder / name, place / name)


def _eagle3_gguf(work: Work, place: Path) -> None:
    head, spec = cast(Eagle3Head, work.head.head), work.head.spec
    eagle3_config(head.config, spec, work.dtype)  # its checks are the same
    tensors = eagle3_tensors(head, spec.target.vocab_size)
    file = place / _file_of(work.order, spec.kind).name
    write_eagle3(file, tensors, head.config, spec, _gguf_of(work.order), work.order.storage)


def _language_gguf(work: Work, place: Path) -> None:
    head, spec = cast(FastDraft, work.head.head), work.head.spec
    tensors, file = language_tensors(head, decoder_of(work.target)), place / _file_of(work.order, spec.kind).name
    write_language(file, tensors, head.config, spec, _gguf_of(work.order), work.order.storage)


def _custom_generate(work: Work, place: Path) -> None:
    """foredraft itself inside generate(), with the head beside it."""
    shutil.copytree(work.source, place / "head")
    write_custom_generate(place, work.head.spec.kind, "head", work.order.out)


def _save(place: Path, tensors: Tensors, config: dict[str, object], dtype: str) -> None:
    kept = {name: value.to(DTYPES[dtype]) if value.is_floating_point() else value for name, value in tensors.items()}
    if "d2t" in kept:
        kept["d2t"] = kept["d2t"].to(torch.int64)
    save_file({name: value.contiguous() for name, value in kept.items()}, place / "model.safetensors", {"format": "pt"})
    (place / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _file_of(order: ExportOrder, kind: str) -> Path:
    """What an engine is pointed at: the folder, or the GGUF file in it."""
    return order.out / f"{kind}-{order.storage}.gguf" if order.engine == "llama.cpp" else order.out


def _gguf_of(order: ExportOrder) -> Path:
    if order.target_gguf is not None:
        if not order.target_gguf.is_file():
            raise UsageError(f"{order.target_gguf} does not exist; name the target's own GGUF file")
        return order.target_gguf
    name = TUNED.get(order.target, order.target)
    if name in MODELS and MODELS[name].format == "gguf":
        return source_file(name)
    if order.target.endswith(".gguf"):
        return Path(order.target).expanduser()
    raise UsageError("llama.cpp wants the tokenizer of the target's GGUF file; name it with --target-gguf FILE")


def _check_path(kind: str, path: Path) -> None:
    for part in MISREAD.get(kind, ()):
        if part in str(path).lower():
            raise UsageError(
                f"vLLM takes a path with {part!r} for another kind of drafter than {kind}, whatever it is given; "
                "choose another --out"
            )
