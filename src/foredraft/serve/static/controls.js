// The settings: filled with what the server offers, kept over a reload, read when a message is sent.

import { readTools } from "./calls.js";
import { find, make } from "./dom.js";
import { loadKey, loadSettings, saveKey, saveSettings } from "./store.js";

const number = (field) => (field.value === "" ? undefined : field.valueAsNumber);

export class Controls {
  constructor(onKey) {
    this._form = find("settings");
    this._fields = this._form.elements;
    this._methods = [];
    this._fields.key.value = loadKey();
    this._form.addEventListener("submit", (event) => event.preventDefault());
    this._form.addEventListener("change", (event) => {
      if (event.target === this._fields.key) {
        saveKey(this.key);
        onKey();
        return;
      }
      if (event.target === this._fields.method) this._fillRules();
      if (event.target === this._fields.rule) this._fields.threshold.value = "";
      this._update();
      this._save();
    });
  }

  /** Take over the server's offer; settings of an earlier visit stay as far as they are still offered. */
  fill(offer) {
    this._methods = offer.methods;
    this.trace = offer.trace;
    const { method } = this._fields;
    method.replaceChildren(
      ...offer.methods.map(({ name, title }) => {
        const served = name === offer.served;
        const option = new Option(served ? `${name} (served)` : name, name, served, served);
        option.title = title;
        return option;
      }),
    );
    const saved = loadSettings();
    choose(method, saved.method);
    this._fillRules();
    choose(this._fields.rule, saved.rule);
    for (const name of ["draft_length", "temperature", "max_tokens", "threshold", "tools", "tool_choice"]) {
      if (saved[name] !== undefined) this._fields[name].value = saved[name];
    }
    this._fields.compare.checked = saved.compare ?? false;
    this._fields.suggest.checked = saved.suggest ?? false;
    this._update();
  }

  askForKey(needed) {
    this._fields.key.closest("label").hidden = !needed && !this.key;
    if (needed) this._fields.key.focus();
  }

  get key() {
    return this._fields.key.value.trim();
  }

  get method() {
    return this._fields.method.value;
  }

  /** Whether plain decoding is to run as well; beside itself it would tell nothing. */
  get compares() {
    return this._fields.compare.checked && this._method.drafts;
  }

  /** Whether the page asks how a message may go on while it is typed. */
  get suggests() {
    return this._fields.suggest.checked;
  }

  /** An error in what was typed, or an empty text. */
  get complaint() {
    const wrong = [...this._fields].find((field) => !field.validity.valid);
    if (wrong) return `${wrong.closest("label").firstChild.textContent}: ${wrong.validationMessage}`;
    try {
      readTools(this._fields.tools.value);
    } catch (problem) {
      return problem.message;
    }
    return "";
  }

  speculation() {
    const { rule, draft_length, threshold } = this._fields;
    const wish = { method: this.method, trace: this.trace };
    if (!this._method.drafts) return wish;
    if (rule.value) wish.rule = rule.value;
    if (this._rule?.threshold) wish.threshold = number(threshold);
    wish.draft_length = number(draft_length);
    return wish;
  }

  sampling() {
    return { temperature: number(this._fields.temperature), max_completion_tokens: number(this._fields.max_tokens) };
  }

  /** Tools and how they may be chosen; after a call's result the model is free to say something. */
  tools(answered) {
    const tools = readTools(this._fields.tools.value);
    const choice = this._fields.tool_choice.value;
    if (!tools) return {};
    if (choice !== "required") return { tools, tool_choice: choice };
    // One call: small models go on calling until they are cut off where nothing but calls is allowed.
    return answered ? { tools, tool_choice: "auto" } : { tools, tool_choice: choice, parallel_tool_calls: false };
  }

  get _method() {
    return this._methods.find(({ name }) => name === this.method);
  }

  get _rule() {
    const wanted = this._fields.rule.value || kind(this._method.rule);
    return this._method.rules.find(({ name }) => name === wanted);
  }

  /** The method's own rule comes first, and without a value: it stays what the operator made it. */
  _fillRules() {
    const own = this._method.rule;
    const groups = [["exact", false], ["lossy: the text may differ from the model's own", true]].map(([label, lossy]) => {
      const group = make("optgroup");
      group.label = label;
      const others = this._method.rules.filter((rule) => rule.lossy === lossy && rule.name !== kind(own));
      group.append(...others.map(({ name }) => new Option(name)));
      return group;
    });
    this._fields.rule.replaceChildren(new Option(own, ""), ...groups.filter((group) => group.children.length));
    this._fields.threshold.value = "";
  }

  /** Show what matters to the chosen method and rule. */
  _update() {
    const { rule, draft_length, threshold, compare } = this._fields;
    const bar = this._rule?.threshold;
    rule.closest("label").hidden = !this._method.drafts;
    draft_length.disabled = compare.disabled = !this._method.drafts;
    threshold.closest("label").hidden = !bar;
    const varied = !rule.value && this._method.rule !== kind(this._method.rule);
    const usual = varied ? "as served" : (bar?.default ?? "off");
    threshold.title = bar ? `${bar.name} of the rule; empty = ${usual}` : "";
    threshold.placeholder = bar ? String(usual) : "";
    threshold.min = bar?.least ?? "";
    threshold.max = bar?.most ?? "";
    threshold.step = bar?.whole ? "1" : "any";
    find("summary").textContent = this._rule ? this._rule.summary : "";
  }

  _save() {
    const { method, rule, draft_length, temperature, max_tokens, threshold, compare, suggest } = this._fields;
    const values = { method: method.value, rule: rule.value, compare: compare.checked, suggest: suggest.checked };
    const { tools, tool_choice } = this._fields;
    for (const field of [draft_length, temperature, max_tokens, threshold, tools, tool_choice]) {
      values[field.name] = field.value;
    }
    saveSettings(values);
  }
}

/** A rule's name without its parameters. */
const kind = (rule) => rule.split(":")[0];

function choose(select, value) {
  if (value !== undefined && [...select.options].some((option) => option.value === value)) select.value = value;
}
