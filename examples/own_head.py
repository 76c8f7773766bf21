"""A head of your own: it adds the newest token's embedding to the target's last feature and lets the target's output
rows speak. Untrained here, so hardly anything is accepted, and the text stays exact.

`add_head("shift", Shift)` makes it known to the trainer; docs/train.md tells how to make the text to train on.
"""

import torch

from foredraft import LLM, RecurrentHead, SamplingParams, attach_head


class Shift(RecurrentHead):
    def __init__(self, target, spec, ids):
        super().__init__(target, spec, ids)
        self.gain = torch.nn.Parameter(torch.ones(spec.length, device=target.device))

    def step(self, state, embeds, depth):
        state = state + self.gain[depth] * embeds
        return state, state  # the next state, and the feature that predicts the token after this one


llm = LLM("smollm2", method="plain", dtype="fp32")
params = SamplingParams(max_new_tokens=24)
plain = llm.generate("The cat sat on", params)[0]
shift = llm.generate("The cat sat on", params, method=attach_head(llm, Shift))[0]
print(f"{shift.stats.accepted} of {shift.stats.drafted} drafted tokens accepted")
print("same tokens as plain decoding:", shift.token_ids == plain.token_ids)
