"""Text <-> ids for a model folder, through the `tokenizers` package alone: importing transformers takes seconds.

`Tokenizer` reads tokenizer.json and renders the folder's chat template; `TextStream` turns a growing list of ids into
text. Neither knows a model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import ForedraftError, UsageError
from .config import read_config, read_json

if TYPE_CHECKING:
    import jinja2.ext
    import tokenizers

Message = Mapping[str, Any]  # role and content, as in the OpenAI API
LONG_TEXT = 4096  # characters, which take some milliseconds
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


class Tokenizer:
    """The tokenizer of a model folder."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special: Mapping[str, str] | None = None,
        chat_template: str | None = None,
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        self.backend = backend
        self.special = dict(special or {})  # "eos_token" -> its text
        self.chat_template = chat_template
        self.eos_token_ids = tuple(eos_token_ids)

    @classmethod
    def from_folder(cls, folder: Path | str) -> Tokenizer:
        """Read tokenizer.json and its companions; older folders go through transformers once."""
        folder = Path(folder)
        config = _optional_json(folder / "tokenizer_config.json")
        texts = {name: _text(config.get(name)) for name in SPECIAL}
        special = {name: text for name, text in texts.items() if text is not None}
        backend = _read_backend(folder) if (folder / "tokenizer.json").exists() else _convert_backend(folder)
        backend.no_padding()  # a file holds the settings of whoever saved it
        backend.no_truncation()
        ids = read_config(folder).get("eos_token_id") if (folder / "config.json").exists() else None
        if ids is None and "eos_token" in special:
            ids = backend.token_to_id(special["eos_token"])
        stops = () if ids is None else ids if isinstance(ids, list) else (ids,)
        return cls(backend, special, _read_template(folder, config), stops)

    @classmethod
    def from_object(cls, tokenizer: Any, eos_token_ids: Sequence[int] = ()) -> Tokenizer:
        """Of a transformers tokenizer that is loaded already; it stays as it is."""
        import tokenizers

        given: tokenizers.Tokenizer | None = getattr(tokenizer, "backend_tokenizer", None)
        if given is None:
            raise UsageError(f"{type(tokenizer).__name__} has no fast form; load it with AutoTokenizer (use_fast=True)")
        backend = tokenizers.Tokenizer.from_str(given.to_str())
        backend.no_padding()
        backend.no_truncation()
        texts = {name: getattr(tokenizer, name, None) for name in SPECIAL}
        special = {name: str(text) for name, text in texts.items() if text is not None}
        template = getattr(tokenizer, "chat_template", None)
        return cls(backend, special, template if isinstance(template, str) else None, eos_token_ids)

    @property
    def vocab_size(self) -> int:
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def bos_token_id(self) -> int | None:
        return self.backend.token_to_id(self.special["bos_token"]) if "bos_token" in self.special else None

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Ids of a text; with `add_special`, preceded by whatever the model expects at the start."""
        try:
            if len(text) > LONG_TEXT:  # for a batch the package lets other threads run meanwhile
                return self.backend.encode_batch_fast([text], add_special_tokens=add_special)[0].ids
            return self.backend.encode(text, add_special_tokens=add_special).ids
        except Exception as error:  # the package raises bare Exception
            raise UsageError(f"the model's tokenizer has no token for something in {text[:60]!r} ({error})") from None

    def encode_many(self, texts: Sequence[str], add_special: bool = True) -> list[list[int]]:
        """The same for many texts, on all cores."""
        try:
            return [found.ids for found in self.backend.encode_batch_fast(list(texts), add_special_tokens=add_special)]
        except Exception:  # does not say for which text: one by one they do
            return [self.encode(text, add_special) for text in texts]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return self.backend.decode(list(ids), skip_special_tokens=skip_special)

    def chat(self, messages: Sequence[Message], add_generation_prompt: bool = True, **values: Any) -> str:
        """Messages as the text that the model was tuned on; `values` reach the template as variables."""
        if self.chat_template is None:
            raise UsageError("this model has no chat template; give it plain text instead")
        given = {"messages": messages, "add_generation_prompt": add_generation_prompt, "tools": None}
        try:
            return self._template.render(self.special | given | values)
        except Exception as error:  # templates are programs: of None or a list where text belongs they make a TypeError
            raise UsageError(f"the chat template refuses these messages: {error}") from None

    def encode_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True, **values: Any) -> list[int]:
        """Ids of `chat`; the template writes the special tokens itself."""
        return self.encode(self.chat(messages, add_generation_prompt, **values), add_special=False)

    def vocab_hash(self) -> str:
        """sha256 over the id -> token table: equal hashes mean interchangeable ids."""
        return self._vocab_hash

    @cached_property
    def _vocab_hash(self) -> str:
        table = sorted((index, token) for token, index in self.backend.get_vocab(with_added_tokens=True).items())
        return hashlib.sha256(json.dumps(table).encode()).hexdigest()

    @cached_property
    def _template(self) -> jinja2.Template:
        """The chat template, compiled once: that takes milliseconds, and every chat needs it."""
        return self._templates.from_string(self.chat_template or "")

    @cached_property
    def _templates(self) -> jinja2.Environment:
        """Templates come with the model, from strangers: they run in a sandbox."""
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        tags = ["jinja2.ext.loopcontrols", _generation_tag()]
        made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=tags)
        made.globals |= {"raise_exception": _raise, "strftime_now": lambda form: datetime.now().strftime(form)}
        made.filters["tojson"] = _to_json
        return made


class TextStream:
    """Text of ids that arrive a few at a time. The pieces add up to the decoding of all ids together.

    Ids are decoded from one push back, because a tokenizer may write the first token of a text unlike the others.
    (A sentencepiece tokenizer takes a character back when bytes that form none follow it; a stream cannot.)
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer, self._skip = tokenizer, skip_special
        self._ids: list[int] = []  # a window of the newest ids
        self._settled = 0  # ids at the head of the window whose text is out

    def push(self, ids: Sequence[int]) -> str:
        """The text that these ids add, less a character whose last bytes are still to come."""
        self._ids += ids
        text = self._tokenizer.decode(self._ids, self._skip)
        return "" if text.endswith("\N{REPLACEMENT CHARACTER}") else self._emit(text)

    def flush(self) -> str:
        """Whatever was held back; for the end of a sequence."""
        return self._emit(self._tokenizer.decode(self._ids, self._skip))

    def _emit(self, text: str) -> str:
        known = self._tokenizer.decode(self._ids[: self._settled], self._skip)
        if len(text) > len(known):  # else only special tokens came: the window must keep real text at its head
            self._ids, self._settled = self._ids[self._settled :], len(self._ids) - self._settled
        return text[len(known) :]


