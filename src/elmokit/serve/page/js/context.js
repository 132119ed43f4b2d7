// Word in context: sentences and a word -> how similar the vectors of its occurrences are, in each layer, in the mix and
// by the views slot and sense.

import { drawRamp, heatMap, scatter } from "./charts.js";
import { lastOnly, later, lines, make, needsSpace, say, snippet, tokenized } from "./panel.js";
import { ask, layersOf, viewOf } from "./server.js";
import { innerProducts, mix, principalPlane, similarities, softmax } from "./vectors.js";

const EXAMPLE = {
  word: "bank",
  text: [
    "The bank raised its interest rates.",
    "He borrowed the money from a bank in London.",
    "She works for a large investment bank.",
    "We sat on the bank of the river.",
    "They fished from the muddy bank of the stream.",
    "Trees grew along the far bank of the lake.",
  ].join("\n"),
};
const MOST_TOKENS = 400; // a page can keep their inner products in memory
const MOST_OCCURRENCES = 40;
const EXTREME = 5; // of the weights: a factor of e to the 10th, so practically one layer only
const LAYER_NAMES = (number) => (number === 0 ? "Layer 0: spelling only" : `Layer ${number}`);
const VIEWS = { slot: "Slot: what the context expects", sense: "Sense: slot and surroundings" };

