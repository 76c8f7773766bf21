"""One prompt, three ways of drafting, the same text: how many passes does each need?"""

from foredraft import LLM, SamplingParams

PROMPT = "List the days of the week, then list them again in capital letters."

llm = LLM("smollm2", method="plain", dtype="fp32")
ids = llm.tokenizer.encode_chat([{"role": "user", "content": PROMPT}])
for name in ("plain", "prompt-lookup", "suffix"):
    result = llm.generate([ids], SamplingParams(max_new_tokens=48), method=llm.build(name))[0]
    print(f"{name:<14} {result.stats.steps:>3} passes for {len(result.token_ids)} tokens")
