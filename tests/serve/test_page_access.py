"""The pages for users of a keyboard or a screen reader, in a real Chromium: names, order, announcements, contrast."""

from __future__ import annotations

import json
import re
from typing import Any

from .kit import Running
from .test_page import Open, browser, expect, finish, pytestmark, visit  # noqa: F401

TOOLS = [{"name": "f", "parameters": {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}}]

# Controls that can be reached and have no name, pictures without a text, ids that are there twice, labels of nothing.
FAULTS = """() => {
  const seen = (e) => e.checkVisibility();
  const named = (e) => e.getAttribute("aria-label") || e.labels?.length || e.textContent.trim() || e.title;
  const faults = [];
  for (const e of document.querySelectorAll("button, input, select, textarea, a[href]"))
    if (seen(e) && !named(e)) faults.push("no name: " + e.outerHTML.slice(0, 80));
  for (const e of document.querySelectorAll("img, svg[role=img], meter"))
    if (seen(e) && !e.hasAttribute("alt") && !e.getAttribute("aria-label"))
      faults.push("no text: " + e.outerHTML.slice(0, 80));
  for (const e of document.querySelectorAll("output:not([aria-live=off])"))
    faults.push("read out whenever it changes: " + e.outerHTML.slice(0, 80));
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of ids) if (ids.filter((other) => other === id).length > 1) faults.push("twice: " + id);
  for (const e of document.querySelectorAll("[aria-labelledby], [aria-describedby], [aria-controls]"))
    for (const name of ["aria-labelledby", "aria-describedby", "aria-controls"])
      for (const id of (e.getAttribute(name) ?? "").split(" ").filter(Boolean))
        if (!document.getElementById(id)) faults.push("points nowhere: " + id);
  const levels = [...document.querySelectorAll("h1, h2, h3")].filter(seen).map((e) => Number(e.tagName[1]));
  if (levels[0] !== 1 || levels.some((level, i) => i && level > levels[i - 1] + 1)) faults.push("headings: " + levels);
  if (!document.documentElement.lang || !document.title) faults.push("no language or title");
  return faults;
}"""

# The least contrast of visible text with what is painted beneath it (WCAG: 4.5 for small text).
CONTRAST = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const paint = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let worst = [21, ""];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !e.checkVisibility() || e.closest("svg, .unseen, option")) continue;
    const beneath = [];
    for (let at = e; at; at = at.parentElement) beneath.unshift(getComputedStyle(at).backgroundColor);
    const [back, front] = [light(paint(beneath)), light(paint([...beneath, getComputedStyle(e).color]))];
    const ratio = (Math.max(back, front) + 0.05) / (Math.min(back, front) + 0.05);
    if (ratio < worst[0]) worst = [ratio, e.outerHTML.slice(0, 80)];
  }
  return worst;
}"""


def check(page: Any) -> None:
    assert page.evaluate(FAULTS) == []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        ratio, where = page.evaluate(CONTRAST)
        assert ratio >= 4.5, (scheme, where)


def focused(page: Any) -> str:
    """What has the focus, as a screen reader would call it."""
    said: str = page.evaluate(
        "() => { const e = document.activeElement, label = e.labels?.[0]?.firstChild?.textContent.trim();"
        " return e.getAttribute('aria-label') || label || e.labels?.[0]?.textContent.trim() || e.textContent.trim() }"
    )
    return said


def test_tool_calls_by_the_keyboard_alone(visit: Open, roomy: Running) -> None:  # noqa: F811
    """A tool is described, called, answered; the comparison is drawn, and has a text that says the same."""
    page = visit(roomy)
    expect(page.locator("#model")).to_contain_text("context of")
    page.get_by_text("Tools that the model may call").press("Enter")
    page.get_by_label("Tools", exact=True).fill("[{]")
    page.get_by_label("Message").fill("x?")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Tools: this is no JSON")
    page.get_by_label("Tools", exact=True).fill(json.dumps(TOOLS))
    page.get_by_label("Tool choice").select_option("required")
    page.get_by_label("Max tokens").fill("60")
    page.get_by_label("Run plain decoding too").check()
    page.get_by_label("Message").focus()
    page.keyboard.press("Enter")
    field = page.get_by_label("Result of f")
    expect(field).to_be_focused(timeout=120_000)
    finish(page)
    card = page.locator(".call").first
    expect(card).to_contain_text(re.compile(r'f.*\{ "x": [12] \}', re.S))
    picture = page.get_by_role("img", name=re.compile("Tokens over time"))
    expect(picture).to_be_visible()
    said = picture.get_attribute("aria-label") or ""
    passes = [int(number) for number in re.findall(r"(\d+) passes", said)]
    assert len(passes) == 2 and passes[0] < passes[1] and picture.locator("circle").count() == sum(passes)
    expect(page.locator("#heard[role=status]")).to_contain_text("Answer complete")
    check(page)
    sent: list[Any] = []
    page.on("request", lambda asked: sent.append(asked.post_data_json) if asked.method == "POST" else None)
    page.keyboard.type("it is two")
    page.keyboard.press("Enter")
    expect(page.locator(".answer")).to_have_count(4, timeout=120_000)  # each time with plain decoding's
    finish(page)
    roles = [message["role"] for message in sent[0]["messages"]]
    assert roles == ["user", "assistant", "tool"] and sent[0]["tool_choice"] == "auto"
    assert sent[0]["messages"][2]["tool_call_id"] == sent[0]["messages"][1]["tool_calls"][0]["id"]
    page.reload()
    expect(page.locator(".call").first).to_contain_text("f")
    expect(page.get_by_label("Tools", exact=True)).to_have_value(json.dumps(TOOLS))


def test_the_order_of_the_tab_key_and_what_a_reader_hears(visit: Open, roomy: Running) -> None:  # noqa: F811
    page = visit(roomy)
    expect(page.locator("#model")).to_contain_text("context of")
    expect(page.get_by_label("Message")).to_be_focused()
    order = []
    for _ in range(16):
        page.keyboard.press("Tab")
        order.append(focused(page))
    wanted = ("Send", "Method", "Draft length", "Temperature", "Max tokens", "Run plain", "Suggest", "Tools that")
    places = [next(i for i, name in enumerate(order) if name.startswith(each)) for each in wanted]
    assert places == sorted(places), order
    tree = page.locator("body").aria_snapshot()
    for part in ("banner", "main", 'complementary "Settings and figures"', 'textbox "Message"', 'button "Send"'):
        assert part in tree, tree
    check(page)


def test_the_status_page(visit: Open, roomy: Running) -> None:  # noqa: F811
    assert roomy.post("completions", prompt="a b c", max_tokens=8).status_code == 200
    page = visit(roomy)
    page.goto(f"{roomy.url}/status")
    row = page.get_by_role("row", name=re.compile("^suffix"))
    expect(row).to_be_visible()
    expect(page.locator("#served")).to_contain_text("suffix")
    expect(page.get_by_role("region", name="Drafting, by method")).to_be_visible()
    check(page)