def _read_backend(folder: Path) -> tokenizers.Tokenizer:
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the package raises bare Exception
        raise ForedraftError(f"{folder / 'tokenizer.json'} cannot be read: {error}") from None


def _convert_backend(folder: Path) -> tokenizers.Tokenizer:
    """The tokenizer of a folder without tokenizer.json (a sentencepiece model, say), as transformers converts it."""
    try:
        from transformers import AutoTokenizer

        converted = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever went wrong in there, the folder has no tokenizer for us
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ForedraftError(f"{folder} has no tokenizer.json, and converting its tokenizer failed: {reason}") from None
    backend: tokenizers.Tokenizer | None = getattr(converted, "backend_tokenizer", None)
    if backend is None:
        raise ForedraftError(f"{folder} has no tokenizer.json, and its tokenizer has no fast form; add the file")
    return backend


def _read_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The file wins over the config; a config may hold several templates by name."""
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    return found


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _text(token: Any) -> str | None:
    """A special token is written as its text or as a record with its text."""
    return token.get("content") if isinstance(token, dict) else token


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    """Unlike jinja2's own filter: no HTML escapes."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _generation_tag() -> type[jinja2.ext.Extension]:
    """The tag of transformers that marks what the model writes itself: a scope of its own, and nothing else here."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class GenerationTag(Extension):
        tags = {"generation"}  # noqa: RUF012 - as the base class declares it

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    return GenerationTag


def _raise(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)
