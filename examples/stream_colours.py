"""Stream an answer and mark the tokens that were guessed ahead with brackets."""

from foredraft import LLM, Reason, SamplingParams

llm = LLM("smollm2")
prompt = llm.tokenizer.encode_chat(
    [{"role": "user", "content": "Repeat three times: the early bird catches the worm."}]
)
for chunk in llm.stream(prompt, SamplingParams(max_new_tokens=40)):
    for token, reason in zip(chunk.token_ids, chunk.reasons, strict=True):
        text = llm.tokenizer.decode([token])
        print(f"[{text}]" if reason is Reason.STANDARD else text, end="", flush=True)
print()
