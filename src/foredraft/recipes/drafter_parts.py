"""How the methods of the table put their drafters together, `auto` excepted. Knows no cards and no names of methods.

Each function is the `parts` of a row: (factory, options with the row's defaults filled in, *, own parameters).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..control.exit_choice import ExitChoice
from ..control.lengths.base import Fixed
from ..control.lengths.predicted import FromStates, Predicted, PredictedOrConfident
from ..core.shapes.base import Chain, Shape
from ..core.verify import Rule
from ..draft import Drafter
from ..draft.cascades.relay import RelayDrafter
from ..draft.combine.fused import FusedDrafter
from ..draft.combine.length_control import LengthControlDrafter
from ..draft.neural.draft_model import ModelDrafter
from ..draft.neural.easyspec import EasySpecDrafter
from ..draft.neural.sorted_draft import SortedDrafter
from ..draft.retrieval.maxgram import MaxGram
from ..draft.retrieval.prompt_lookup import PromptLookup
from ..draft.retrieval.suffix import SuffixDrafter
from ..errors import UsageError, check_drafting
from ..runtime import FINAL
from .cost_profiles import costs_of
from .methods.other_tokenizers import check_way, foreign_model, translated
from .recipe import Options, Parts, PartsFactory, draft_executor, stopped

MakeParts = Callable[[PartsFactory, Options], Parts]
HEADS = ("eagle3", "eagle", "fastdraft", "mlp-speculator")  # the first that is there
BEST_HEADS = ("forerunner", *HEADS)  # for shapes that go by whole levels


def no_drafter(factory: PartsFactory, options: Options) -> Parts:
    return Parts()


def prompt_lookup(factory: PartsFactory, options: Options, *, max_ngram: int = 3) -> Parts:
    assert options.draft_length is not None
    check_drafting("method 'prompt-lookup'", max_ngram=max_ngram)
    return Parts(PromptLookup(options.draft_length, max_ngram))


def suffix(
    factory: PartsFactory,
    options: Options,
    *,
    per_match: float = 1.0,
    min_match: int = 1,
    min_chance: float = 0.1,
    shared_tokens: int = 100_000,
) -> Parts:
    assert options.draft_length is not None
    check_drafting("method 'suffix'", per_match=per_match)
    tree = options.shape == "tree"
    return Parts(SuffixDrafter(options.draft_length, per_match, min_match, min_chance, tree, shared_tokens))


def draft_model(factory: PartsFactory, options: Options, *, vocab: str = "auto") -> Parts:
    """vocab: how a drafter of another tokenizer is understood, by text or by the tokens that both know."""
    foreign = foreign_model(factory, options.drafter)
    check_way(vocab, foreign is not None)
    shape = factory.shape(options)
    made = _model(factory, options, shape) if foreign is None else translated(factory, foreign, shape, vocab)
    return Parts(stopped(made, shape))


def easyspec(factory: PartsFactory, options: Options, *, group: int = 4) -> Parts:
    """A draft model whose layers run in groups while it drafts."""
    shape = factory.shape(options)
    executor = factory.grouped(draft_executor(factory, options.drafter), group)
    return Parts(stopped(EasySpecDrafter(executor, shape, factory.target.executor.vocab_size, "easyspec"), shape))


def head(kind: str) -> MakeParts:
    """A trained head of this kind. Heads that need nothing more than a shape need no function of their own."""

    def parts(factory: PartsFactory, options: Options) -> Parts:
        ready = factory.head(kind, options.drafter, options.words)
        accept = (lambda: factory.head_that_stops(options.drafter)[1]) if kind == "fastdraft" else None
        shape = factory.shape(options, ready.longest, accept, kind)
        return Parts(stopped(ready.drafter(shape, kind), shape))

    return parts


def lantern(
    factory: PartsFactory,
    options: Options,
    *,
    k: int = 10,
    lam: float = 5.0,
    mass: float = 0.0,
    greedy: bool = False,
    codebook: str = "",
) -> Parts:
    """An EAGLE head under the relaxed rule of LANTERN++; with `mass`, its delta, under that of LANTERN."""
    name, budget = ("lantern", f"delta={mass}") if mass else ("lantern++", f"lam={lam}")
    text = f"{name}:k={k},{budget},greedy={str(greedy).lower()},codebook={codebook}"
    rule = factory.rule(text, None, None)  # before the head: whoever has no codebook needs no head either
    return replace(head("eagle")(factory, options), rule=rule)


def specdec(factory: PartsFactory, options: Options) -> Parts:
    """A fastdraft head with the head that predicts rejection."""
    ready, accept = factory.head_that_stops(options.drafter)
    shape = factory.shape(options, ready.longest, lambda: accept)
    return Parts(stopped(ready.drafter(shape, "specdec++"), shape))


def adaeagle(factory: PartsFactory, options: Options, *, path: float = 0.0) -> Parts:
    """An EAGLE chain as long as predicted; with `path`, longer while its probability is above that (AdaEAGLE-DDD)."""
    ready, predict = factory.head_with_length(options.drafter)
    reader = FromStates(FINAL, predict)
    shape = factory.shape(options, ready.longest)
    if path and options.stop is not None:
        raise UsageError("method 'adaeagle': path is a stop rule itself; leave one of path and stop out")
    if path and isinstance(shape, Chain):
        shape = replace(shape, stop=PredictedOrConfident(reader, path))
    rule = Fixed(shape.nodes) if path else Predicted(reader)
    return Parts(LengthControlDrafter(stopped(ready.drafter(shape, "adaeagle"), shape), rule, reader=reader))


def s2d(factory: PartsFactory, options: Options, *, sure: float = 0.5, exit: int = 0) -> Parts:
    """A nested drafter; `exit` is the deepest exit that may be used (1 = the first), 0 = chosen by what pays."""
    ready = factory.head("s2d", options.drafter, options.words)
    shape = factory.shape(options, ready.longest)
    made = ready.drafter(shape, "s2d")
    if isinstance(made, SortedDrafter):
        count = made.choice.exits
        if not 0 <= exit <= count:
            raise UsageError(f"this drafter has exits 1 to {count}; exit=0 chooses among them")
        made.choice = ExitChoice(count, costs_of(factory.target).seconds, only=exit - 1 if exit else None)
        made.threshold = sure
    return Parts(stopped(made, shape))


def relay(factory: PartsFactory, options: Options) -> Parts:
    """A model drafts the first half of the draft length, lookup continues for as many again."""
    assert options.draft_length is not None
    shape = factory.shape(replace(options, draft_length=-(-options.draft_length // 2)))
    first = stopped(_model(factory, options, shape), shape)
    return Parts(RelayDrafter(first, MaxGram(options.draft_length)))


def fused(factory: PartsFactory, options: Options) -> Parts:
    """Looked-up text grafted onto a model's tree."""
    return Parts(FusedDrafter([SuffixDrafter(), model_or_head(factory, options)]))


