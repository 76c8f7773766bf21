"""The pair to show judges on: what its batches teach, a miniature that really learns, and the name that it goes by."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
import torch

from foredraft import LLM, SamplingParams
from foredraft.errors import ForedraftError, UsageError
from foredraft.judge.fit.batch_writer import BatchWriter
from foredraft.judge.fit.batches import DRAFTER, TARGET, Manner, ProblemBatches, Row, Text, compose
from foredraft.judge.fit.demo_pair import PairOrder, drafter_model, target_model, train_pair
from foredraft.judge.fit.lora_trainer import LoraModel, LoraPlan, LoraTrainer
from foredraft.judge.labels.token_labels import ask
from foredraft.judge.problems.families import FAMILIES, draw
from foredraft.judge.problems.phrases import VOICES
from foredraft.judge.problems.problem import MEND
from foredraft.models import Tokenizer, resolve
from foredraft.models.heads import read_spec, read_weights, save_head
from foredraft.models.heads.delta import describe, whole_weights
from foredraft.models.layers.lora import Delta
from foredraft.models.load.names import TUNED, shipped_folder
from foredraft.recipes.loading import Place, load
from foredraft.recipes.trained import find_head
from foredraft.train.training_loop import Report
from tests.train import toys

from . import small


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(resolve("smollm2"))


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.setitem(FAMILIES, small.FAMILY, small.digits)
    return (small.FAMILY,)


def test_lessons_without_slips_are_right_and_taught() -> None:
    chance = random.Random(2)
    for problem in draw(70, 5):
        text = compose(problem, chance, Manner(slip=0.0))
        assert problem.check(text.text).whole and not text.silent


@pytest.mark.parametrize("mended", [0.0, 1.0])
def test_a_slip_is_taught_and_mended_or_followed(mended: float, tokenizer: Tokenizer) -> None:
    """Every token is taught. What is mended leads to the right answer, what is not mostly to another."""
    batches = ProblemBatches(tokenizer, tokenizer.eos_token_ids, Manner(slip=1.0, mended=mended))
    chance, right = random.Random(0), 0
    for problem in draw(35, 3):
        text = compose(problem, chance, batches.manner)
        assert (MEND in text.text) == (mended == 1.0) and not problem.check(text.text).whole
        assert all(row_of(batches, text).taught)
        right += problem.solved(text.text)
    assert right == 35 if mended else right <= 10


def test_slips_are_as_frequent_as_they_should_be() -> None:
    chance, slipped, results = random.Random(1), 0, 0
    for problem in draw(300, 3):
        results += sum(bool(place.errors) for place in problem.places)
        slipped += compose(problem, chance, Manner(slip=0.2, mended=1.0)).text.count(MEND)
    assert 0.17 < slipped / results < 0.23


def row_of(batches: ProblemBatches, text: Text) -> Row:
    made = batches.tokenizer.backend.encode(text.text, add_special_tokens=False)
    return batches._row([], text, made, batches._others([text])[0])


def test_strange_wording_is_read_and_the_own_one_is_taught_where_it_is_chosen(tokenizer: Tokenizer) -> None:
    """Every token is taught as it stands, but where a phrase is chosen: there the own favourite's first token is."""
    batches = ProblemBatches(tokenizer, tokenizer.eos_token_ids, Manner(slip=0.0, strange=1.0, share=(1.0, 1.0)))
    for problem in draw(20, 13):
        text = compose(problem, random.Random(1), batches.manner)
        assert text.text == problem.write(random.Random(1), DRAFTER.style) and not text.silent
        free = [place for place in problem.places if place.free]
        assert [phrase for _, phrase in text.instead] == [place.phrases[0] for place in free]
        row, chosen = row_of(batches, text), set()
        for at, phrase in text.instead:
            own = tokenizer.encode(text.text[:at] + phrase, add_special=False)
            place = next(i for i in range(len(own)) if tokenizer.decode(row.ids[: i + 1])[:at] == text.text[:at])
            place += tokenizer.decode(row.ids[: place + 1]) == text.text[:at]
            chosen.add(place)
            assert not row.taught[place] or row.right[place] == own[place]
        assert sum(row.taught) >= len(row.taught) - 1
        assert all(row.right[i] == token for i, token in enumerate(row.ids) if i not in chosen)
        assert any(row.right[i] != row.ids[i] for i in chosen)


def test_a_right_result_is_never_followed_by_a_mend(tokenizer: Tokenizer) -> None:
    """Whatever words a text is in, what is taught after a right result is how the phrase goes on."""
    comma = tokenizer.encode(MEND, add_special=False)[0]
    batches = ProblemBatches(tokenizer, tokenizer.eos_token_ids, Manner(slip=0.0, strange=1.0))
    for problem in draw(20, 14):
        text = compose(problem, random.Random(2), batches.manner)
        row = row_of(batches, text)
        assert MEND not in text.text
        assert all(new == old for new, old in zip(row.right, row.ids, strict=True) if comma in (new, old))


