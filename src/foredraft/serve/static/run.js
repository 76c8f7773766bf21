// One answer from the server: streamed into the log, timed and counted as it comes.

import { Answer } from "./answer.js";
import { streamChat } from "./api.js";
import { Calls } from "./calls.js";
import { Legend, Meter, Positions, showRate } from "./figures.js";

/** A step of which nothing is known but its text: the operator does not show drafts. */
const untraced = (text) => (text ? [{ tokens: [{ text, reason: "target", rejected: [] }], tree: [] }] : []);

/** Streams one answer. `view.add` puts elements into the log, `grown` hears that they have grown, `step` gets a step to
 * draw. The `twin` of a comparison is timed, but pictures and counts stay those of the answer itself. */
export class Run {
  constructor(label, view, twin = false) {
    this.label = label;
    this.meter = new Meter();
    this.text = "";
    this.tokens = [];
    this._calls = new Calls();
    this.answer = new Answer(label, twin);
    this._twin = twin;
    this._view = view;
    this._counters = twin ? [] : [new Positions(), new Legend()];
  }

  /** Returns whether the answer came to its end; false = it was stopped. Errors are the caller's to show. */
  async follow(body, key, signal) {
    this._view.add(this.answer.element);
    this.answer.busy = true;
    let end = "stopped";
    for (const counter of this._counters) counter.show();
    try {
      for await (const document of streamChat(body, key, signal)) {
        end = document.choices[0]?.finish_reason ?? end;
        this._take(document);
      }
    } catch (error) {
      if (error.name !== "AbortError") {
        end = "broken off";
        throw error;
      }
    } finally {
      this.answer.busy = false;
      this._end = end;
      this._noted = this._note(end);
      this.answer.note(this._noted);
      showRate(this.meter.rate(), "over the answer");
    }
    return end !== "stopped";
  }

  /** Calls that came whole. */
  get calls() {
    return this._end === "tool_calls" ? this._calls.all : [];
  }

  /** As the conversation keeps it. */
  get turn() {
    const { text, tokens, label, calls, _noted: note, _twin: twin } = this;
    return { role: "assistant", text, tokens, label, note, twin, calls };
  }

  _take({ choices, usage }) {
    if (usage) this.used = usage.speculation;
    for (const choice of choices) {
      this.text += choice.delta.content ?? "";
      this._calls.push(choice.delta.tool_calls ?? []);
      for (const step of choice.speculation ?? untraced(choice.delta.content)) this._show(step);
    }
  }

  _show(step) {
    this.meter.push(step);
    this.tokens.push(...step.tokens);
    this.answer.add(step.tokens, step);
    for (const counter of this._counters) {
      counter.push(step);
      counter.show();
    }
    showRate(this.meter.now(), "now");
    this._view.grown();
    if (!this._twin) this._view.step(step);
  }

  _note(end) {
    const { tokens, steps, accepted, drafted } = this.meter;
    const parts = [`${tokens} tokens in ${steps} passes`];
    if (drafted) parts.push(`${accepted} of ${drafted} drafts accepted`);
    parts.push(`${this.meter.rate().toFixed(1)} tokens/s`);
    if (this.used && drafted) parts.push(`rule ${this.used.rule}`);
    if (end !== "stop" && end !== "tool_calls") parts.push(end === "length" ? "cut at its longest" : end);
    return parts.join(" · ");
  }
}
