// Tokens: who wrote each, in words and in looks, and the tip that tells more about one.

import { find, make, visible } from "./dom.js";

const SAID = {
  standard: "Accepted draft",
  relaxed: "Draft that only a relaxed rule accepted",
  judge: "Draft that only the judge accepted",
  corrected: "Target's token, in place of a draft",
  bonus: "Target's token, after the drafts",
  target: "Target's token, nothing was drafted",
};
const SHOWN = 6; // rejected drafts that a tip names

/** The class that a token looks like: the target's own tokens look the same, whatever they followed. */
export const look = (reason) => (reason === "bonus" ? "target" : reason);

const details = new WeakMap();

/** A span for one token. `step` is the step that wrote it, if it is still known. */
export function tokenSpan(token, step = null) {
  const span = make("span", `token ${look(token.reason)}`, token.text);
  span.dataset.reason = token.reason;
  span.tabIndex = -1;
  details.set(span, { token, step });
  return span;
}

/** Show tips for the tokens in `log`; `onStep` hears whose step is looked at, and null when none is any more. */
export function watchTokens(log, onStep) {
  let shown = null;
  const show = (event) => {
    const span = event.target.closest?.(".token");
    if (!span || !details.has(span)) return;
    const { token, step } = details.get(span);
    shown = span;
    fillTip(token);
    placeTip(span);
    onStep(step);
  };
  const hide = () => {
    shown = null;
    find("tip").hidden = true;
    onStep(null);
  };
  log.addEventListener("mouseover", show);
  log.addEventListener("focusin", show);
  log.addEventListener("mouseout", hide);
  log.addEventListener("focusout", hide);
  log.addEventListener("scroll", () => shown && placeTip(shown));
  log.addEventListener("keydown", walk);
}

function fillTip(token) {
  const tip = find("tip");
  tip.replaceChildren(make("b", "", SAID[token.reason] ?? token.reason));
  if (token.rank) {
    const percent = (100 * token.probability).toFixed(token.probability < 0.1 ? 2 : 1);
    tip.append(make("p", "", `rank ${token.rank}, probability ${percent} %`));
  }
  if (token.rejected?.length) {
    const line = make("p", "", "rejected: ");
    for (const text of token.rejected.slice(0, SHOWN)) line.append(make("code", "", visible(text)), " ");
    if (token.rejected.length > SHOWN) line.append(`and ${token.rejected.length - SHOWN} more`);
    tip.append(line);
  }
  tip.hidden = false;
}

/** Below the token, or above it where the window ends. */
function placeTip(span) {
  const tip = find("tip");
  const place = span.getClientRects()[0] ?? span.getBoundingClientRect();
  const left = Math.min(place.left, innerWidth - tip.offsetWidth - 8);
  const below = place.bottom + 8;
  const top = below + tip.offsetHeight > innerHeight ? place.top - tip.offsetHeight - 8 : below;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${Math.max(8, top)}px`;
  span.setAttribute("aria-describedby", "tip");
}

/** Arrow keys go from token to token; one token of an answer is a stop of the Tab key. */
function walk(event) {
  const span = event.target.closest?.(".token");
  const way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!span || !way) return;
  const next = way > 0 ? span.nextElementSibling : span.previousElementSibling;
  if (!next) return;
  event.preventDefault();
  span.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