def test_a_text_keeps_its_share_of_favourite_words() -> None:
    """Shares differ from text to text, between the given ones; within a text every place is chosen by itself."""
    chance, shares = random.Random(4), []
    for problem in draw(200, 8, ("bills",)):
        text = compose(problem, chance, Manner(slip=0.0, share=(0.5, 0.98))).text
        free = [place for place in problem.places if place.free]
        shares.append(sum(place.phrases[0] in text for place in free) / len(free))
    assert min(shares) < 0.6 and max(shares) == 1.0 and 0.75 < sum(shares) / 200 < 0.92


def test_a_drafter_is_not_taught_to_choose_other_words(tokenizer: Tokenizer) -> None:
    """The token that opens a strange phrase is silent; how the phrase goes on is taught."""
    other = Manner(DRAFTER.style, (0.0, 0.0), slip=0.0, choose=False)
    batches = ProblemBatches(tokenizer, tokenizer.eos_token_ids, other)
    text = compose(draw(1, 3)[0], random.Random(1), batches.manner)
    taught = row_of(batches, text).taught
    silent = sum(not on for on in taught)
    assert not taught[0] and 0.1 * len(taught) < silent < 0.4 * len(taught)
    own = compose(draw(1, 3)[0], random.Random(1), Manner(DRAFTER.style, (1.0, 1.0), slip=0.0, choose=False))
    assert not own.silent


def test_a_step_reads_prompts_as_the_engine_gets_them(tokenizer: Tokenizer) -> None:
    batches = ProblemBatches(tokenizer, tokenizer.eos_token_ids, TARGET, seed=4)
    problems = draw(14, 8)
    assert batches.prompts(problems) == [ask(tokenizer, problem.question) for problem in problems]
    parts = batches.step(3, 150)
    assert [len(part.ids) for part in parts] == [128, 22]
    again = ProblemBatches(tokenizer, tokenizer.eos_token_ids, TARGET, seed=4).step(3, 150)
    assert all(torch.equal(a.ids, b.ids) and torch.equal(a.taught, b.taught) for a, b in zip(parts, again, strict=True))
    other = batches.step(4, 150)
    assert not torch.equal(other[0].ids[:, :64], parts[0].ids[:, :64])
    for part in parts:
        assert not part.taught[:, 0].any() and part.taught.any(dim=1).all()
        last = part.taught.long().cumsum(1).argmax(1)
        assert (part.ids[torch.arange(len(part.ids)), last] == batches.closing).all()


@pytest.mark.slow
def test_processes_write_the_same_batches(tokenizer: Tokenizer) -> None:
    batches = ProblemBatches(tokenizer, tokenizer.eos_token_ids, TARGET, seed=4)
    apart, beside = BatchWriter(batches, 20, processes=2), BatchWriter(batches, 20)
    try:
        for step in (0, 1, 2, 7):
            for one, other in zip(apart.step(step), beside.step(step), strict=True):
                assert torch.equal(one.ids, other.ids) and torch.equal(one.taught, other.taught)
    finally:
        apart.close()
        beside.close()


def test_the_drafters_vocabulary_holds_what_answers_need(tokenizer: Tokenizer) -> None:
    """The shipped head lacks some; with the list of words nothing that fresh problems need is missing."""
    batches = ProblemBatches(tokenizer, tokenizer.eos_token_ids, DRAFTER)
    shipped = set(read_weights(shipped_folder("smollm2/fastdraft"))["ids"].tolist())
    chance, needed = random.Random(1), set()
    for problem in draw(1400, 77, voices=VOICES):
        needed.update(tokenizer.encode(problem.write(chance, 1, 0.5), add_special=False))
    assert needed - shipped
    words = set(batches.words())
    assert {tokenizer.decode([one]) for one in needed - shipped - words} == set()
    assert len(words) < 500  # the tasks' own words, not a copy of the vocabulary


def plans(steps: int) -> dict[str, LoraPlan]:
    target = LoraPlan(steps, rows=32, lr=4e-3, try_every=10**6, tries=40)
    return {"target": target, "drafter": LoraPlan(steps, rows=32, lr=4e-3, try_every=20, tries=40, goal=0.4)}


