// Making elements. Text is always set as text: nothing that a model or a server says is read as HTML.

const SVG = "http://www.w3.org/2000/svg";

export const find = (id) => document.getElementById(id);

export function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

export function draw(tag, attributes = {}, children = []) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A token's text on one line, with white space made visible where there is nothing else. */
export function visible(text) {
  const shown = text.replaceAll("\n", "⏎").replaceAll("\t", "⇥");
  return shown.trim() ? shown.trim() : shown.replaceAll(" ", "␣") || "∅";
}