def model_or_head(
    factory: PartsFactory,
    options: Options,
    heads: Sequence[str] = HEADS,
    change: Callable[[Shape], Shape] | None = None,
) -> Drafter:
    """The drafter of the first of these heads that there is, or of the model --drafter names; its shape may change."""
    kind = factory.best_head(heads, options.drafter)
    ready = None if kind is None else factory.head(kind, options.drafter, options.words)
    shape = factory.shape(options, kind=kind) if ready is None else factory.shape(options, ready.longest, kind=kind)
    shape = shape if change is None else change(shape)
    member = _model(factory, options, shape) if ready is None or kind is None else ready.drafter(shape, kind)
    return stopped(member, shape)


def head_or_model(heads: Sequence[str] = HEADS, rule: Rule | None = None) -> MakeParts:
    """Drafts of the first of these heads there is, or of the head or model --drafter names, under a rule of its own."""

    def parts(factory: PartsFactory, options: Options) -> Parts:
        return Parts(model_or_head(factory, options, heads), rule)

    return parts


def no_words(options: Options) -> None:
    """A draft model writes with its whole vocabulary."""
    if options.words is not None:
        raise UsageError("words are chosen for trained heads, and this drafter is a model; leave the option words out")


def _model(factory: PartsFactory, options: Options, shape: Shape) -> ModelDrafter:
    no_words(options)
    executor = draft_executor(factory, options.drafter, reads=shape.reads)
    return ModelDrafter(executor, shape, factory.target.executor.vocab_size)
