"""The page in a real browser: Chromium without a window, a real server, a tiny model.

The default run has what breaks first; the rest is for the slow run, because every window takes a second or two.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from foredraft import LLM

from .kit import Running, judged_llm, serving, tiny_llm

playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
Browser = playwright.Browser
Page = playwright.Page
expect = playwright.expect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

ASKED = "Which rivers?"
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Open]:
    """Opens pages in windows that share nothing; fails the test if one complains or asks another host."""
    windows, complaints = [], []

    def visit(server: Running, **window: Any) -> Page:
        windows.append(browser.new_context(**window))
        page = windows[-1].new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if "Content Security" in said.text else None)
        page.on("request", lambda asked: asked.url.startswith(server.url) or complaints.append(asked.url))
        page.goto(server.url)
        return page

    yield visit
    for window in windows:
        window.close()
    assert not complaints


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Running]:
    """Drafts by half of the model, in trees: some tokens are accepted, some corrected, and nothing is remembered."""
    with serving(lambda: LLM(str(tiny), "draft-model", shape="value-tree", dtype="fp32", batch_size=4)) as running:
        yield running


@pytest.fixture
def page(visit: Open, server: Running) -> Page:
    return ready(visit(server))


def ready(page: Page) -> Page:
    """Once the server's offer is there."""
    expect(page.locator("#model")).to_contain_text("tiny, context of 128 tokens")
    return page


def ask(page: Page, text: str = ASKED, method: str | None = None, tokens: int = 40) -> None:
    """Type a message and send it by the keyboard."""
    if method is not None:
        page.get_by_label("Method").select_option(method)
    page.get_by_label("Max tokens").fill(str(tokens))
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


def finish(page: Page) -> None:
    """Wait until nothing is being written; sending hides the button before the key is up."""
    expect(page.locator("#send")).to_be_visible(timeout=120_000)
    expect(page.locator(".answer[aria-busy=true]")).to_have_count(0)


def written(page: Page, answer: int = 0) -> list[tuple[str, str]]:
    """(text, reason) of an answer's tokens as they stand on the screen."""
    read = "spans => spans.map(span => [span.textContent, span.dataset.reason])"
    found = page.locator(".answer").nth(answer).locator(".token").evaluate_all(read)
    return [(text, reason) for text, reason in found]


def expected(server: Running) -> list[dict[str, Any]]:
    """The tokens that the API gives for the same question."""
    body = {"messages": [{"role": "user", "content": ASKED}], "temperature": 0, "max_tokens": 40}
    answer = server.post("chat/completions", speculation={"trace": True}, **body)
    steps = answer.json()["choices"][0]["speculation"]
    return [token for step in steps for token in step["tokens"]]


