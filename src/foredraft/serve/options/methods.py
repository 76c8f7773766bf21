"""Methods that clients may ask for: built once at the start, varied per request without building anything again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from threading import Lock

from ...core.verify import Rule, default_rule, find_rule
from ...draft import Drafter, WrappedDrafter
from ...draft.combine.given import GivenDrafter
from ...draft.combine.guarded import GuardedDrafter, OnLoss
from ...draft.online.online_drafter import OnlineDrafter
from ...engine import Method
from ...errors import UsageError, unknown_name
from ...recipes import LLM, RECIPES, Options
from ...recipes.spelling import one_spelling
from ...types import Kind
from ..api.api_errors import ApiError, bad_request
from ..api.schema import Speculation
from .judges import JUDGE, ServedJudge

_KEPT = 64  # variants remembered; requests of one variant are verified together


class ServedMethods:
    """The served method, plain decoding, and whatever else the operator allows. Drafters are guarded.

    May be asked from several threads.
    """

    def __init__(self, llm: LLM, allowed: tuple[str, ...] | None, lossy: bool, on_loss: OnLoss) -> None:
        self._lossy, self._on_loss = lossy, on_loss
        self.exact_only = False  # whether lossy rules are switched off, whoever asks for them
        self.judge = ServedJudge.of(llm, lossy)
        self.served = self._guard(llm.method)
        names = allowed if allowed is not None else untrained()
        others = [name for name in dict.fromkeys(("plain", *names)) if name != self.served.name]
        built = {name: self._guard(replace(llm.build(name, _store_of(llm, name)), name=name)) for name in others}
        self._methods = built | {self.served.name: self.served}
        self.plain = self._methods["plain"]
        self._variants: OrderedDict[tuple[object, ...], Method] = OrderedDict()
        self._lock = Lock()

    def _guard(self, method: Method) -> Method:
        if method.drafter is None:
            return method
        drafter = method.drafter
        if drafter.kinds == {Kind.CHOSEN}:
            drafter = GivenDrafter(drafter)  # what a request brings itself goes first
        return replace(method, drafter=GuardedDrafter(drafter, self._on_loss))

    @property
    def names(self) -> list[str]:
        return list(self._methods)

    @property
    def online(self) -> list[OnlineDrafter]:
        """Drafters that learn, each once."""
        inside = [_innermost(method.drafter) for method in self.methods]
        return list({id(each): each for each in inside if isinstance(each, OnlineDrafter)}.values())

    @property
    def methods(self) -> list[Method]:
        return list(self._methods.values())

    def choose(self, wanted: Speculation | None, constrained: bool) -> Method:
        """The method that a request runs with. A grammar needs a lossless rule and gets the drafter's best one."""
        wanted = wanted or Speculation()
        base = self.plain if wanted.off else self._base(wanted.method)
        rule = base.rule if base.drafter is None else self._rule(base, wanted)
        if constrained and not rule.exact and base.drafter is not None:
            if wanted.rule is not None:
                raise bad_request(f"rule {rule.name!r} is lossy and cannot obey a response_format", "speculation.rule")
            rule = default_rule(base.drafter.kinds, base.drafter.topology)
        made = self._variant(base, rule, wanted.draft_length)
        return self.exact(made) if self.exact_only else made

    def exact(self, method: Method) -> Method:
        """The same drafter under its best lossless rule."""
        if method.drafter is None or not method.rule.lossy:
            return method
        return self._variant(method, default_rule(method.drafter.kinds, method.drafter.topology), method.draft_length)

    def _base(self, name: str | None) -> Method:
        if name is None:
            return self.served
        name = one_spelling(name)
        if name not in self._methods:
            message = str(unknown_name("method", name, self._methods))
            if name.partition(":")[0] in RECIPES:
                message = f"method {name!r} is not served here; choose from {', '.join(self._methods)}"
            raise bad_request(message, "speculation.method", "method_not_allowed")
        return self._methods[name]

    def _rule(self, base: Method, wanted: Speculation) -> Rule:
        if wanted.rule is None and wanted.threshold is None:
            return base.rule
        name = wanted.rule or base.rule.name.partition(":")[0]
        if wanted.threshold is not None:
            if ":" in name:
                raise bad_request("the rule has its parameters already; leave the threshold out", "speculation")
            name = f"{name}:{_written(wanted.threshold)}"
        try:
            rule = self._find(name)
        except UsageError as error:
            blamed = "rule" if wanted.threshold is None else "threshold"
            raise bad_request(str(error), f"speculation.{blamed}") from None
        if rule.lossy and not (self._lossy or base.rule.lossy):
            message = f"rule {rule.name!r} is lossy, and the operator allows lossless ones only (--allow-lossy)"
            raise ApiError(403, message, "rule_not_allowed", "speculation.rule")
        return rule

    def _find(self, name: str) -> Rule:
        base, _, params = name.partition(":")
        if base != JUDGE:
            return find_rule(name)
        if self.judge is None:
            raise UsageError("no judge is served here; choose another rule")
        return self.judge.rule(params)

    def _variant(self, base: Method, rule: Rule, length: int | None) -> Method:
        """The same drafter under another rule or a shorter length. Asked for again, it is the same object."""
        if rule is base.rule and length is None:
            return base
        key = (base.name, id(base.drafter), rule.name, length)  # one from before a reload may ask too
        with self._lock:
            made = self._variants.get(key) or replace(base, rule=rule, draft_length=length or base.draft_length)
            self._variants[key] = made
            self._variants.move_to_end(key)
            if len(self._variants) > _KEPT:
                self._variants.popitem(last=False)
            return made


def _innermost(drafter: Drafter | None) -> Drafter | None:
    while isinstance(drafter, WrappedDrafter):
        drafter = drafter.inner
    return drafter


def _written(threshold: float) -> str:
    """Every digit of it; rules that count want whole numbers without a point."""
    return str(int(threshold)) if threshold.is_integer() else repr(threshold)


def _store_of(llm: LLM, method: str) -> Options:
    """The store that the operator serves, for every method that looks things up in one."""
    recipe = RECIPES.get(method.partition(":")[0])
    return Options(store=llm.options.store if recipe is not None and recipe.takes_store else None)


def untrained() -> tuple[str, ...]:
    """Methods that need no weights and no texts, and so cost nothing to serve."""
    return tuple(
        name for name, r in RECIPES.items() if r.kind is None and not r.takes_drafter and r.card.needs != "store"
    )
