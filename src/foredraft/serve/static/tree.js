// The draft tree of a step as SVG: from the last token on the left to the deepest draft on the right.

import { draw, make, visible } from "./dom.js";
import { look } from "./tokens.js";

const ROW = 23; // height of a line of the drawing
const BOX = 18; // height of a node
const CHARACTER = 6.7; // width at the font size of the style sheet
const LONGEST = 14; // characters of a node's text
const GAP = 18; // between columns

/** Draw a step of the API's trace into `place`, or say that there is nothing to draw. */
export function drawTree(place, step) {
  if (!step) {
    place.replaceChildren(make("p", "quiet", "The drafts of each step appear here while an answer is written."));
    return;
  }
  const nodes = withTarget(step);
  layOut(nodes);
  const width = Math.max(...nodes.map((node) => node.x + node.width)) + 2;
  const height = ROW * (1 + Math.max(...nodes.map((node) => node.row)));
  const accepted = step.tree.filter((node) => node.accepted).length;
  const svg = draw("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "aria-label": `Draft tree: ${step.tree.length} drafted, ${accepted} accepted`,
  });
  svg.append(draw("g", { class: "root" }, [draw("circle", { cx: 5, cy: middle(nodes[0]), r: 4 })]));
  for (const node of nodes.slice(1)) svg.append(drawNode(node, node.parent));
  place.replaceChildren(svg);
  const end = Math.max(...nodes.filter((node) => node.accepted).map((node) => node.x + node.width));
  place.scrollTo(end - place.clientWidth, 0); // the end of the accepted path is in sight
}

/** The root, the drafted nodes, and the target's own token after the accepted path. Parents become nodes. */
function withTarget(step) {
  const root = { text: "", parent: null, children: [], depth: 0 };
  const nodes = [root];
  let end = root;
  const reasons = step.tokens.map((token) => token.reason);
  for (const { parent, text, accepted } of step.tree) {
    const above = parent < 0 ? root : nodes[parent + 1];
    const node = { text, parent: above, children: [], depth: above.depth + 1, accepted };
    if (accepted) {
      node.look = look(reasons[node.depth - 1]);
      end = node;
    }
    above.children.push(node);
    nodes.push(node);
  }
  const last = step.tokens[end.depth];
  if (last) {
    const own = { text: last.text, parent: end, children: [], depth: end.depth + 1, accepted: true };
    own.look = look(last.reason);
    end.children.push(own);
    nodes.push(own);
  }
  return nodes;
}

/** Columns by depth, as wide as their longest text; leaves on lines of their own, the accepted branch first. */
function layOut(nodes) {
  const widths = [];
  for (const node of nodes) {
    node.shown = node.parent ? shorten(visible(node.text)) : "";
    node.width = node.parent ? [...node.shown].length * CHARACTER + 12 : 10;
    widths[node.depth] = Math.max(widths[node.depth] ?? 0, node.width);
  }
  const starts = [0];
  for (const width of widths) starts.push(starts.at(-1) + width + GAP);
  let line = 0;
  const place = (node) => {
    node.x = starts[node.depth];
    node.children.sort((a, b) => Number(b.accepted) - Number(a.accepted));
    for (const child of node.children) place(child);
    node.row = node.children.length ? node.children[0].row : line++;
  };
  place(nodes[0]);
}

function drawNode(node, parent) {
  const y = middle(node);
  const [from, to] = [parent.x + parent.width, node.x];
  const bend = (from + to) / 2;
  const title = draw("title");
  title.textContent = node.text;
  const text = draw("text", { x: node.x + 6, y: y + 4 });
  text.textContent = node.shown;
  return draw("g", { class: node.accepted ? `accepted ${node.look}` : "rejected" }, [
    draw("path", { d: `M${from} ${middle(parent)}C${bend} ${middle(parent)} ${bend} ${y} ${to} ${y}` }),
    draw("rect", { x: node.x, y: y - BOX / 2, width: node.width, height: BOX, rx: 5 }),
    text,
    title,
  ]);
}

const middle = (node) => ROW * (node.row + 0.5);

function shorten(text) {
  const letters = [...text];
  return letters.length > LONGEST ? `${letters.slice(0, LONGEST - 1).join("")}…` : text;
}
