"""A drafter that draws: two tokens from how often each token occurred in the text so far.

Drawn tokens come with the distribution that they were drawn from; the rule needs it to stay exact at any temperature.
"""

import torch

from foredraft import (
    LLM,
    DenseDistribution,
    Drafter,
    Kind,
    Method,
    Purpose,
    SamplingParams,
    TableDistributions,
    Topology,
    chain_batch,
    find_rule,
)  # fmt: skip


class Unigrams(Drafter):
    name, nodes, topology = "unigrams", 2, Topology.CHAIN
    kinds = frozenset({Kind.SAMPLED_WITHOUT_REPLACEMENT})  # a chain has one draw a place, so nothing is ever put back

    def __init__(self, vocab):
        self.vocab = vocab

    def propose(self, sequences, rng):
        counts = [torch.bincount(torch.tensor(s.tokens), minlength=self.vocab).float() for s in sequences]
        q = torch.stack([row / row.sum() for row in counts])
        places = [torch.full((len(sequences),), i) for i in range(self.nodes)]
        tokens = torch.stack([rng.draw(DenseDistribution(q), Purpose.DRAFT, place) for place in places], dim=1)
        lengths = tuple(min(self.nodes, s.budget.chain) for s in sequences)
        rows = q[:, None].expand(-1, self.nodes + 1, -1)  # the distribution after the root and after every node
        return chain_batch(tokens, lengths, Kind.SAMPLED_WITHOUT_REPLACEMENT, TableDistributions(rows))


llm = LLM("smollm2", method="plain", dtype="fp32")
method = Method("unigrams", find_rule("chain"), Unigrams(llm.target.executor.vocab_size))
params = SamplingParams(max_new_tokens=24, temperature=0.9, seed=3)
result = llm.generate("la la la la la la la la", params, method=method)[0]
print(result.text)
print(f"{result.stats.accepted} of {result.stats.drafted} drawn tokens accepted")
