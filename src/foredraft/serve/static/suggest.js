// Suggestions under the message: how it may go on, asked for when the typing pauses.

import { fetchSuggestions } from "./api.js";
import { make, visible } from "./dom.js";

const PAUSE = 350; // milliseconds without a key

export class Suggestions {
  constructor(list, prompt, settings) {
    Object.assign(this, { list, prompt, settings, timer: 0, asked: null });
    prompt.addEventListener("input", () => this.wait());
  }

  /** `settings()` says whether to ask, of which model and with which key. */
  wait() {
    this.clear();
    const text = this.prompt.value;
    if (text.trim() && this.settings().wanted) this.timer = setTimeout(() => this.ask(text), PAUSE);
  }

  clear() {
    clearTimeout(this.timer);
    this.asked?.abort();
    this.list.replaceChildren();
    this.list.hidden = true;
  }

  async ask(text) {
    const { model, key } = this.settings();
    this.asked = new AbortController();
    try {
      const found = await fetchSuggestions({ model, prompt: text, k: 4, max_tokens: 8 }, key, this.asked.signal);
      if (this.prompt.value === text) this.show(text, found.choices.map((choice) => choice.text));
    } catch {
      this.clear(); // a busy server suggests nothing
    }
  }

  show(text, endings) {
    for (const ending of new Set(endings.filter((each) => each.trim()))) {
      const button = make("button", "", visible(ending));
      button.type = "button";
      button.addEventListener("click", () => this.take(text + ending));
      const item = make("li");
      item.append(button);
      this.list.append(item);
    }
    this.list.hidden = !this.list.childElementCount;
  }

  take(text) {
    this.clear();
    this.prompt.value = text;
    this.prompt.focus();
    this.wait();
  }
}
