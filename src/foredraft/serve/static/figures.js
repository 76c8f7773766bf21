// What is counted while answers are written: tokens a second, acceptance by position, tokens by who wrote them.

import { find, make } from "./dom.js";
import { look } from "./tokens.js";

const WINDOW = 2000; // milliseconds that "now" looks back

/** Times one answer. A rate begins with the first tokens, so that reading the prompt does not count. */
export class Meter {
  constructor() {
    this.tokens = 0;
    this.steps = 0;
    this.drafted = 0;
    this.accepted = 0;
    this._begun = performance.now();
    this._marks = []; // [time, tokens so far] after every step
  }

  push(step) {
    this.tokens += step.tokens.length;
    this.steps += 1;
    this.drafted += step.tree.length;
    this.accepted += step.tree.filter((node) => node.accepted).length;
    this._marks.push([performance.now(), this.tokens]);
  }

  /** Tokens a second over the whole answer. */
  rate() {
    return this._between(this._marks[0]);
  }

  /** Tokens a second over the last moments. */
  now() {
    const since = performance.now() - WINDOW;
    return this._between(this._marks.find(([time]) => time >= since) ?? this._marks[0]);
  }

  /** [seconds since the first tokens, tokens so far] after every step. */
  curve() {
    return this._marks.map(([time, tokens]) => [(time - this._marks[0][0]) / 1000, tokens]);
  }

  _between(first) {
    const last = this._marks.at(-1);
    if (!last) return 0;
    const [time, tokens] = last === first ? [this._begun, 0] : first;
    return (1000 * (last[1] - tokens)) / Math.max(1, last[0] - time);
  }
}

/** Rounds that drafted so far ahead, and those that accepted so far ahead. */
export class Positions {
  constructor() {
    this._drafted = [];
    this._accepted = [];
  }

  push({ tree }) {
    const depths = [];
    for (const { parent } of tree) depths.push(parent < 0 ? 1 : depths[parent] + 1);
    count(this._drafted, Math.max(0, ...depths));
    count(this._accepted, tree.filter((node) => node.accepted).length);
  }

  show() {
    const bars = this._drafted.map((drafted, place) => bar(place + 1, this._accepted[place] ?? 0, drafted));
    const empty = make("p", "quiet", "The share of drafts accepted, by how far ahead they were.");
    find("positions").replaceChildren(...(bars.length ? bars : [empty]));
  }
}

function count(line, upto) {
  for (let place = 0; place < upto; place++) line[place] = (line[place] ?? 0) + 1;
}

function bar(position, accepted, drafted) {
  const share = Math.round((100 * accepted) / drafted);
  const column = make("div", "bar");
  const track = make("div", "track");
  const fill = make("i");
  fill.style.height = `${share}%`;
  track.append(fill);
  column.append(make("span", "", `${share}%`), track, make("span", "", String(position)));
  column.title = `position ${position}: accepted in ${accepted} of ${drafted} steps`;
  return column;
}

/** Tokens of the latest answer by who wrote them, in the legend. */
export class Legend {
  constructor() {
    this._counts = {};
  }

  push({ tokens }) {
    for (const { reason } of tokens) this._counts[look(reason)] = (this._counts[look(reason)] ?? 0) + 1;
  }

  show() {
    for (const output of document.querySelectorAll("[data-count]")) {
      output.textContent = this._counts[output.dataset.count] ?? "";
    }
  }
}

export function showRate(rate, when) {
  find("rate").textContent = rate ? rate.toFixed(1) : "–";
  find("rate-when").textContent = when;
}

/** The two bars: the chosen method's rate, and plain decoding's once it is known. */
export function showRace(name, rate, plain) {
  const longest = Math.max(rate, plain ?? 0, 1e-9);
  find("race").dataset.known = "";
  const [own, other] = find("race").children;
  own.querySelector("dt").textContent = name;
  for (const [line, value] of [[own, rate], [other, plain]]) {
    line.querySelector("i").style.width = value ? `${(70 * value) / longest}%` : "0";
    line.querySelector("output").textContent = value ? value.toFixed(1) : "–";
  }
}

export function showVerdict(text) {
  find("verdict").textContent = text;
}
