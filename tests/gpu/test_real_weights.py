"""Real weights on CUDA: the default model and judge-demo in float32 write the ids of the CPU, plain and drafted.

Their files must be there already (in the cache, see `FOREDRAFT_HOME`): a GPU machine may reach no registry.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch

from foredraft.errors import ForedraftError
from foredraft.models import MODELS
from foredraft.models.load.folders import cache_home, is_ready
from foredraft.models.load.names import TUNED, tuned_folder
from foredraft.recipes import LLM
from foredraft.runtime.cuda.paged_cache import KVOptions
from foredraft.types import SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
QUESTIONS = (
    "Write a Python function that reverses a list.",
    "What is the capital of France? Explain its history.",
    "Repeat after me: one two three one two three one two three.",
)
MOST = 160  # new tokens: texts cross a page


def needed(name: str) -> None:
    """Skip where the model would have to be fetched, or was not trained."""
    model = TUNED.get(name, name)
    file = cache_home() / "downloads" / MODELS[model].source.file
    if not file.exists() and not is_ready(cache_home() / "models" / model):
        pytest.skip(f"the files of {model} are not in {cache_home()}")
    try:
        tuned_folder(name)
    except ForedraftError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def exact_products() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")


def answers(name: str, device: str, method: str, **options: object) -> list[list[int]]:
    llm = LLM(name, method, dtype="fp32", device=device, batch_size=3, max_length=512, **options)  # type: ignore[arg-type]
    prompts = [llm.tokenizer.encode_chat([{"role": "user", "content": question}]) for question in QUESTIONS]
    done = llm.generate(prompts, SamplingParams(max_new_tokens=MOST))
    assert device == "cpu" or llm.target.executor.capturing is not None
    return [each.token_ids for each in done]


@cache
def reference(name: str) -> list[list[int]]:
    return answers(name, "cpu", "plain")


@pytest.mark.parametrize("method", ["plain", "suffix", "draft-model", "auto"])
@pytest.mark.parametrize("name", ["smollm2", "judge-demo"])
def test_ids_are_those_of_the_cpu(name: str, method: str) -> None:
    needed(name)
    assert answers(name, "cuda", method) == reference(name)


@pytest.mark.parametrize("method", ["suffix", "draft-model"])
def test_in_eight_bits_speculation_writes_what_plain_decoding_does(method: str) -> None:
    needed("smollm2")
    narrow = KVOptions(dtype="fp8")
    assert answers("smollm2", "cuda", method, kv_cache=narrow) == answers("smollm2", "cuda", "plain", kv_cache=narrow)
