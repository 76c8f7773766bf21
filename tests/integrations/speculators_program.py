"""A program for an environment with `speculators`: writes random heads with its own classes.

Reads one JSON job from stdin: folder, family (of the layer), sizes (of its config), more (of the head's config), words,
algorithm (eagle3 if absent, or peagle).
"""

import json
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    job = json.loads(sys.stdin.readline())
    torch: Any = import_module("torch")
    speculators: Any = import_module("speculators")
    kind = job.get("algorithm", "eagle3")
    heads: Any = import_module(f"speculators.models.{kind}")
    name = {"eagle3": "Eagle3", "peagle": "PEagle"}[kind]
    transformers: Any = import_module("transformers")
    proposals: Any = import_module("speculators.proposals.greedy")
    layer = transformers.AutoConfig.for_model(job["family"], **job["sizes"])
    verifier = speculators.VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])
    method = proposals.GreedyTokenProposalConfig(speculative_tokens=3)
    how = speculators.SpeculatorsConfig(
        algorithm=kind, proposal_methods=[method], default_proposal_method="greedy", verifier=verifier
    )
    config = getattr(heads, f"{name}SpeculatorConfig")(
        transformer_layer_config=layer, draft_vocab_size=len(job["words"]), speculators_config=how, **job["more"]
    )
    config.transformer_layer_config._attn_implementation = "eager"
    torch.manual_seed(5)
    model = getattr(heads, f"{name}DraftModel")(config)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape) * 0.2 + (value.ndim == 1) * 1.0)
        words = torch.tensor(job["words"])
        model.d2t.copy_(words - torch.arange(len(words)))
        model.t2d.zero_()
        model.t2d[words] = True
    model.save_pretrained(job["folder"])


main()
