// The comparison as a picture: tokens over time of the chosen method and of plain decoding, from the first token on.

import { draw } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [330, 150, 34, 8, 10, 26];

/** Two meters by name; the second may still run. Every mark on a line is one pass of the model. */
export function drawComparison(place, runs) {
  const curves = runs.map(({ name, meter }) => ({ name, meter, points: meter.curve() })).filter(({ points }) => points.length);
  const longest = Math.max(0.001, ...curves.map(({ points }) => points.at(-1)[0]));
  const most = Math.max(1, ...curves.map(({ points }) => points.at(-1)[1]));
  const at = ([seconds, tokens]) => [
    LEFT + ((WIDTH - LEFT - RIGHT) * seconds) / longest,
    HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * tokens) / most,
  ];
  const said = curves.map(({ name, meter, points }) => `${name}: ${meter.tokens} tokens in ${points.at(-1)[0].toFixed(2)} s, ${meter.steps} passes`);
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Tokens over time. ${said.join("; ")}` });
  svg.append(...axes(longest, most, at), ...curves.flatMap((curve, index) => line(curve, index, at)));
  place.replaceChildren(svg);
}

function axes(longest, most, at) {
  const [[left, bottom], [right, top]] = [at([0, 0]), at([longest, most])];
  const labels = [
    [left - 4, bottom, "end", "0"], [left - 4, top + 4, "end", String(most)],
    [right, bottom + 12, "end", `${longest.toFixed(longest < 10 ? 2 : 0)} s`], [left, bottom + 12, "start", "first token"],
    [(left + right) / 2, HEIGHT - 3, "middle", "seconds; a dot is one pass"],
  ];
  return [
    draw("path", { class: "axis", d: `M${left} ${top}V${bottom}H${right}` }),
    ...labels.map(([x, y, anchor, text]) => {
      const label = draw("text", { x, y, "text-anchor": anchor });
      label.textContent = text;
      return label;
    }),
  ];
}

/** Text appears in steps: a line that goes right, then up. */
function line({ name, points }, index, at) {
  const places = points.map(at);
  const path = places.map(([x, y], i) => (i ? `H${x.toFixed(1)}V${y.toFixed(1)}` : `M${x.toFixed(1)} ${y.toFixed(1)}`)).join("");
  const kind = index ? "plain" : "own";
  const marks = places.map(([x, y]) => draw("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: 1.75 }));
  const title = draw("title");
  title.textContent = name;
  return [draw("g", { class: kind }, [title, draw("path", { d: path }), ...marks])];
}
