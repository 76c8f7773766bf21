"""A drafter in fifteen lines: propose the last token again. Wrong most of the time, and the text stays exact."""

from foredraft import LLM, Kind, SamplingParams
from foredraft.core.verify import find_rule
from foredraft.draft import Drafter
from foredraft.engine import Method
from foredraft.types import Topology
from foredraft.types.drafts import chains


class Stutter(Drafter):
    name, nodes, topology, kinds = "stutter", 2, Topology.CHAIN, frozenset({Kind.CHOSEN})

    def propose(self, sequences, rng):
        return chains([s.tokens[-1:] * s.budget.chain for s in sequences])


llm = LLM("smollm2", method="plain", dtype="fp32")
params = SamplingParams(max_new_tokens=24)
plain = llm.generate("The cat sat on", params)[0]
stutter = llm.generate("The cat sat on", params, method=Method("stutter", find_rule("sample-and-match"), Stutter()))[0]
print(stutter.text)
print("same tokens as plain decoding:", stutter.token_ids == plain.token_ids)
