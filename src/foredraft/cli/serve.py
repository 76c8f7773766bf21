"""`foredraft serve`: a model with the OpenAI API."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from ..recipes import LLM, read_method, read_methods
from ..runtime.cuda.paged_cache import KVOptions
from . import options as o

if TYPE_CHECKING:
    from ..serve.service import Settings

Model = Annotated[str, typer.Argument(help="Short name, GGUF file, Hugging Face folder or hub id.")]
KEYS = "FOREDRAFT_API_KEYS"
ApiKey = Annotated[list[str] | None, typer.Option(envvar=KEYS, help="Key that clients must send; may be repeated.")]
AllowMethods = Annotated[
    str | None,
    typer.Option(help="Methods that clients may ask for: a,b:shape=chain (default: those without weights)."),
]

PromptTokens = Annotated[
    int | None, typer.Option(min=1, help="Prompt tokens read in a step, beside decoding (default: by the device).")
]
PromptGrowth = Annotated[
    float | None,
    typer.Option(
        help="How much longer answers may wait for a token while prompts are read, on average (default: 1.3 on a GPU, "
        "any on a CPU)."
    ),
]
AllowLossy = Annotated[bool, typer.Option(help="Let clients ask for rules that change the output distribution.")]
ShareTexts = Annotated[
    bool, typer.Option("--share-texts", help="Let all clients draft from each other's texts (default: by API key).")
]
AllowTrace = Annotated[
    bool | None, typer.Option(help="Show clients drafts and draft counters (default: unless texts are shared).")
]
KeyWeights = Annotated[
    str | None, typer.Option(help="How clients share the server, a number per API key, with commas (default: equally).")
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(help="Name by which clients may call the server; may be repeated (default: on loopback its own)."),
]
Stores = Annotated[
    list[str] | None,
    typer.Option(
        "--store",
        help="Datastore to look drafts up in; key-1=STORE is for the first API key alone. May be repeated.",
        rich_help_panel=o.DRAFTING,
    ),
]
DeviceMap = Annotated[str | None, typer.Option(help="Several GPUs: auto (layer after layer).")]
Lora = Annotated[
    list[str] | None,
    typer.Option(help="NAME=DIR, a LoRA adapter of peft that clients choose as model NAME; may be repeated."),
]
WarmUp = Annotated[
    bool, typer.Option(help="Let every method write a few tokens before the first client comes, so that none waits.")
]
Canary = Annotated[
    tuple[float, float],
    typer.Option(
        help="Share of answers by lossy rules to write again exactly, and share of other final answers beyond which "
        "lossy rules are switched off."
    ),
]
OpenMetrics = Annotated[bool, typer.Option("--open-metrics", help="Serve /metrics without an API key.")]


def serve(
    context: typer.Context,
    model: Model = o.DEFAULT_MODEL,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 = all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 = a free one.", min=0, max=65535)] = 8000,
    name: Annotated[str | None, typer.Option(help="Model id in the API (default: MODEL as given).")] = None,
    method: o.Method = o.DEFAULT_METHOD_NAME,
    shape: o.Shape = None,
    rule: o.Rule = None,
    drafter: o.Drafter = None,
    draft_length: o.DraftLength = None,
    judge: o.Judge = None,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    quantize: o.Quantize = None,
    kv_cache_memory_bytes: o.KVMemory = None,
    kv_cache_dtype: o.KVDtype = "auto",
    device_map: DeviceMap = None,
    draft_device: o.DraftDevice = None,
    words: o.Words = None,
    store: Stores = None,
    lora: Lora = None,
    stop: o.DraftStop = None,
    length: o.Length = None,
    max_length: Annotated[int, typer.Option(min=1, help="Context of a slot, prompt and answer, in tokens.")] = 4096,
    slots: Annotated[int, typer.Option(help="Answers that run at a time.")] = 16,
    prompt_tokens: PromptTokens = None,
    prompt_growth: PromptGrowth = None,
    reuse_prefixes: Annotated[bool, typer.Option(help="Keep what finished requests have read for the next.")] = True,
    share_drafts: Annotated[bool, typer.Option(help="Draft less, down to nothing, the more requests run.")] = True,
    api_key: ApiKey = None,
    share_texts: ShareTexts = False,
    allow_trace: AllowTrace = None,
    open_metrics: OpenMetrics = False,
    key_weights: KeyWeights = None,
    allow_host: AllowHost = None,
    allow_methods: AllowMethods = None,
    allow_lossy: AllowLossy = False,
    canary: Canary = (0.0, 0.1),
    max_queue: Annotated[int, typer.Option(help="Answers that may wait; beyond them clients get 429.")] = 64,
    max_choices: Annotated[int, typer.Option(help="Answers of one request: prompts times n.")] = 16,
    max_body: Annotated[int, typer.Option(help="Largest request body, in bytes.")] = 1 << 20,
    max_prompt_tokens: Annotated[int | None, typer.Option(help="Longest prompt (default: the context).")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest answer (default: the context).")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one request, waiting included.")] = 600.0,
    grace: Annotated[float, typer.Option(help="Seconds for what runs after SIGTERM.")] = 30.0,
    warm_up: WarmUp = True,
    access_log: Annotated[bool, typer.Option(help="Log every request.")] = False,
    json_log: Annotated[bool, typer.Option(help="Log in JSON, a line a record, requests included.")] = False,
    config: o.ConfigFile = None,
) -> int:
    """Serve a model through the OpenAI API: chat, completions, streams, JSON, metrics."""
    listen = check_extra(device_map)
    from ..serve.service import Limits, Service, Settings

    limits = Limits(max_body, max_prompt_tokens, max_new_tokens, max_choices, max_queue, seconds=timeout, grace=grace)
    allowed, adapters = allowed_methods(method, allow_methods), named_folders(lora or [])
    settings = Settings(name or model, limits, checked_keys(api_key), allowed, **policy(context, listen, adapters))
    load, renew = loader(context, settings, adapters), partial(renewed, config, *drafting(context))
    return listen.run(Service(load, settings, renew), host, port, access_log)


def policy(context: typer.Context, listen: Any, adapters: dict[str, str]) -> dict[str, Any]:
    """What `Settings` take of the options, by their names there."""
    given = context.params
    same = (
        "allow_lossy",
        "prompt_tokens",
        "prompt_growth",
        "reuse_prefixes",
        "share_drafts",
        "share_texts",
        "allow_trace",
    )
    found = {name: given[name] for name in (*same, "open_metrics", "warm_up", "json_log")}
    found |= {"private_calls": not listen.is_loopback(given["host"]), "key_weights": numbers(given["key_weights"])}
    canary, budget = given["canary"]
    hosts = listen.allowed_hosts(given["host"], given["allow_host"])
    return found | {"hosts": hosts, "canary": canary, "canary_budget": budget, "adapters": tuple(adapters)}


def allowed_methods(served: str, others: str | None) -> tuple[str, ...] | None:
    """The methods that clients may ask for; None = the usual ones. A wrong name should not cost a model load."""
    read_method(served)
    return None if others is None else tuple(spec.label for spec in read_methods(others))


def loader(context: typer.Context, settings: Settings, adapters: dict[str, str]) -> Callable[[], LLM]:
    """How the model is loaded; of what is drafted with, SIGHUP reads the same names again."""
    given = context.params
    parts = {name: given[name] for name in (*DRAFTING, *PLACE)}
    parts["kv_cache"] = KVOptions.of(given["kv_cache_memory_bytes"], given["kv_cache_dtype"])
    stores = served_stores(given["store"] or [], settings)
    return partial(loaded, given["model"], **parts, batch_size=given["slots"], store=stores, lora=adapters)


def loaded(model: str, method: str, **parts: Any) -> LLM:
    with o.LoadingBar() as bar:
        return LLM(model, method, progress=bar, **parts)


PLACE = ("dtype", "device", "quantize", "device_map", "max_length")
SAID = ("COMMANDLINE", "ENVIRONMENT")
DRAFTING = ("method", "rule", "shape", "drafter", "draft_length", "judge", "words", "stop", "length", "draft_device")


def drafting(context: typer.Context) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what the command line says about drafting, what holds where neither it nor a file says anything)"""
    sources = {name: context.get_parameter_source(name) for name in DRAFTING}
    fixed = [name for name, found in sources.items() if found is not None and found.name in SAID]
    usual = {str(each.name): each.default for each in context.command.params if each.name in DRAFTING}
    return {name: context.params[name] for name in fixed}, usual


