// The advanced part of "Word in context": the mix of the layers by its weights, every view as a table, and all tokens in a
// plane.

import { scatter } from "./charts.js";
import { heatTable } from "./heat.js";
import { make, snippet } from "./panel.js";
import { mix, principalPlane, similarities, softmax } from "./vectors.js";

const EXTREME = 5; // of the weights: a factor of e to the 10th, so practically one layer only
const LAYER_NAMES = (number) => (number === 0 ? "Layer 0: spelling only" : `Layer ${number}`);
const VIEWS = { slot: "Slot: what the context expects", sense: "Sense: slot and surroundings" };

// `redraw` is called when a control changes, `changed` when the address does.
export function advancedPart(section, info, { redraw, changed }) {
  const find = (selector) => section.querySelector(selector);
  const [measure, source, names] = [find("select[name=measure]"), find("select[name=source]"), find("input[name=names]")];
  const details = find(".advanced");
  const numLayers = info.num_layers;
  const captions = [...Array(numLayers).keys()].map(LAYER_NAMES).concat(Object.values(VIEWS), "The mix");
  let basis = null;

  const update = () => {
    redraw();
    changed();
  };
  const sliders = makeSliders(find(".sliders"), numLayers, update);
  const preset = (label, weights) =>
    make("button", { type: "button", class: "quiet", text: label, on: { click: () => { sliders.set(weights, 1); update(); } } });
  const even = Array(numLayers).fill(0);
  find(".presets").append(preset("Even", even), ...even.map((_, j) => preset(`Layer ${j}`, even.map((_, k) => (k === j ? EXTREME : -EXTREME)))));
  source.append(make("option", { value: "mix", text: "the mix" }));
  for (let j = 0; j < numLayers; j++) source.append(make("option", { value: `${j}`, text: `layer ${j}` }));
  for (const view of Object.keys(VIEWS)) source.append(make("option", { value: view, text: `the ${view}` }));
  source.value = "sense";
  for (const control of [measure, source, names]) {
    control.addEventListener("change", () => {
      if (control === source) basis = null;
      update();
    });
  }
  details.addEventListener("toggle", redraw);

  function drawTables(seen, mixed, { places, dots }) {
    const n = seen.flat.length;
    const isCosine = measure.value === "cosine";
    const tables = [...seen.products.map((row, j) => row[j]), ...seen.views, mixed].map((gram) => similarities(gram, n, places, measure.value));
    const badges = () => places.map((_, place) => make("span", { class: `badge sense-${dots[place].sense}`, text: `${place + 1}` }));
    const drawn = (number) => {
      const rows = tables[number];
      const [low, high] = isCosine ? [0, 1] : [Math.min(0, ...rows.flat()), Math.max(...rows.flat())];
      return heatTable({ caption: captions[number], names: badges(), numbers: badges(), rows, low, high, digits: 3 });
    };
    find(".mixed").replaceChildren(...(places.length ? [drawn(tables.length - 1)] : []));
    find(".tables").replaceChildren(...(places.length ? tables.slice(0, -1).map((_, number) => drawn(number)) : []));
  }

  function drawScatter(seen, mixed, { places, labels }) {
    const n = seen.flat.length;
    const view = Object.keys(VIEWS).indexOf(source.value);
    const gram = source.value === "mix" ? mixed : view >= 0 ? seen.views[view] : seen.products[source.value][source.value];
    const plane = principalPlane(gram, n, basis);
    basis = plane.basis;
    const numbers = new Map(places.map((index, place) => [index, place]));
    const points = seen.flat.map(({ token, sentence, place }, index) => ({
      x: plane.points[index][0],
      y: plane.points[index][1],
      name: numbers.has(index) ? `${token} ${numbers.get(index) + 1}` : token.slice(0, 24),
      short: numbers.has(index) ? `${numbers.get(index) + 1}` : "",
      where: snippet(seen.sentences[sentence], place).join(""),
      picked: numbers.has(index),
      sense: labels[numbers.get(index)] ?? 0,
    }));
    const kept = Math.round(100 * (plane.kept[0] + plane.kept[1]));
    find(".kept").textContent = `${kept}% of the variance of ${n} tokens`;
    scatter(find(".scatter canvas"), { points, withNames: names.checked, label: `The ${n} tokens in the plane of the first two principal components, which keep ${kept}% of the variance` });
  }

  return {
    // the direction of the plane belongs to the tokens that were drawn
    forget: () => (basis = null),
    draw(seen, shown) {
      const shares = softmax(sliders.weights());
      sliders.showShares(shares);
      if (!details.open || !shown) return;
      const n = seen.flat.length;
      const mixed = mix(seen.products, shares, sliders.gamma());
      drawTables(seen, mixed, shown);
      drawScatter(seen, mixed, shown);
      const size = shown.places.reduce((sum, place) => sum + Math.sqrt(mixed[place * n + place]), 0) / (shown.places.length || 1);
      find(".lengths").textContent =
        (shown.places.length ? `Mean length of the vectors: ${size.toFixed(2)}. ` : "") +
        (measure.value === "cosine" ? "γ scales all vectors: it changes dot products and the scatter plot, but not cosines." : "");
    },
    link: () => ({
      weights: sliders.weights().join(","),
      gamma: `${sliders.gamma()}`,
      measure: measure.value,
      source: source.value,
      names: names.checked ? "1" : "0",
      advanced: details.open ? "1" : "0",
    }),
    restore(params) {
      const weights = (params.get("weights") ?? "").split(",").map(Number);
      if (params.has("weights") && weights.length === numLayers && weights.every(Number.isFinite)) {
        sliders.set(weights, Number(params.get("gamma") ?? 1) || 0);
      }
      choose(measure, params.get("measure"));
      choose(source, params.get("source"));
      if (params.has("names")) names.checked = params.get("names") === "1";
      if (params.has("advanced")) details.open = params.get("advanced") === "1";
    },
  };
}

function choose(select, value) {
  if ([...select.options].some((option) => option.value === value)) select.value = value;
}

function makeSliders(container, numLayers, onInput) {
  const slider = (id, label, attributes) => {
    const output = make("output", { for: id });
    const input = make("input", { id, type: "range", on: { input: onInput }, ...attributes });
    container.append(make("label", { for: id, text: label }), input, output);
    return { input, output };
  };
  const weights = Array.from({ length: numLayers }, (_, j) =>
    slider(`weight-${j}`, `w${"₀₁₂₃₄₅₆₇₈₉"[j] ?? j} layer ${j}`, { min: -EXTREME, max: EXTREME, step: 0.1, value: 0 }),
  );
  const gamma = slider("gamma", "γ", { min: 0.1, max: 4, step: 0.1, value: 1 });
  return {
    weights: () => weights.map(({ input }) => Number(input.value)),
    gamma: () => Number(gamma.input.value),
    set(values, scale) {
      weights.forEach(({ input }, j) => (input.value = values[j]));
      gamma.input.value = scale;
    },
    showShares(shares) {
      weights.forEach(({ input, output }, j) => {
        output.textContent = `${Math.round(100 * shares[j])}%`;
        input.setAttribute("aria-valuetext", `${input.value}, ${Math.round(100 * shares[j])}% of the mix`);
      });
      gamma.output.textContent = Number(gamma.input.value).toFixed(1);
    },
  };
}
