"""A page to annotate answers by hand, served to this machine alone: keyboard first, every label on the disk at once.

One answer at a time, cut into tokens. Arrow keys move, Enter marks the first wrong token, n that nothing is wrong, e
that it ends too early, s skips, b goes back. Whoever comes back begins at the first line without a label.
"""

from __future__ import annotations

import json
import secrets
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from ...models import Tokenizer
from ..labels.annotate import first_character
from ..labels.annotations import read_notes, write_notes
from ..labels.token_labels import Spelling

PAGE = Path(__file__).with_name("annotate.html")
MOST_BYTES = 10_000


class Annotations:
    """The file of the page. Knows no network."""

    def __init__(self, path: Path, tokenizer: Tokenizer) -> None:
        self.path, self.tokenizer, self.lock = path, tokenizer, Lock()
        self.notes = read_notes(path)

    def first_open(self) -> int:
        return next((i for i, note in enumerate(self.notes) if not note.labelled), len(self.notes))

    def item(self, number: int) -> dict[str, Any]:
        """One line as the page shows it."""
        done = sum(note.labelled for note in self.notes)
        about = {"number": number, "count": len(self.notes), "labelled": done, "open": self.first_open()}
        if not 0 <= number < len(self.notes):
            return about | {"end": True}
        note = self.notes[number]
        spelling = self._spelling(number)
        begins = [0, *spelling.done]
        tokens = [spelling.text[a:b] for a, b in zip(begins, spelling.done, strict=False)]
        marked: Any = "open"
        if note.labelled:
            first = note.first_wrong
            marked = (
                None if first is None else next((i for i, end in enumerate(spelling.done) if end > first), len(tokens))
            )
        return about | {"end": False, "question": note.question, "tokens": tokens, "marked": marked}

    def label(self, number: int, token: int | None) -> None:
        """Mark a token as the first wrong one; None = nothing is wrong, the number of tokens = it ends too early."""
        with self.lock:
            note, spelling = self.notes[number], self._spelling(number)
            if token is not None and not 0 <= token <= len(spelling.done):
                raise ValueError(f"there is no token {token}")
            early = token is not None and token == len(spelling.done)
            note.mark(len(note.answer) if early else None if token is None else first_character(spelling, token))
            note.raw.pop("by", None)
            write_notes(self.path, self.notes)

    def _spelling(self, number: int) -> Spelling:
        answer = self.notes[number].answer
        return Spelling.of(self.tokenizer, self.tokenizer.encode(answer, add_special=False), ())


def serve_page(annotations: Annotations, port: int = 0) -> tuple[ThreadingHTTPServer, str]:
    """A server on this machine alone, not yet running, and the address to open; nobody without the address gets in."""
    word = secrets.token_urlsafe(9)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if path == f"/{word}/":
                self._send(200, PAGE.read_bytes(), "text/html; charset=utf-8")
            elif path == f"/{word}/item":
                number = int(query) if query.isdecimal() else annotations.first_open()
                self._send(200, json.dumps(annotations.item(number)).encode(), "application/json")
            else:
                self._send(404, b"", "text/plain")

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            if self.path != f"/{word}/label" or not 0 < size < MOST_BYTES:
                self._send(404, b"", "text/plain")
                return
            try:
                said = json.loads(self.rfile.read(size))
                annotations.label(int(said["number"]), said["token"])
                self._send(200, b"{}", "application/json")
            except (ValueError, KeyError, TypeError, IndexError) as error:
                self._send(400, json.dumps({"error": str(error)}).encode(), "application/json")

        def _send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the terminal is for the annotator."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    return server, f"http://127.0.0.1:{server.server_address[1]}/{word}/"
