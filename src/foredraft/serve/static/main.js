// The page: reads what is typed, runs it, keeps the conversation.

import { Answer, userMessage } from "./answer.js";
import { fetchOptions } from "./api.js";
import { callCards } from "./calls.js";
import { drawComparison } from "./compare.js";
import { Controls } from "./controls.js";
import { find } from "./dom.js";
import { Positions, showRace, showRate, showVerdict } from "./figures.js";
import { Run } from "./run.js";
import { loadTheme, loadTurns, saveTheme, saveTurns } from "./store.js";
import { Suggestions } from "./suggest.js";
import { watchTokens } from "./tokens.js";
import { drawTree } from "./tree.js";

const RETRY = 1000; // milliseconds until a server that loads is asked again
const THEMES = ["auto", "light", "dark"];
const [log, prompt, error] = ["log", "prompt", "error"].map(find);
const controls = new Controls(connect);

const suggestions = new Suggestions(find("suggestions"), prompt, () => ({
  wanted: Boolean(model) && !stopping && controls.suggests,
  model,
  key: controls.key,
}));

let model = ""; // set once the server is ready
let turns = loadTurns(); // {role, text, and of answers: label, tokens, note, twin}
let stopping = null; // AbortController of the run that is under way
let latest = null; // the newest step
let drawn; // the step in the picture

async function connect() {
  try {
    const offer = await fetchOptions(controls.key);
    controls.fill(offer);
    controls.askForKey(false);
    model = offer.model;
    find("model").textContent = `${model}, context of ${offer.context} tokens`;
    complain("");
  } catch (problem) {
    find("model").textContent = problem.status === 503 ? "the model is loading…" : "not connected";
    controls.askForKey(problem.status === 401);
    if (problem.status === 401) complain(controls.key ? problem.message : "This server needs an API key.");
    else setTimeout(connect, RETRY);
  }
}

/** Errors are one line; no text = no error. */
function complain(text) {
  error.textContent = error.title = text;
  error.hidden = !text;
}

async function send() {
  const text = prompt.value.trim();
  if (!text || stopping || !model) return;
  complain(controls.complaint);
  if (controls.complaint) return;
  prompt.value = "";
  suggestions.clear();
  addTurn({ role: "user", text });
  await proceed();
}

/** Let the model answer what stands in the conversation. */
async function proceed() {
  setBusy(new AbortController());
  try {
    await answer();
  } catch (problem) {
    complain(problem.message);
    takeBack();
  } finally {
    setBusy(null);
    if (!log.contains(document.activeElement)) prompt.focus();
  }
}

/** A message that got no answer goes back to where it was typed. */
function takeBack() {
  if (turns.at(-1)?.role !== "user") return;
  prompt.value = turns.pop().text;
  saveTurns(turns);
  log.lastElementChild.remove();
}

/** The chosen method's answer, and plain decoding's on the same prompt and seed if that is to be compared. */
async function answer() {
  const messages = turns.filter((turn) => !turn.twin).map(message);
  const seed = crypto.getRandomValues(new Uint32Array(1))[0];
  const body = { model, messages, seed, stream: true, stream_options: { include_usage: true }, ...controls.sampling() };
  Object.assign(body, controls.tools(turns.at(-1).role === "tool"));
  const [name, compares] = [controls.method, controls.compares];
  showVerdict("");
  const first = new Run(name, view);
  const whole = await perform(first, { ...body, speculation: controls.speculation() });
  showRace(name, first.meter.rate(), null);
  find("heard").textContent = whole ? `Answer complete: ${first.meter.tokens} tokens.` : "Answer stopped.";
  if (!compares || !whole) {
    askForResults(first);
    return;
  }
  const second = new Run("plain decoding, same prompt and seed", view, true);
  await perform(second, { ...body, speculation: { off: true, trace: controls.trace } });
  const [rate, plain] = [first.meter.rate(), second.meter.rate()];
  showRate(rate, "over the answer");
  showRace(name, rate, plain);
  drawComparison(find("comparison"), [{ name, meter: first.meter }, { name: "plain decoding", meter: second.meter }]);
  askForResults(first);
  showVerdict(`${(rate / plain).toFixed(2)} times plain decoding, which wrote ${likeness(first, second)}.`);
}