def seen(tokens: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that are on the screen: a part of a character is shown with the token that completes it."""
    return [token for token in tokens if token["text"]]


@contextmanager
def slow_server(tiny: Path, **settings: Any) -> Iterator[Running]:
    with serving(tiny_llm(tiny, pause=0.05), **settings) as running:
        yield running


def test_tokens_are_marked_by_who_wrote_them(page: Page, server: Running) -> None:
    ask(page)
    finish(page)
    tokens = expected(server)
    assert written(page) == [(token["text"], token["reason"]) for token in seen(tokens)]
    looks = {}
    for reason in {token["reason"] for token in tokens}:
        style = "span => [getComputedStyle(span).textDecorationStyle, getComputedStyle(span).textDecorationColor]"
        looks[reason] = tuple(page.locator(f".answer [data-reason={reason}]").first.evaluate(style))
    assert {"standard", "corrected", "bonus"} <= set(looks)
    assert len({looks["standard"], looks["corrected"], looks["bonus"]}) == 3
    assert looks["standard"][0] == "solid"
    assert looks["corrected"][0] == "wavy"
    counted = page.locator("#legend [data-count=standard]").inner_text()
    assert int(counted) == sum(token["reason"] == "standard" for token in tokens)
    expect(page.locator("#positions .bar").first).to_be_visible()
    assert float(page.locator("#rate").inner_text()) > 0


@pytest.mark.slow
def test_a_token_tells_its_rank_probability_and_rejected_drafts(page: Page, server: Running) -> None:
    ask(page)
    finish(page)
    tokens = seen(expected(server))
    reasons = [token["reason"] for token in tokens]
    place = reasons.index("corrected", 1)
    span = page.locator(".answer .token").nth(place)
    span.hover()
    tip = page.get_by_role("tooltip")
    expect(tip).to_contain_text(f"rank {tokens[place]['rank']}, probability")
    shown = re.search(r"probability ([\d.]+) %", tip.inner_text())
    assert shown
    assert float(shown[1]) == pytest.approx(100 * tokens[place]["probability"], abs=0.051)
    expect(tip).to_contain_text("rejected:")
    expect(page.locator("#tree svg .accepted.corrected")).to_have_count(1)
    page.mouse.move(0, 0)
    expect(tip).to_be_hidden()
    span.focus()  # the keyboard shows the same
    expect(tip).to_contain_text("rejected:")
    page.keyboard.press("ArrowLeft")
    focused = page.evaluate("[...document.querySelectorAll('.answer .token')].indexOf(document.activeElement)")
    assert focused == place - 1


@pytest.mark.slow
def test_the_tree_of_the_step_is_drawn(page: Page) -> None:
    ask(page)
    finish(page)
    page.locator(".answer [data-reason=standard]").first.hover()
    picture = page.get_by_role("img", name=re.compile("Draft tree"))
    reported = re.search(r"(\d+) drafted, (\d+) accepted", picture.get_attribute("aria-label") or "")
    assert reported
    drafted, accepted = map(int, reported.groups())
    assert accepted >= 1
    assert picture.locator("rect").count() in (drafted, drafted + 1)  # and the target's own token after them
    assert picture.locator(".accepted").count() in (accepted, accepted + 1)


@pytest.mark.parametrize("how", ["Escape", pytest.param("button", marks=pytest.mark.slow)])
def test_stopping_midway(visit: Open, tiny: Path, how: str) -> None:
    with slow_server(tiny) as server:
        page = ready(visit(server))
        ask(page, method="plain", tokens=90)
        expect(page.locator(".answer .token").nth(3)).to_be_visible()
        assert server.running == 1
        if how == "Escape":
            page.keyboard.press("Escape")
        else:
            page.get_by_role("button", name="Stop").click()
        finish(page)
        server.wait(lambda: server.running == 0)
        expect(page.locator(".answer .note")).to_contain_text("stopped")
        assert 4 <= len(written(page)) < 80
        assert server.metric("requests_total", outcome="cancelled") == 1
        ask(page, "three", method="plain", tokens=4)  # the conversation goes on
        expect(page.locator(".answer")).to_have_count(2)
        finish(page)
        expect(page.locator("#error")).to_be_hidden()


def test_a_reload_keeps_the_conversation_and_the_settings(page: Page) -> None:
    page.get_by_label("Temperature").fill("0.5")
    ask(page, method="suffix", tokens=12)
    finish(page)
    before = written(page)
    note = page.locator(".answer .note").inner_text()
    page.reload()
    ready(page)
    assert written(page) == before
    expect(page.locator(".user")).to_have_text(ASKED)
    expect(page.locator(".answer .note")).to_have_text(note)
    expect(page.get_by_label("Method")).to_have_value("suffix")
    expect(page.get_by_label("Temperature")).to_have_value("0.5")
    page.locator(".answer .token").first.hover()
    expect(page.get_by_role("tooltip")).to_contain_text("rank")
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("article")).to_have_count(0)
    page.reload()
    ready(page)
    expect(page.locator("article")).to_have_count(0)


@pytest.mark.slow
def test_clearing_a_running_answer_leaves_nothing_behind(visit: Open, tiny: Path) -> None:
    with slow_server(tiny) as server:
        page = ready(visit(server))
        ask(page, method="plain", tokens=90)
        expect(page.locator(".answer .token").nth(2)).to_be_visible()
        page.get_by_role("button", name="Clear").click()
        finish(page)
        server.wait(lambda: server.running == 0)
        expect(page.locator("article")).to_have_count(0)
        assert page.evaluate("localStorage.getItem('foredraft.conversation')") == "[]"


def test_both_ways_one_after_the_other(page: Page) -> None:
    page.get_by_label("Run plain decoding too").check()
    ask(page)
    expect(page.locator("#verdict")).to_contain_text("times plain decoding, which wrote the same text", timeout=120_000)
    finish(page)
    rates = [float(text) for text in page.locator("#race output").all_inner_texts()]
    assert len(rates) == 2
    times = float(page.locator("#verdict").inner_text().split()[0])
    assert times == pytest.approx(rates[0] / rates[1], rel=0.02, abs=0.01)  # as rounded as they are shown
    first, second = written(page, 0), written(page, 1)
    assert "".join(text for text, _ in first) == "".join(text for text, _ in second)
    assert {reason for _, reason in second} == {"target"}
    sent: list[dict[str, Any]] = []
    page.on("request", lambda asked: sent.append(asked.post_data_json) if asked.method == "POST" else None)
    page.get_by_label("Run plain decoding too").uncheck()
    ask(page, "and?", tokens=4)
    expect(page.locator(".answer")).to_have_count(3)
    finish(page)
    assert [message["role"] for message in sent[0]["messages"]] == ["user", "assistant", "user"]


@pytest.mark.slow
def test_another_method(page: Page) -> None:
    offered = page.get_by_label("Method").locator("option").all_inner_texts()
    assert "draft-model (served)" in offered
    assert "plain" in offered
    expect(page.get_by_label("Rule")).to_be_visible()
    ask(page, method="plain", tokens=10)
    finish(page)
    assert {reason for _, reason in written(page)} == {"target"}
    expect(page.get_by_label("Rule")).to_be_hidden()
    expect(page.locator(".answer .who")).to_have_text("plain")
    expect(page.locator(".answer .note")).to_contain_text("10 tokens in 10 passes")


@pytest.mark.slow
def test_a_lossy_rule_with_its_threshold(visit: Open, tiny: Path) -> None:
    with serving(tiny_llm(tiny, "draft-model"), allow_lossy=True) as server:
        page = ready(visit(server))
        expect(page.get_by_label("Threshold")).to_be_hidden()
        page.get_by_label("Rule").select_option("top-k")
        page.get_by_label("Threshold").fill("49152")  # every token of the vocabulary: whatever was drafted passes
        page.get_by_label("Message").fill(ASKED)
        page.keyboard.press("Enter")
        expect(page.locator(".answer")).to_have_count(1)
        finish(page)
        reasons = {reason for _, reason in written(page)}
        assert "relaxed" in reasons
        assert "corrected" not in reasons


def test_a_judge_with_its_threshold(visit: Open, tiny: Path, judge: Path) -> None:
    """The number that is typed is the number that is sent, and what only the judge let pass looks like it."""
    sent: list[dict[str, Any]] = []
    with serving(judged_llm(tiny, judge), share_drafts=False) as server:
        page = ready(visit(server))
        page.on("request", lambda asked: sent.append(asked.post_data_json) if asked.method == "POST" else None)
        expect(page.get_by_label("Rule")).to_have_value("")  # the served one, which is the judge
        threshold = page.get_by_label("Threshold")
        assert threshold.get_attribute("placeholder") == "0.5"
        threshold.fill("1.5")
        ask(page)
        expect(page.get_by_role("alert")).to_contain_text("Threshold: ")
        threshold.fill("0")
        ask(page)
        expect(page.locator(".answer")).to_have_count(1)
        finish(page)
        assert [s["speculation"]["threshold"] for s in sent] == [0]
        passed = [reason for _, reason in written(page)].count("judge")
        assert passed > 0 and int(page.locator("#legend [data-count=judge]").inner_text()) >= passed
        look = page.locator(".answer [data-reason=judge]").first
        assert look.evaluate("span => getComputedStyle(span).textDecorationStyle") == "double"
        expect(page.locator(".answer .note")).to_contain_text("rule judge:threshold=0.0")
        page.reload()
        expect(ready(page).get_by_label("Threshold")).to_have_value("0")
        page.get_by_label("Threshold").fill("1")
        ask(page, "and?")
        expect(page.locator(".answer")).to_have_count(2)
        finish(page)
        assert sent[-1]["speculation"]["threshold"] == 1
        assert "judge" not in {reason for _, reason in written(page, 1)}


def test_light_and_dark(visit: Open, server: Running) -> None:
    def brightness(page: Page) -> float:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3

    page = ready(visit(server, color_scheme="dark"))
    assert brightness(page) < 40
    page.emulate_media(color_scheme="light")
    assert brightness(page) > 215
    switch = page.get_by_role("button", name="Theme")
    switch.click()
    switch.click()
    expect(switch).to_have_accessible_name("Theme: dark")
    assert brightness(page) < 40
    page.reload()
    assert brightness(page) < 40


@pytest.mark.slow
def test_on_a_phone(visit: Open, server: Running) -> None:
    page = visit(server, viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True)
    expect(page.locator("#side")).to_be_hidden()
    page.get_by_label("Message").fill(ASKED)
    page.get_by_role("button", name="Send").tap()
    expect(page.locator(".answer .token").first).to_be_visible()
    finish(page)
    page.get_by_role("button", name="Figures").tap()
    expect(page.get_by_label("Method")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.keyboard.press("Escape")
    expect(page.locator("#side")).to_be_hidden()
    page.locator(".answer .token").first.tap()
    expect(page.get_by_role("tooltip")).to_contain_text("rank")


@pytest.mark.slow
def test_markup_is_text(page: Page) -> None:
    asked = "<img src=x onerror=alert(1)><b>bold</b>"
    ask(page, asked, tokens=4)
    finish(page)
    expect(page.locator(".user")).to_have_text(asked)
    expect(page.locator("#log img, #log b")).to_have_count(0)


@pytest.mark.slow
def test_errors_are_one_line_and_the_message_comes_back(page: Page) -> None:
    asked = "word " * 200
    ask(page, asked)
    complaint = page.get_by_role("alert")
    expect(complaint).to_contain_text("this server takes 127 at most")
    assert "\n" not in complaint.inner_text()
    expect(page.get_by_label("Message")).to_have_value(asked.strip())
    expect(page.locator("article")).to_have_count(0)
    page.get_by_label("Temperature").fill("9")
    page.get_by_label("Message").fill("short")
    page.keyboard.press("Enter")
    expect(complaint).to_contain_text("Temperature: ")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Message").fill("short")
    page.keyboard.press("Enter")
    expect(page.locator(".answer")).to_have_count(1)
    finish(page)
    expect(complaint).to_be_hidden()


@pytest.mark.slow
def test_a_server_with_keys(visit: Open, tiny: Path) -> None:
    with serving(tiny_llm(tiny), api_keys=("sesame",)) as server:
        page = visit(server)
        expect(page.get_by_role("alert")).to_contain_text("needs an API key")
        for key, works in (("wrong", False), ("sesame", True)):
            page.get_by_label("API key").fill(key)
            page.get_by_label("API key").press("Enter")
            if not works:
                expect(page.get_by_role("alert")).to_contain_text("a valid API key is needed")
        ready(page)
        expect(page.get_by_role("alert")).to_be_hidden()
        ask(page, tokens=4)
        expect(page.locator(".answer .token").first).to_be_visible()
        page.reload()
        ready(page)


def test_suggestions_show_up_and_are_taken(visit: Open, server: Running) -> None:
    page = visit(server)
    expect(page.locator("#model")).to_contain_text("context of")
    page.locator("#prompt").type("The sky")
    page.wait_for_timeout(600)
    expect(page.locator("#suggestions")).to_be_hidden()  # only if asked for
    page.locator("[name=suggest]").check()
    page.locator("#prompt").type(" is")
    first = page.locator("#suggestions button").first
    expect(first).to_be_visible()
    first.click()
    expect(page.locator("#prompt")).not_to_have_value("The sky is")
    expect(page.locator("#prompt")).to_have_value(re.compile("^The sky is.+", re.S))