def renewed(config: Path | None, said: dict[str, Any], usual: dict[str, Any], llm: LLM) -> LLM:
    """Methods as the command line and the file have them now; of the file, the options of drafting alone."""
    values = {} if config is None else {k: v for k, v in o.config_values(config).items() if k in DRAFTING}
    return llm.renewed(**usual | values | said, store=llm.options.store)


def check_extra(device_map: str | None = None) -> Any:
    """The module that listens, whose packages are an extra; one process listens."""
    if device_map == "tensor":
        raise UsageError("--device-map tensor is for generate and chat; serve with auto, or export to vLLM")
    try:
        return importlib.import_module("foredraft.serve.listen")
    except ModuleNotFoundError as error:
        raise UsageError(f"'foredraft serve' needs {error.name}; pip install 'foredraft[serve]'") from None


def checked_keys(keys: list[str] | None) -> tuple[str, ...]:
    """A variable that is set and holds nothing is a mistake of deployment, not a wish to serve everyone."""
    if os.environ.get(KEYS) is not None and not keys:
        raise UsageError(f"{KEYS} holds no key; unset it to serve everyone")
    return tuple(keys or ())


def served_stores(given: list[str], settings: Settings) -> str | None:
    """Datastores as options spell them, with the server's names of clients: key-1 is the first API key's."""
    spelled = []
    for piece in given:
        client, sign, folder = piece.partition("=")
        if not sign:
            spelled.append(piece)
            continue
        number = client.removeprefix("key-")
        if not number.isdigit() or not 1 <= int(number) <= len(settings.api_keys):
            raise UsageError(f"--store {piece!r}: there is no {client!r}; key-1=STORE is for the first --api-key")
        if settings.share_texts:
            raise UsageError(f"--store {piece!r} is for one client, but --share-texts makes all clients one")
        spelled.append(f"{list(settings.weights)[int(number) - 1]}={folder}")
    return ";".join(spelled) or None


def named_folders(given: list[str]) -> dict[str, str]:
    """NAME=DIR, each name once."""
    found: dict[str, str] = {}
    for piece in given:
        name, _, folder = piece.partition("=")
        if not name or not folder or name in found:
            raise UsageError(f"--lora takes NAME=DIR, each name once, not {piece!r}")
        found[name] = folder
    return found


def numbers(text: str | None, name: str = "--key-weights") -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in (text or "").split(",") if part.strip())
    except ValueError:
        raise UsageError(f"{name} takes numbers with commas between, not {text!r}") from None