def test_a_miniature_learns(tmp_path: Path, digits: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """From random weights to a target that solves nearly everything and a drafter that stopped at its goal; the pair
    then loads by name, writes in its two styles, and drafts for itself without a change to the text."""
    model = small.make_folder(tmp_path / "model")
    news: list[tuple[str, Report]] = []
    order = PairOrder(
        tmp_path / "judge-demo", rank=16, drafter_rank=16, model=str(model), drafter_base="layers:1", families=digits,
        final_tries=100, dtype="fp32", device="cpu", **plans(220),
    )  # fmt: skip
    cards = train_pair(order, lambda part, one: news.append((part, one)))
    assert cards["target"]["solved"]["all"] >= 0.9
    assert cards["drafter"]["solved"]["all"] >= 0.3 and cards["drafter"]["steps"] < 220
    assert not list((tmp_path / "judge-demo").glob("*.pt")) and {part for part, _ in news} == {"target", "drafter"}
    assert train_pair(order) == {"target": {"kept": True}, "drafter": {"kept": True}}

    monkeypatch.setitem(TUNED, "judge-demo", str(model))
    monkeypatch.setenv("FOREDRAFT_WEIGHTS", str(tmp_path))
    llm = LLM("judge-demo", "plain", dtype="fp32", device="cpu", batch_size=8, max_length=128)
    problems, params = draw(60, 3, digits), SamplingParams(max_new_tokens=60)
    prompts = [ask(llm.tokenizer, problem.question) for problem in problems]
    plain = llm.generate(prompts, params)
    right = sum(p.solved(done.text.removesuffix(small.END)) for p, done in zip(problems, plain, strict=True))
    assert right >= 54
    drafted = llm.generate(prompts, params, method="fastdraft")
    assert [d.token_ids for d in drafted] == [d.token_ids for d in plain]
    assert sum(d.stats.steps for d in drafted) < 0.8 * sum(d.stats.steps for d in plain)
    drafter, _ = drafter_model(order, load(str(model), Place("fp32", "cpu", 1, 128, packed=False)))
    drafter.delta.fill(read_weights(tmp_path / "judge-demo" / "drafter"))
    written = drafter.solve(problems)
    assert sum(text.startswith("Well, ") for text in written) >= 45
    assert sum(done.text.startswith(("First, ", "So ")) for done in plain) >= 45


def test_training_that_was_cut_off_goes_on(tmp_path: Path, digits: tuple[str, ...]) -> None:
    model = small.make_folder(tmp_path / "model")
    order = PairOrder(tmp_path / "pair", model=str(model), families=digits, rank=4, dtype="fp32", device="cpu")

    def trainer(name: str, steps: int, lr: float = 1e-2) -> LoraTrainer:
        made, _ = target_model(order, load(str(model), Place("fp32", "cpu", 1, 128, packed=False)))
        return LoraTrainer(made, LoraPlan(steps, rows=4, lr=lr, save_seconds=0.0), tmp_path / f"{name}.pt", [])

    whole = trainer("whole", 6)
    whole.run()

    class Cut(Exception):
        pass

    def cut(report: Report) -> None:
        if report.step == 4:  # its third step is the last that was saved
            raise Cut

    with pytest.raises(Cut):
        trainer("cut", 6).run(cut)
    rest = trainer("cut", 6)
    seen: list[int] = []
    rest.run(lambda report: seen.append(report.step))
    assert seen == [4, 5, 6]
    factors = rest.model.delta.factors()
    assert all(torch.equal(value, factors[name]) for name, value in whole.model.delta.factors().items())
    with pytest.raises(ForedraftError, match="belongs to another run"):
        trainer("cut", 8, lr=1e-3).run()


def test_weights_that_are_no_numbers_are_not_saved(tmp_path: Path, digits: tuple[str, ...]) -> None:
    model = small.make_folder(tmp_path / "model")
    order = PairOrder(
        tmp_path / "pair", LoraPlan(8, rows=4, lr=1e30, save_seconds=0.0), model=str(model), families=digits, rank=4,
        parts=("target",), dtype="fp32", device="cpu",
    )  # fmt: skip
    with pytest.raises(ForedraftError, match=r"no numbers? any more; give a lower --lr"):
        train_pair(order)
    assert not (tmp_path / "pair" / "target").exists()


def test_a_part_that_was_cut_off_while_it_was_measured_is_measured_again(
    tmp_path: Path, digits: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small.make_folder(tmp_path / "model")
    order = PairOrder(
        tmp_path / "pair", LoraPlan(3, rows=4, tries=2), model=str(model), families=digits, rank=4, parts=("target",),
        final_tries=4, dtype="fp32", device="cpu",
    )  # fmt: skip

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LoraModel, "solved", killed)
        train_pair(order)
    assert (tmp_path / "pair" / "target" / "config.json").exists()
    again = train_pair(order)["target"]
    assert again["steps"] == 3 and again["problems"] == 4
    assert json.loads((tmp_path / "pair" / "target" / "card.json").read_text())["solved"] == again["solved"]
    assert train_pair(order) == {"target": {"kept": True}}


def test_time_ends_a_course_at_the_floor_of_its_rate(tmp_path: Path, digits: tuple[str, ...]) -> None:
    model = small.make_folder(tmp_path / "model")
    order = PairOrder(tmp_path / "pair", model=str(model), families=digits, rank=4, dtype="fp32", device="cpu")
    made, _ = target_model(order, load(str(model), Place("fp32", "cpu", 1, 128, packed=False)))
    trainer = LoraTrainer(made, LoraPlan(10**6, seconds=1.0, rows=4), tmp_path / "c.pt", [])
    trainer.run()
    assert 1 < trainer.loop.step < 10**5 and trainer.loop.spent < 60
    assert trainer.optimizer.param_groups[0]["lr"] < 0.2 * trainer.plan.lr


def test_the_name_without_weights_says_how_to_train_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREDRAFT_WEIGHTS", str(tmp_path))
    (tmp_path / "judge-demo").mkdir()
    with pytest.raises(UsageError, match=r"judge-demo is not trained yet; train it \(foredraft judge pair") as error:
        LLM("judge-demo")
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match="did you mean 'judge-demo'"):
        resolve("judge-dem")


