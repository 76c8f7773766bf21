"""A drafter of your own: propose the last token again. Wrong most of the time, and the text stays exact."""

from foredraft import LLM, Drafter, Kind, Method, SamplingParams, Topology, chains, find_rule


class Stutter(Drafter):
    name, nodes = "stutter", 2
    kinds, topology = frozenset({Kind.CHOSEN}), Topology.CHAIN  # chosen, not drawn: sample-and-match is exact for it

    def propose(self, sequences, rng):
        return chains([s.tokens[-1:] * s.budget.chain for s in sequences])


llm = LLM("smollm2", method="plain", dtype="fp32")
params = SamplingParams(max_new_tokens=24)
plain = llm.generate("The cat sat on", params)[0]
stutter = llm.generate("The cat sat on", params, method=Method("stutter", find_rule("sample-and-match"), Stutter()))[0]
print(stutter.text)
print("same tokens as plain decoding:", stutter.token_ids == plain.token_ids)
