// The page for operators: asks for the figures every other second, and shows them as text.

import { ApiError, fetchStatus } from "./api.js";
import { find, make } from "./dom.js";
import { loadKey, loadTheme, saveKey } from "./store.js";

const PAUSE = 2000; // milliseconds between two looks
const whole = (value) => Math.round(value).toLocaleString("en");
const share = (part, all) => (all ? `${((100 * part) / all).toFixed(1)}%` : "–");
const seconds = (value) => (value === null ? "–" : value < 1 ? `${(1000 * value).toFixed(1)} ms` : `${value.toFixed(2)} s`);

/** A list of names and values; what is null is left out. */
function list(id, rows) {
  const parts = rows.filter(([, value]) => value !== null && value !== undefined);
  find(id).replaceChildren(...parts.flatMap(([name, value]) => [make("dt", "", name), make("dd", "", String(value))]));
}

function table(id, caption, names, rows, none) {
  if (!rows.length) {
    const cell = make("td", "quiet", none);
    const line = make("tr");
    line.append(cell);
    find(id).replaceChildren(line);
    return;
  }
  const head = make("thead");
  const top = make("tr");
  for (const name of names) {
    const cell = make("th", "", name);
    cell.scope = "col";
    top.append(cell);
  }
  head.append(top);
  const body = make("tbody");
  for (const row of rows) {
    const line = make("tr");
    line.append(...row.map((cell) => cell instanceof Node ? wrapped(cell) : make("td", "", String(cell))));
    body.append(line);
  }
  find(id).replaceChildren(make("caption", "unseen", caption), head, body);
}

function wrapped(node) {
  const cell = make("td");
  cell.append(node);
  return cell;
}

/** A part of a whole as a bar with its number beside it. */
function gauge(part, all, label) {
  const span = make("span", "", `${share(part, all)} `);
  const bar = make("meter");
  bar.max = 1;
  bar.value = all ? part / all : 0;
  bar.setAttribute("aria-label", label);
  span.append(bar);
  return span;
}

function lasting(total) {
  const [hours, minutes] = [Math.floor(total / 3600), Math.floor(total / 60) % 60];
  return hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min` : `${Math.floor(total)} s`;
}

function show(found) {
  const { served, load, learning, canary, reloads } = found;
  find("model").textContent = `${found.model}: ${found.state}, for ${lasting(found.seconds)}`;
  list("served", [
    ["version", found.version], ["method", served?.method], ["rule", served && `${served.rule}, ${served.exact ? "exact" : "lossy"}`],
    ["others", served?.others.join(", ")], ["executor", served && `${served.executor}, ${served.dtype}, ${served.device}`],
    ["context", served && `${whole(served.context)} tokens`], ["API keys", served && (served.keys || "none: open to everyone")],
    ["fingerprint", served?.fingerprint],
  ]);
  list("load", [
    ["running", `${load.running} of ${served?.slots ?? "–"} slots`], ["waiting", `${load.waiting} of ${load.queue}`],
    ["prompt tokens", whole(load.prompt_tokens)], ["memory", `${whole(load.mib)} MiB`],
  ]);
  const names = { time_to_first_token: "first token", inter_token: "between tokens", request: "whole answer" };
  table("times", "Times", ["", "median", "p90", "count"], Object.entries(found.times).map(([key, each]) => [
    names[key], seconds(each.p50), seconds(each.p90), whole(each.count),
  ]), "");
  list("ends", [
    ...Object.entries(found.outcomes).map(([name, count]) => [`ended: ${name}`, whole(count)]),
    ...Object.entries(found.refusals).map(([code, count]) => [`refused: ${code}`, whole(count)]),
  ]);
  table("methods", "Drafting by method", ["method", "tokens", "passes", "tokens a pass", "drafted", "accepted", "share"],
    found.methods.map((each) => [
      each.method, whole(each.tokens), whole(each.rounds), (each.rounds ? each.tokens / each.rounds : 0).toFixed(2),
      whole(each.drafted), whole(each.accepted), gauge(each.accepted, each.drafted, `accepted drafts of ${each.method}`),
    ]), "Nothing was written yet.");
  table("places", "Acceptance by position", ["position", "drafted", "accepted"], found.positions.map((each) => [
    each.position, whole(each.drafted), gauge(each.accepted, each.drafted, `position ${each.position}`),
  ]), "Nothing was drafted yet.");
  list("learning", [
    ["learning", learning ? `${learning.heads} heads, ${learning.updates} updates, ${learning.swaps} swaps` : "off"],
    ["held-out acceptance", learning && `${learning.acceptance.toFixed(3)}, at first ${learning.first.toFixed(3)}`],
    ["reloads", Object.entries(reloads.counts).map(([how, count]) => `${count} ${how}`).join(", ") || "none"],
    ["latest reload", reloads.latest],
    ["canary", canary.compared ? `${canary.flips} of ${canary.compared} answers differ` : null],
    ["lossy rules", canary.fallback ? "switched off by the canary" : null],
  ]);
  table("errors", "Recent warnings and errors", ["time", "level", "what", "kind"], found.errors.map((each) => [
    new Date(1000 * each.time).toLocaleTimeString(), each.level, each.message, each.error ?? "",
  ]), "None since the start.");
}

async function look() {
  try {
    show(await fetchStatus(loadKey()));
    complain("");
  } catch (problem) {
    if (!(problem instanceof ApiError)) throw problem;
    find("unlock").hidden = problem.status !== 401;
    complain(problem.status === 401 ? "These figures need an API key." : problem.message);
    if (problem.status === 401) return; // asked again when a key is given
  }
  setTimeout(look, PAUSE);
}

function complain(text) {
  find("error").textContent = text;
  find("error").hidden = !text;
}

find("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  saveKey(find("key").value);
  find("unlock").hidden = true;
  look();
});
document.documentElement.dataset.theme = loadTheme();
look();
