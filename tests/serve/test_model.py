"""The real default model behind a real server: the official client, curl, and the very ids of the model offline."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from foredraft import LLM, SamplingParams
from foredraft.serve.grammars.json_grammar import JsonGrammars

from .process import Process, serve

TOKENS = 8
ASKED = [f"What is {n} plus {n}?" for n in range(16)]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"enum": ["France", "Spain"]}},
    "required": ["city", "country"],
    "additionalProperties": False,
}
PLACE = [{"role": "user", "content": 'Complete: {"city": "Paris", "country": "France"} as JSON. {"city": "Paris"'}]


@pytest.fixture(scope="module")
def process() -> Iterator[Process]:
    with serve("smollm2", "--method", "suffix", "--slots", "16", "--max-length", "256") as running:
        yield running


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2", "plain", dtype="fp32", batch_size=16, max_length=256)


@pytest.fixture(scope="module")
def client(process: Process) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0)


def test_sixteen_clients_get_the_ids_of_the_model_offline(client: openai.OpenAI, llm: LLM) -> None:
    prompts = [llm.tokenizer.encode_chat([{"role": "user", "content": text}]) for text in ASKED]
    expected = [c.token_ids for c in llm.generate(prompts, SamplingParams(max_new_tokens=TOKENS))]

    def ask(text: str) -> list[int]:
        stream = client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": text}], temperature=0, max_tokens=TOKENS,
            stream=True, extra_body={"return_token_ids": True},
        )  # fmt: skip
        return [token for chunk in stream for token in (chunk.choices[0].model_extra or {}).get("token_ids", [])]

    with ThreadPoolExecutor(len(ASKED)) as pool:
        assert list(pool.map(ask, ASKED)) == expected


@pytest.mark.slow
def test_json_by_schema(client: openai.OpenAI, llm: LLM) -> None:
    """Drafted and not, the same document, and the one that the model writes offline within the grammar."""
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
    grammar = JsonGrammars(llm.tokenizer, llm.engine.executor.vocab_size, llm.target.eos_ids).of(SCHEMA)
    expected = llm.chat(PLACE, SamplingParams(max_new_tokens=40, grammar=grammar))
    texts, accepted = [], 0
    for speculation in ({"off": True}, {"method": "suffix"}, {"method": "suffix"}):
        answer = client.chat.completions.create(
            model="smollm2", messages=PLACE, temperature=0, max_tokens=40, response_format=wanted,  # type: ignore[arg-type]
            extra_body={"speculation": speculation},
        )  # fmt: skip
        texts.append(answer.choices[0].message.content)
        assert answer.usage is not None
        accepted += (answer.usage.model_extra or {})["speculation"]["accepted"]
    assert texts == [expected.text] * 3
    assert accepted > 0
    assert json.loads(expected.text)["country"] in ("France", "Spain")


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_curl(process: Process) -> None:
    body = {"model": "smollm2", "prompt": "One, two, three,", "max_tokens": 3, "temperature": 0}
    command = ["curl", "-sS", f"{process.url}/v1/completions", "-H", "Content-Type: application/json"]
    done = subprocess.run([*command, "-d", json.dumps(body)], capture_output=True, text=True, timeout=600)
    assert json.loads(done.stdout)["choices"][0]["text"].startswith(" four")
    streamed = subprocess.run(
        [*command, "-N", "-d", json.dumps(body | {"stream": True})], capture_output=True, text=True, timeout=600
    )
    assert streamed.stdout.rstrip().endswith("data: [DONE]")
