// The map: a dot for each occurrence, which moves as the view changes.
// Input: the points of each view, in order, and a place between them.  Output: dots in an SVG, drawn with one scale.

import { HAN } from "./panel.js";

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = 46; // pixels around the dots, for their labels
const RADIUS = 11;
const [LETTER, CHARACTER] = [6.2, 12.5]; // pixels: a letter of a label on average, a Chinese character

function node(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// stops: lists of [x, y], one list per view; dots: { number, sense, label }
export function dotMap(svg, { stops, dots, at, label }) {
  const width = svg.clientWidth || 440;
  const height = svg.clientHeight || 320;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-label", label);
  // one scale for all views: where the vectors are alike, the dots lie near each other
  const widest = Math.max(1e-9, ...stops.flat().map(([x]) => Math.abs(x)));
  const tallest = Math.max(1e-9, ...stops.flat().map(([, y]) => Math.abs(y)));
  const scale = Math.min((width / 2 - MARGIN) / widest, (height / 2 - MARGIN / 2 - RADIUS) / tallest);
  const places = between(stops, at).map(([x, y]) => ({ x: width / 2 + scale * x, y: height / 2 - scale * y }));
  const taken = places.map(({ x, y }) => ({ left: x - RADIUS, right: x + RADIUS, top: y - RADIUS, bottom: y + RADIUS }));
  svg.replaceChildren(
    ...places.map((place, i) => written(svg, place, dots[i], taken, width, height)).filter(Boolean),
    ...places.map(({ x, y }, i) =>
      node("g", { class: `dot sense-${dots[i].sense}`, transform: `translate(${x.toFixed(2)} ${y.toFixed(2)})` },
        node("title", {}, dots[i].label),
        node("circle", { r: RADIUS }),
        node("text", { "text-anchor": "middle", dy: ".35em" }, `${dots[i].number}`),
      )),
  );
}

function between(stops, at) {
  const low = Math.min(Math.floor(at), stops.length - 1);
  const high = Math.min(low + 1, stops.length - 1);
  const share = at - low;
  return stops[low].map(([x, y], i) => [x + share * (stops[high][i][0] - x), y + share * (stops[high][i][1] - y)]);
}

// A label beside its dot where there is room for it; else none.
function written(svg, { x, y }, { label, sense }, taken, width, height) {
  const w = Array.from(label).reduce((sum, one) => sum + (HAN.test(one) ? CHARACTER : LETTER), 6);
  const [h, gap] = [16, RADIUS + 3];
  const corners = [[x + gap, y - h / 2], [x - gap - w, y - h / 2], [x - w / 2, y - gap - h], [x - w / 2, y + gap], [x + 8, y - gap - h + 4], [x + 8, y + gap - 4], [x - 8 - w, y - gap - h + 4], [x - 8 - w, y + gap - 4]];
  const box = corners
    .map(([left, top]) => ({ left, top, right: left + w, bottom: top + h }))
    .find((free) => free.left >= 2 && free.right <= width - 2 && free.top >= 2 && free.bottom <= height - 2 && !taken.some((other) => overlap(free, other)));
  if (!box) return null;
  taken.push(box);
  return node("text", { class: `label sense-${sense}`, x: box.left + 3, y: box.top + h / 2, dy: ".35em" }, label);
}

function overlap(a, b) {
  return a.left < b.right && a.right > b.left && a.top < b.bottom && a.bottom > b.top;
}
