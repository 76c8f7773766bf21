"""Our thin tokenizer against transformers', its chat templates, and text that streams."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from foredraft.errors import ForedraftError, UsageError
from foredraft.models import TextStream, Tokenizer
from foredraft.models.load.vocabulary import Role, Vocabulary, build

TEXTS = [
    "",
    "Hello, world! It's 12:30.",
    "\n\n1. one\n\n2. two   3",
    "def f(x):\n\treturn x ** 2  # a comment\r\n",
    "naïve café — 東京 🎉👩‍👩‍👧 Ωμέγα \u0000 \ufffd",
    "<|im_start|>user\nhi<|im_end|>\n",
]
CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\n"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
]


@cache
def default(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


@cache
def reference(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS)
def test_agrees_with_transformers(smollm2: Path, text: str) -> None:
    ours, theirs = default(smollm2), reference(smollm2)
    ids = ours.encode(text)
    assert ids == theirs.encode(text)
    assert ours.decode(ids, skip_special=False) == theirs.decode(ids) == text
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("prompt", [True, False])
def test_chats_agree_with_transformers(smollm2: Path, messages: list[dict[str, str]], prompt: bool) -> None:
    ours, theirs = default(smollm2), reference(smollm2)
    text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    assert ours.chat(messages, prompt) == text
    assert (
        ours.encode_chat(messages, prompt)
        == theirs.apply_chat_template(messages, add_generation_prompt=prompt)["input_ids"]
    )


def test_default_model_special_tokens(smollm2: Path) -> None:
    tokenizer = default(smollm2)
    assert tokenizer.encode("<|im_start|><|im_end|>") == [1, 2]
    assert tokenizer.eos_token_ids == (2,) and tokenizer.bos_token_id == 1 and tokenizer.vocab_size == 49152
    assert tokenizer.encode("Hi")[0] not in (1, 2), "SmolLM2 wants no start token"


def test_digits_are_cut_as_the_model_was_trained(smollm2: Path) -> None:
    """The GGUF file names the pre-tokeniser; ignoring it, as transformers does, breaks the blank line before '1'."""
    tokenizer = default(smollm2)
    blank = tokenizer.encode("\n\n")
    assert len(blank) == 1 and tokenizer.encode("\n\n1")[:1] == blank


def test_vocab_hash(smollm2: Path) -> None:
    assert default(smollm2).vocab_hash() == Tokenizer.from_folder(smollm2).vocab_hash()
    assert default(smollm2).vocab_hash() != Tokenizer(toy()).vocab_hash()


@pytest.mark.parametrize("kind", ["default", "sentencepiece"])
def test_streamed_pieces_add_up(smollm2: Path, kind: str) -> None:
    tokenizer = default(smollm2) if kind == "default" else Tokenizer(toy())
    rng = random.Random(5)
    for text in [*TEXTS, " a ab  b", "é東🎉"]:
        ids = tokenizer.encode(text)
        for _ in range(5):
            assert "".join(streamed(tokenizer, ids, rng)) == tokenizer.decode(ids)
    for _ in range(50 if kind == "default" else 0):  # any ids, so that bytes need not form characters
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(30)]
        assert "".join(streamed(tokenizer, ids, rng)) == tokenizer.decode(ids)


def streamed(tokenizer: Tokenizer, ids: list[int], rng: random.Random) -> list[str]:
    stream, pieces, place = TextStream(tokenizer), [], 0
    while place < len(ids):
        step = rng.randint(0, 4)
        pieces.append(stream.push(ids[place : place + step]))
        place += step
    return [*pieces, stream.flush()]


def test_half_characters_are_held_back(smollm2: Path) -> None:
    tokenizer = default(smollm2)
    stream, ids = TextStream(tokenizer), tokenizer.encode("a 🎉 b")
    pieces = [stream.push([i]) for i in ids]
    assert len(ids) > 4 and "".join(pieces) == "a 🎉 b"
    assert not any("\ufffd" in piece for piece in pieces)


def toy() -> Any:
    """A sentencepiece-like vocabulary: specials, bytes, and a few pieces."""
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    pieces = ["<unk>", "<s>", "</s>", *bytes_, "▁", "a", "b", "▁a", "ab", "▁ab"]
    roles = [Role.UNKNOWN, Role.CONTROL, Role.CONTROL, *[Role.BYTE] * 256, *[Role.NORMAL] * 6]
    scores = [0.0] * 259 + [-9.0, -9.0, -9.0, -2.0, -1.0, -3.0]
    return build(Vocabulary("llama", pieces, roles, scores=scores, bos=1, eos=2, unknown=0, add_bos=True))


def test_many_texts_at_once_and_a_template_that_is_compiled_once(
    smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, compiled = Tokenizer.from_folder(smollm2), []
    assert tokenizer.encode_many(TEXTS) == [tokenizer.encode(text) for text in TEXTS]
    make = tokenizer._templates.from_string
    monkeypatch.setattr(tokenizer._templates, "from_string", lambda text: compiled.append(text) or make(text))
    assert len({tokenizer.chat([{"role": "user", "content": str(i)}]) for i in range(3)}) == 3
    assert compiled == [tokenizer.chat_template]


def test_texts_are_neither_cut_nor_filled_up_whatever_the_file_was_saved_with(tmp_path: Path) -> None:
    """Whoever trains a model with padded batches saves its tokenizer with them; transformers ignores both."""
    saved, texts = toy(), ["ab a b", "a"]
    wanted = [saved.encode(text).ids for text in texts]
    saved.enable_truncation(3)
    saved.enable_padding(length=8)
    saved.save(str(tmp_path / "tokenizer.json"))
    read = Tokenizer.from_folder(tmp_path)
    assert [read.encode(text) for text in texts] == read.encode_many(texts) == wanted
    assert read.encode("ab " * 3000) == toy().encode("ab " * 3000).ids


def test_a_text_without_tokens_among_many_is_named() -> None:
    import tokenizers

    lacking = Tokenizer(tokenizers.Tokenizer(tokenizers.models.Unigram([("a", -1.0)], None)))
    for read in (lambda: lacking.encode("b"), lambda: lacking.encode_many(["a", "b"])):
        with pytest.raises(UsageError, match="no token for something in 'b'"):
            read()


def test_sentencepiece_merges_by_score() -> None:
    tokenizer = Tokenizer(toy())
    pieces = {v: k for k, v in tokenizer.backend.get_vocab().items()}
    assert [pieces[i] for i in tokenizer.encode("ab a b")] == ["<s>", "▁ab", "▁a", "▁", "b"]
    assert tokenizer.decode(tokenizer.encode("ab é")) == "ab é"


@pytest.mark.parametrize("words", ["llama-bpe", "tekken"])
def test_words_that_are_pieces_stay_whole(words: str) -> None:
    """As in llama.cpp and the models' own tokenizers, whatever order of merges would have led elsewhere."""
    pieces, merges = ["a", "b", "c", "ab", "bc", "abc"], ["b c", "a b", "ab c"]
    assert build(Vocabulary("gpt2", pieces, [1] * 6, merges, words=words)).encode("abc").ids == [5]


