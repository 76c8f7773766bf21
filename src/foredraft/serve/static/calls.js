// Tools: what the model may call, its calls as they are written, and what the user says they gave.

import { make } from "./dom.js";

/** Functions as typed: one JSON object, or a list of them. Throws an Error of one line. */
export function readTools(text) {
  if (!text.trim()) return undefined;
  let found;
  try {
    found = JSON.parse(text);
  } catch (problem) {
    throw new Error(`Tools: this is no JSON (${problem.message})`);
  }
  const functions = (Array.isArray(found) ? found : [found]).map((each) => each?.function ?? each);
  if (!functions.every((each) => typeof each?.name === "string")) throw new Error("Tools: every function needs a name");
  return functions.map((each) => ({ type: "function", function: each }));
}

/** Calls that come in pieces: deltas of a stream are put together by their index. */
export class Calls {
  constructor() {
    this.all = []; // as a message of the history has them
  }

  push(deltas) {
    for (const { index, id, function: part } of deltas) {
      if (id) this.all[index] = { id, type: "function", function: { name: part.name, arguments: "" } };
      this.all[index].function.arguments += part.arguments ?? "";
    }
  }
}

/** The calls of an answer with a field for what each gave. `onResults` hears of {id, text} once all are filled in. */
export function callCards(calls, onResults) {
  const form = make("form", "calls");
  form.setAttribute("aria-label", "Tool calls");
  const fields = calls.map((call) => [call.id, card(form, call, Boolean(onResults))]);
  if (onResults) {
    const button = make("button", "", calls.length > 1 ? "Send results" : "Send result");
    form.append(button);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      onResults(fields.map(([id, field]) => ({ id, text: field.value })));
    });
  }
  return form;
}

function card(form, { id, function: { name, arguments: given } }, asks) {
  const box = make("div", "call");
  box.append(make("b", "", name), make("code", "", pretty(given)));
  form.append(box);
  if (!asks) return null;
  const label = make("label", "quiet", `Result of ${name}`);
  const field = make("input");
  Object.assign(field, { name: id, required: true, autocomplete: "off" });
  label.append(field);
  box.append(label);
  return field;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 1).replaceAll(/\n\s*/g, " ");
  } catch {
    return text; // cut in its middle
  }
}
