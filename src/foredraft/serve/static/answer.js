// Messages in the log: the user's, and answers that grow token by token.

import { make } from "./dom.js";
import { tokenSpan } from "./tokens.js";

/** What the user said, or what a tool gave. */
export function userMessage(text, role = "user") {
  const article = make("article", role === "tool" ? "user tool" : "user");
  article.setAttribute("aria-label", role === "tool" ? "Result of a tool" : "You wrote");
  article.append(make("div", "text", text));
  return article;
}

/** An answer on the screen. `twin` marks the plain run of a comparison, which is no part of the conversation. */
export class Answer {
  constructor(label, twin = false) {
    this.element = make("article", twin ? "answer twin" : "answer");
    this._text = make("div", "text");
    this._text.setAttribute("role", "group");
    this._text.setAttribute("aria-label", `Answer by ${label}`);
    this._note = make("p", "note quiet");
    this.element.append(make("p", "who", label), this._text, this._note);
  }

  set busy(value) {
    this.element.setAttribute("aria-busy", String(value));
  }

  /** Tokens of one step; those whose character is not complete yet have no text. */
  add(tokens, step = null) {
    const spans = tokens.filter((token) => token.text).map((token) => tokenSpan(token, step));
    if (!this._text.firstChild && spans.length) spans[0].tabIndex = 0;
    this._text.append(...spans);
  }

  note(text) {
    this._note.textContent = text;
  }
}