export function contextPanel(section, info, changed) {
  const find = (selector) => section.querySelector(selector);
  const { text, word } = find("form").elements;
  const source = find("select[name=source]");
  const names = find("input[name=names]");
  const message = find(".message");
  const numLayers = info.num_layers;
  const captions = [...Array(numLayers).keys()].map(LAYER_NAMES).concat(Object.values(VIEWS), "The mix");
  let seen = null; // { text, sentences, flat, products, views }: what the server was asked for
  let basis = null;

  text.value = EXAMPLE.text;
  word.value = EXAMPLE.word;

  const sliders = makeSliders(find(".sliders"), numLayers, () => {
    drawNumbers();
    changed();
  });
  makePresets();
  source.append(make("option", { value: "mix", text: "the mix" }));
  for (let j = 0; j < numLayers; j++) source.append(make("option", { value: `${j}`, text: `layer ${j}` }));
  for (const view of Object.keys(VIEWS)) source.append(make("option", { value: view, text: `the ${view}` }));
  const canvases = captions.slice(0, -1).map((caption) => {
    const canvas = make("canvas", { role: "img" });
    find(".layers").append(make("figure", {}, make("figcaption", { text: caption }), make("div", {}, canvas)));
    return canvas;
  });
  canvases.push(find(".mixed canvas"));

  const fetchLayers = lastOnly(section, message, async (signal) => {
    const typed = text.value;
    const given = lines(typed);
    if (given.length === 0) throw note("Enter a sentence.");
    const sentences = await tokenized(ask, given, signal);
    const count = sentences.reduce((sum, tokens) => sum + tokens.length, 0);
    if (count > MOST_TOKENS) throw note(`There are ${count} tokens; the page draws at most ${MOST_TOKENS}. Remove some sentences.`);
    const [layers, ...views] = await Promise.all([
      layersOf(sentences, signal),
      ...Object.keys(VIEWS).map((view) => viewOf(sentences, view, signal)),
    ]);
    const flat = sentences.flatMap((tokens, sentence) => tokens.map((token, place) => ({ token, sentence, place })));
    seen = { text: typed, sentences, flat, products: innerProducts(layers), views: views.map((view) => innerProducts(view)[0][0]) };
    basis = null;
    draw();
  });

  function note(words) {
    return Object.assign(new Error(words), { status: 422 });
  }

  function occurrences() {
    const wanted = word.value.trim().toLowerCase();
    return seen.flat.flatMap(({ token }, index) => (token.toLowerCase() === wanted ? [index] : []));
  }

  function draw() {
    find(".results").hidden = false;
    drawSentences();
    drawNumbers();
  }

  function drawSentences() {
    const numbers = new Map(occurrences().map((index, number) => [index, number + 1]));
    let index = 0;
    find(".sentences").replaceChildren(
      ...seen.sentences.map((tokens) => {
        const item = make("li");
        for (const [place, token] of tokens.entries()) {
          if (needsSpace(tokens[place - 1], token)) item.append(" ");
          const number = numbers.get(index);
          const button = make("button", { type: "button", class: "word", text: token, "aria-pressed": `${number !== undefined}`, on: { click: () => pick(token) } });
          if (number !== undefined) button.append(make("sub", { text: `${number}` }));
          item.append(button);
          index += 1;
        }
        return item;
      }),
    );
  }

  function pick(token) {
    const index = [...section.querySelectorAll(".sentences button")].indexOf(document.activeElement);
    word.value = token;
    draw();
    section.querySelectorAll(".sentences button")[index]?.focus();
    changed();
  }

  function drawNumbers() {
    if (!seen) return;
    const n = seen.flat.length;
    const shares = softmax(sliders.weights());
    sliders.showShares(shares);
    const mixed = mix(seen.products, shares, sliders.gamma());
    const all = occurrences();
    const places = all.slice(0, MOST_OCCURRENCES);
    drawHeat(mixed, n, places);
    drawScatter(mixed, n, all);
    const size = places.reduce((sum, place) => sum + Math.sqrt(mixed[place * n + place]), 0) / (places.length || 1);
    find(".lengths").textContent =
      (places.length ? `Mean length of the vectors: ${size.toFixed(2)}. ` : "") +
      (measureOf() === "cosine" ? "γ scales all vectors: it changes dot products and the scatter plot, but not cosines." : "");
    const wanted = word.value.trim();
    if (wanted === "") say(message, "Choose a word in the sentences.");
    else if (all.length === 0) say(message, `“${wanted}” is not in these sentences. Choose one of their words.`);
    else if (all.length === 1) say(message, `“${wanted}” occurs only once: add a sentence with a second occurrence to compare it with.`);
    else if (all.length > MOST_OCCURRENCES) say(message, `“${wanted}” occurs ${all.length} times; the first ${MOST_OCCURRENCES} are compared.`);
    else say(message, "");
    message.dataset.kept = message.textContent;
  }

  function measureOf() {
    return find("select[name=measure]").value;
  }

  function drawHeat(mixed, n, places) {
    const isCosine = measureOf() === "cosine";
    const grams = [...seen.products.map((row, j) => row[j]), ...seen.views, mixed];
    const tables = grams.map((gram) => similarities(gram, n, places, measureOf()));
    const labels = places.map((_, number) => `${number + 1}`);
    const lowest = (rows) => Math.min(...rows.flat());
    const highest = (rows) => Math.max(...rows.flat());
    // one scale for the cosines of the layers and the mix, one for the views, so that they can be compared; dot products
    // have no common one
    const isView = (number) => number >= numLayers && number < tables.length - 1;
    const floorOf = (chosen) => (places.length ? Math.min(0.9, Math.floor(10 * Math.min(...chosen.map(lowest))) / 10) : 0);
    const floors = [floorOf(tables.filter((_, number) => !isView(number))), floorOf(tables.filter((_, number) => isView(number)))];
    for (const [number, rows] of tables.entries()) {
      const isMix = number === tables.length - 1;
      const canvas = canvases[number];
      canvas.parentElement.hidden = places.length === 0;
      if (places.length === 0) continue;
      const [low, high] = isCosine ? [floors[Number(isView(number))], 1] : [Math.min(0, lowest(rows)), highest(rows)];
      heatMap(canvas, {
        rows,
        names: labels,
        low,
        high,
        digits: isCosine ? 2 : 1,
        label: `${captions[number]}: ${isCosine ? "cosines" : "dot products"} between ${places.length} occurrences of ${word.value}, from ${lowest(rows).toFixed(2)} to ${highest(rows).toFixed(2)}; the numbers are in a table below`,
        describe: (a, b) => [a, b].map((number) => `${number + 1}  ${where(places[number])}`),
      });
      if (isMix) {
        find(".scale .low").textContent = low.toFixed(isCosine ? 1 : 0);
        find(".scale .high").textContent = high.toFixed(isCosine ? 1 : 0);
        drawRamp(find(".ramp"));
      }
    }
    find(".scale").hidden = places.length === 0;
    find(".tables").replaceChildren(
      ...[tables.length - 1, ...tables.keys()].slice(0, -1).map((number) => table(captions[number], labels, tables[number])),
    );
  }

  function where(index) {
    const { sentence, place } = seen.flat[index];
    return snippet(seen.sentences[sentence], place);
  }

  function drawScatter(mixed, n, all) {
    const view = Object.keys(VIEWS).indexOf(source.value);
    const gram = source.value === "mix" ? mixed : view >= 0 ? seen.views[view] : seen.products[source.value][source.value];
    const plane = principalPlane(gram, n, basis);
    basis = plane.basis;
    const numbers = new Map(all.map((index, number) => [index, number + 1]));
    const points = seen.flat.map(({ token }, index) => ({
      x: plane.points[index][0],
      y: plane.points[index][1],
      name: numbers.has(index) ? `${token} ${numbers.get(index)}` : token,
      short: `${numbers.get(index) ?? ""}`,
      where: where(index),
      picked: numbers.has(index),
    }));
    const kept = Math.round(100 * (plane.kept[0] + plane.kept[1]));
    find(".kept").textContent = `${kept}% of the variance of ${n} tokens`;
    scatter(find(".scatter canvas"), { points, withNames: names.checked, label: `The ${n} tokens in the plane of the first two principal components, which keep ${kept}% of the variance` });
  }

  function makePresets() {
    const preset = (label, weights) =>
      make("button", { type: "button", class: "quiet", text: label, on: { click: () => { sliders.set(weights, 1); drawNumbers(); changed(); } } });
    const even = Array(numLayers).fill(0);
    find(".presets").append(
      preset("Even", even),
      ...even.map((_, j) => preset(`Layer ${j}`, even.map((_, k) => (k === j ? EXTREME : -EXTREME)))),
    );
  }

  const typed = later(() => {
    fetchLayers();
    changed();
  });
  text.addEventListener("input", typed);
  word.addEventListener("input", () => {
    if (seen) draw();
    changed();
  });
  find("form").addEventListener("submit", (event) => {
    event.preventDefault();
    fetchLayers();
  });
  for (const control of [find("select[name=measure]"), source, names]) {
    control.addEventListener("change", () => {
      if (control === source) basis = null;
      drawNumbers();
      changed();
    });
  }

  return {
    link: () => ({
      text: text.value,
      word: word.value,
      weights: sliders.weights().join(","),
      gamma: `${sliders.gamma()}`,
      measure: measureOf(),
      source: source.value,
      names: names.checked ? "1" : "0",
    }),
    restore(params) {
      text.value = params.get("text") ?? text.value;
      word.value = params.get("word") ?? word.value;
      const weights = (params.get("weights") ?? "").split(",").map(Number);
      if (params.has("weights") && weights.length === numLayers && weights.every(Number.isFinite)) {
        sliders.set(weights, Number(params.get("gamma") ?? 1) || 0);
      }
      choose(find("select[name=measure]"), params.get("measure"));
      choose(source, params.get("source"));
      if (params.has("names")) names.checked = params.get("names") === "1";
      if (seen?.text === text.value) draw();
      else fetchLayers();
    },
    again: () => fetchLayers(),
    repaint: () => seen && drawRamp(find(".ramp")),
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

function table(caption, labels, rows) {
  const cell = (value) => make("td", { text: value.toFixed(3) });
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    make("table", {},
      make("caption", { text: caption }),
      make("thead", {}, make("tr", {}, make("td"), ...labels.map((label) => make("th", { scope: "col", text: label })))),
      make("tbody", {}, ...rows.map((row, number) => make("tr", {}, make("th", { scope: "row", text: labels[number] }), ...row.map(cell)))),
    ),
  );
}