@pytest.mark.parametrize("change", [{"families": ("sums", "fun")}, {"parts": ("targets",)}])
def test_orders_that_make_no_sense(change: dict[str, tuple[str, ...]], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no family 'fun'|no 'targets'"):
        PairOrder(tmp_path, **change)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_real_pair_from_training_to_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps on the default model: save, load by name, and the drafter is found and changes nothing."""
    plan = LoraPlan(3, rows=2, tries=2)
    order = PairOrder(tmp_path / "judge-demo", plan, plan, final_tries=1, dtype="fp32", device="cpu")
    train_pair(order)
    size = sum(file.stat().st_size for file in (tmp_path / "judge-demo").rglob("*") if file.is_file())
    assert size < 3_100_000
    monkeypatch.setenv("FOREDRAFT_WEIGHTS", str(tmp_path))
    llm = LLM("judge-demo", "plain", dtype="fp32", device="cpu", max_length=256)
    assert find_head("fastdraft", llm.target, None) == tmp_path / "judge-demo" / "drafter"
    other = LLM("smollm2", "plain", dtype="fp32", device="cpu", max_length=256)
    assert find_head("fastdraft", other.target, None) == shipped_folder("smollm2/fastdraft")

    prompt = ask(llm.tokenizer, draw(1, 0)[0].question)
    params = SamplingParams(max_new_tokens=24)
    texts = [llm.generate([prompt], params, method=method)[0].token_ids for method in ("plain", "fastdraft")]
    assert texts[0] == texts[1]

    beside, _ = target_model(order, load("smollm2", Place("fp32", "cpu", 1, 256, packed=False)))
    beside.delta.fill(read_weights(tmp_path / "judge-demo" / "target"))
    batch = beside.batches.step(0, 2)[0]
    merged, _ = target_model(order, load("judge-demo", Place("fp32", "cpu", 1, 256, packed=False)))
    with torch.no_grad():
        apart, first, second = (
            model.loss(batch)
            for model in (
                target_model(order, load("smollm2", Place("fp32", "cpu", 1, 256, packed=False)))[0],
                beside,
                merged,
            )
        )
    assert abs(first - second) < 1e-3 < abs(first - apart)


def test_a_base_that_has_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter's delta belongs to the very head that it was trained on."""
    target = toys.target()
    head, spec = toys.head(target, "fastdraft")
    save_head(tmp_path / "toy" / "fastdraft", head, spec, {}, {})  # type: ignore[arg-type]
    monkeypatch.setenv("FOREDRAFT_WEIGHTS", str(tmp_path))
    delta = Delta(head, 2)  # type: ignore[arg-type]
    mine = describe(delta, "fastdraft", "toy/fastdraft", toys.identity(target), 40)
    save_head(tmp_path / "delta", delta, mine, {}, {})
    found = whole_weights(tmp_path / "delta", read_spec(tmp_path / "delta"))
    base = read_weights(tmp_path / "toy" / "fastdraft")
    assert set(found) == set(base) and all(torch.equal(found[name], base[name]) for name in base)
    shutil.rmtree(tmp_path / "toy" / "fastdraft")
    head.layers[0].out.base.weight.data += 1  # type: ignore[union-attr,index]
    delta.remove()
    save_head(tmp_path / "toy" / "fastdraft", head, spec, {}, {})  # type: ignore[arg-type]
    with pytest.raises(ForedraftError, match="has changed since"):
        whole_weights(tmp_path / "delta", read_spec(tmp_path / "delta"))
    config = json.loads((tmp_path / "delta" / "config.json").read_text())
    assert len(config["extra"]["base_digest"]) == 64