/** A turn as the API has it. */
function message({ role, text, calls, call }) {
  if (role === "tool") return { role, content: text, tool_call_id: call };
  return calls?.length ? { role, content: null, tool_calls: calls } : { role, content: text };
}

/** Fields for what the calls of an answer gave; the conversation goes on with them. */
function askForResults(run) {
  if (!run.calls.length) return;
  const form = callCards(run.calls, (results) => {
    if (stopping) return;
    form.replaceWith(callCards(run.calls, null));
    for (const { id, text } of results) addTurn({ role: "tool", text, call: id });
    proceed();
  });
  view.add(form);
  form.querySelector("input").focus();
}

function likeness(first, second) {
  if (first.text === second.text) return "the same text";
  const place = first.tokens.findIndex((token, index) => token.text !== second.tokens[index]?.text);
  return `another text from token ${place < 0 ? first.tokens.length + 1 : place + 1} on`;
}

/** Follow a run and keep what it wrote, whole or not, unless the conversation was cleared meanwhile. */
async function perform(run, body) {
  const conversation = turns;
  try {
    return await run.follow(body, controls.key, stopping.signal);
  } finally {
    if (!run.tokens.length && !run.calls.length) run.answer.element.remove();
    else if (conversation === turns) keep(run.turn);
  }
}

const view = {
  add(element) {
    log.append(element);
    log.scrollTop = log.scrollHeight;
  },
  grown() {
    const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    if (follows) log.scrollTop = log.scrollHeight;
  },
  step(step) {
    latest = step;
    requestAnimationFrame(() => showStep(latest, ""));
  },
};

function showStep(step, when) {
  find("tree-when").textContent = when;
  if (step === drawn) return;
  drawn = step;
  drawTree(find("tree"), step);
}

function setBusy(controller) {
  stopping = controller;
  find("send").hidden = Boolean(controller);
  find("stop").hidden = !controller;
}

function stop() {
  stopping?.abort();
}

function keep(turn) {
  turns.push(turn);
  saveTurns(turns);
}

function addTurn(turn) {
  keep(turn);
  view.add(userMessage(turn.text, turn.role));
}

/** The conversation of an earlier visit. Draft trees are not kept. */
function restore() {
  for (const turn of turns) {
    if (turn.role !== "assistant") {
      view.add(userMessage(turn.text, turn.role));
      continue;
    }
    const answer = new Answer(turn.label, turn.twin);
    answer.add(turn.tokens);
    answer.note(turn.note);
    view.add(answer.element);
    if (turn.calls?.length && !turn.twin) view.add(callCards(turn.calls, null));
  }
}

function clear() {
  stop();
  turns = [];
  saveTurns(turns);
  for (const article of log.querySelectorAll("article, form")) article.remove();
  complain("");
  showStep((latest = null), "");
  prompt.focus();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  find("theme").textContent = `◐ ${theme}`;
  find("theme").setAttribute("aria-label", `Theme: ${theme}`);
  saveTheme(theme);
}

function togglePanels(open) {
  find("side").classList.toggle("open", open);
  find("panels").setAttribute("aria-expanded", String(open));
}

prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  stop();
  togglePanels(false);
  find("tip").hidden = true;
});
find("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
find("stop").addEventListener("click", stop);
find("clear").addEventListener("click", clear);
find("theme").addEventListener("click", () => {
  setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
});
find("panels").addEventListener("click", () => togglePanels(!find("side").classList.contains("open")));
watchTokens(log, (step) => (step ? showStep(step, "of the token pointed at") : showStep(latest, "")));

setTheme(loadTheme());
restore();
new Positions().show();
showStep(null, "");
connect();
