"""A picture of what ran when: one line for each device and kind of work, one bar for each piece. Plain SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..draft.neural.ahead_drafter import AheadDrafter
from ..engine import Method
from ..errors import UsageError
from ..recipes import LLM
from ..runtime.lanes import Span
from ..types import SamplingParams

WIDTH, LEFT, ROW, BAR, TOP = 960, 150, 44, 26, 46
MOST = 24  # pieces that are shown
COLOURS = {"draft": "#d98b2b", "verify": "#2b6cb0"}


def watch(llm: LLM, method: Method, prompt: str, tokens: int) -> list[Span]:
    """What ran when while a text was written; the first half warms up and is left out."""
    if not isinstance(method.drafter, AheadDrafter):
        raise UsageError(f"method {method.name!r} does not work beside its target; try pearl or duodecoding")
    params = SamplingParams(max_new_tokens=tokens, ignore_eos=True)
    llm.generate(prompt, params, method=method)
    spans: list[Span] = []
    llm.engine.windowed.spans = spans
    try:
        llm.generate(prompt, params, method=method)
    finally:
        llm.engine.windowed.spans = None
    if not spans:
        raise UsageError(f"no window pays for {method.name!r} here, so nothing ran beside anything; try pearl:window=3")
    return spans[len(spans) // 2 :][:MOST]


def draw(spans: Sequence[Span], title: str, file: Path) -> None:
    """Write the picture; spans may come in any order."""
    file.write_text(svg(spans, title), encoding="utf-8")


def svg(spans: Sequence[Span], title: str) -> str:
    begin, end = min(s.begin for s in spans), max(s.end for s in spans)
    scale = (WIDTH - LEFT - 20) / max(end - begin, 1e-9)
    lines = sorted({(s.what, s.device) for s in spans}, reverse=True)
    height = TOP + ROW * len(lines) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="16" y="26" font-size="16" fill="#222">{title}</text>',
    ]
    for row, (what, device) in enumerate(lines):
        y = TOP + ROW * row
        parts.append(f'<text x="16" y="{y + 19}" font-size="14" fill="#222">{what} ({device})</text>')
        for s in spans:
            if (s.what, s.device) == (what, device):
                x, width = LEFT + (s.begin - begin) * scale, max(1.0, (s.end - s.begin) * scale)
                colour = COLOURS.get(what, "#777777")
                parts.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" rx="3" fill="{colour}"/>')
    parts += _axis(end - begin, scale, TOP + ROW * len(lines))
    return "\n".join([*parts, "</svg>\n"])


def _axis(seconds: float, scale: float, y: int) -> list[str]:
    """Marks of whole milliseconds, six to twelve of them."""
    step = next(ms for ms in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000) if seconds * 1e3 / ms <= 12)
    marks = [LEFT + n * step / 1e3 * scale for n in range(int(seconds * 1e3 / step) + 1)]
    return [
        f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{y}" stroke="#ddd"/>'
        f'<text x="{x:.1f}" y="{y + 18}" font-size="12" text-anchor="middle" fill="#555">{n * step} ms</text>'
        for n, x in enumerate(marks)
    ]
