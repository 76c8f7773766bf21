"""A verification rule of your own, and the proof that it is exact: test candidates against what is left of p.

Candidate y is accepted with probability p(y); what was refused is taken out of p for the candidates after it.
"""

from foredraft import LLM, Kind, Method, Purpose, SamplingParams, check_exact, node_rule


def one_by_one(node, careless=False):
    p = node.p.copy()
    for attempt, child in enumerate(node.children):
        if node.rng.flip(p[child.token], Purpose.ACCEPT, child.node, attempt):
            return node.accept(child)
        p[child.token] = 0.0
        p /= p.sum()
    return node.emit(node.rng.draw(node.p if careless else p, Purpose.OWN, node.index))


rule = node_rule("one-by-one", one_by_one, exact_for=(Kind.CHOSEN,))
wrong = node_rule("careless", lambda node: one_by_one(node, careless=True))  # no `exact_for`: declared lossy
print(f"distance to the target's distribution, by enumeration: {check_exact(rule, Kind.CHOSEN):.1e}")
print(f"of the careless rule, which may draw what it has refused: {check_exact(wrong, Kind.CHOSEN):.2f}")
llm = LLM("smollm2", method="prompt-lookup", dtype="fp32")
method = Method("lookup one by one", rule, llm.method.drafter)
params = SamplingParams(max_new_tokens=16, temperature=0.8, seed=1)
print(llm.generate("One two three, one two", params, method=method)[0].text)