def test_unknown_kinds_of_vocabulary() -> None:
    with pytest.raises(ForedraftError, match="'bert' are not supported"):
        build(Vocabulary("bert", [], []))
    with pytest.warns(UserWarning, match="unknown pre-tokeniser 'new'"):
        build(Vocabulary("gpt2", ["a"], [1], words="new"))
    with pytest.raises(ForedraftError, match="a piece twice"):
        build(Vocabulary("gpt2", ["a", "a"], [1, 1]))


def test_templates_in_the_config_and_their_errors(tmp_path: Path) -> None:
    toy().save(str(tmp_path / "tokenizer.json"))
    plain = Tokenizer.from_folder(tmp_path)
    assert plain.eos_token_ids == ()
    with pytest.raises(UsageError, match="no chat template"):
        plain.chat(CHATS[0])
    template = (
        "{% if messages|length > 1 %}{{ raise_exception('one only') }}{% endif %}{{ messages|tojson }}{{ eos_token }}"
    )
    config = {"eos_token": {"content": "</s>"}, "chat_template": [{"name": "default", "template": template}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.chat([{"role": "é"}]) == '[{"role": "é"}]</s>'
    assert tokenizer.eos_token_ids == (2,)
    with pytest.raises(UsageError, match="refuses these messages: one only"):
        tokenizer.chat(CHATS[2])


def test_a_template_that_stumbles_over_messages_gives_one_line() -> None:
    template = "{% for m in messages %}{{ bos_token + m['content'] }}{% endfor %}"
    tokenizer = Tokenizer(toy(), {"bos_token": "<s>"}, template)
    for content in (None, [{"type": "text", "text": "x"}], 3):
        with pytest.raises(UsageError, match=r"refuses these messages: .*str"):
            tokenizer.chat([{"role": "user", "content": content}])
    assert tokenizer.chat([{"role": "user", "content": "x"}], bos_token="<b>") == "<b>x"


def test_templates_that_mark_what_the_model_writes() -> None:
    """As transformers has it: the marked part is written as it stands, and what is set in there stays in there."""
    template = (
        "{% set x = 1 %}{% for m in messages %}{{ m.role }}: {% generation %}{% set x = 2 %}{{ m.content }}{{ x }}"
        "{% endgeneration %}{{ x }}\n{% endfor %}"
    )
    assert Tokenizer(toy(), chat_template=template).chat(CHATS[2]) == "user: a21\nassistant: b21\nuser: c21\n"


def test_broken_and_missing_tokenizers(tmp_path: Path) -> None:
    with pytest.raises(ForedraftError, match=r"has no tokenizer\.json") as error:
        Tokenizer.from_folder(tmp_path)
    assert "\n" not in str(error.value)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ForedraftError, match="cannot be read"):
        Tokenizer.from_folder(tmp_path)


def test_folders_without_tokenizer_json_go_through_transformers(tmp_path: Path) -> None:
    """GPT-2's own pair of files, which only transformers reads."""
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    assert Tokenizer.from_folder(tmp_path).encode("aab") == [0, 2]
