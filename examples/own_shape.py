"""A shape of your own: a fan. The draft model's three top tokens side by side, each followed by nothing."""

from foredraft import LLM, Kind, SamplingParams, Topology, draft_model, trees


class Fan:
    kind, topology = Kind.CHOSEN, Topology.TREE
    nodes = reads = numbered = 3  # most nodes that it drafts, reads and numbers

    def grow(self, stepper, budgets, rng):
        _, top = stepper.root().top(self.nodes)  # [B, 1, 3] token ids, most likely first
        counts = [min(self.nodes, budget.nodes) for budget in budgets]
        drafts = [(row[0][:count], [-1] * count) for row, count in zip(top.tolist(), counts, strict=True)]
        return trees(drafts, self.kind, stepper.device)


llm = LLM("smollm2", method="plain", dtype="fp32")
params = SamplingParams(max_new_tokens=24)
plain = llm.generate("The cat sat on", params)[0]
fan = llm.generate("The cat sat on", params, method=draft_model(llm, "layers:4", Fan()))[0]
print(f"{fan.stats.accepted} drafted tokens accepted in {fan.stats.steps} passes")
print("same tokens as plain decoding:", fan.token_ids == plain.token_ids)
