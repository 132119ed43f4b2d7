// Word in context: sentences and a word -> the senses of its occurrences, how similar their vectors are by each view, and a
// map on which they move from view to view.

import { advancedPart } from "./advanced.js";
import { NUM_SENSE_COLOURS } from "./charts.js";
import { examplesOf, isForeign } from "./examples.js";
import { heatTable } from "./heat.js";
import { dotMap } from "./map.js";
import { isHan, lastOnly, later, make, merged, note, say, shortened, snippet, tokensOf } from "./panel.js";
import { agreement, group, planes, ranges, rangeText } from "./senses.js";
import { ask, layersOf, viewOf } from "./server.js";
import { innerProducts, similarities } from "./vectors.js";

const MOST_TOKENS = 400; // a page can keep their inner products in memory
const MOST_OCCURRENCES = 40;
const VIEWS = ["slot", "sense"];
const MOVE_MILLISECONDS = 700; // from one view to the next
const NUMBERS = ["No", "One", "Two", "Three", "Four", "Five", "Six"];

export function contextPanel(section, info, changed) {
  const find = (selector) => section.querySelector(selector);
  const { text, word } = find("form").elements;
  const message = find(".message");
  const travel = find("input[name=view]");
  const spelling = info.num_layers === 1 ? "Layer 0" : isHan(info) ? "Characters" : "Spelling";
  const around = isHan(info) ? 5 : 2; // tokens on each side of an occurrence, in the table
  const [examples, hardExamples] = examplesOf(info);
  const stopNames = [spelling, ...Array.from({ length: info.num_layers - 1 }, (_, j) => `Layer ${j + 1}`), "Sense"];
  let seen = null; // { text, word, wanted, lines, sentences, flat, products, views }: what the model was asked for
  let shown = null; // { places, labels, tables, points, dots }: what is drawn of it
  let animation = 0;

  travel.max = stopNames.length - 1;
  travel.value = travel.max;
  const advanced = advancedPart(section, info, { changed, redraw: drawNumbers });
  use(examples[0]);
  makeExamples();

  const stopButtons = stopNames.map((name, stop) => {
    const button = make("button", { type: "button", class: "stop", on: { click: () => moveTo(stop) } }, make("strong", { text: name }), make("span", { class: "bars-of-stop" }));
    find(".stops").append(button);
    return button;
  });

  const fetchLayers = lastOnly(section, message, async (signal) => {
    const typed = text.value;
    const typedLines = typed.split("\n");
    const filled = typedLines.filter((line) => line.trim());
    if (filled.length === 0) throw note("Enter a sentence.");
    const asked = word.value;
    const found = await tokensOf(ask, isHan(info) ? [...filled, asked] : filled, signal);
    const wanted = isHan(info) ? found.pop().map((token) => token.text) : [];
    const lines = filled.map((line, number) => ({ line, tokens: isHan(info) ? merged(found[number], wanted) : found[number] })).filter(({ tokens }) => tokens.length);
    const sentences = lines.map(({ tokens }) => tokens.map((token) => token.text));
    const count = sentences.reduce((sum, tokens) => sum + tokens.length, 0);
    if (count > MOST_TOKENS) throw note(`There are ${count} words and punctuation marks; the page draws at most ${MOST_TOKENS}. Remove some sentences.`);
    const [layers, ...views] = await Promise.all([layersOf(sentences, signal), ...VIEWS.map((view) => viewOf(sentences, view, signal))]);
    const flat = sentences.flatMap((tokens, sentence) => tokens.map((token, place) => ({ token, sentence, place })));
    seen = { text: typed, word: asked, wanted: wanted.join(""), lines, sentences, flat, products: innerProducts(layers), views: views.map((view) => innerProducts(view)[0][0]) };
    advanced.forget();
    draw();
  });

  // ---- what is entered -----------------------------------------------------------------------------------------------

  function use(example) {
    text.value = example.text;
    word.value = example.word;
  }

  function makeExamples() {
    const chip = (example) =>
      make("button", { type: "button", class: "chip", text: example.word, on: { click: () => { use(example); fetchLayers(); changed(); } } });
    find(".examples").append(make("span", { class: "soft", text: "Examples" }), ...examples.map(chip));
    if (hardExamples.length) find(".examples").append(make("span", { class: "soft", text: "Not told apart" }), ...hardExamples.map(chip));
  }

  // The example that is in the fields, unchanged.
  function exampleShown() {
    return [...examples, ...hardExamples].find((example) => example.text === text.value && example.word === word.value.trim().toLowerCase());
  }

  function occurrences() {
    const wanted = (isHan(info) ? seen.wanted : word.value.trim()).toLowerCase();
    return seen.flat.flatMap(({ token }, index) => (token.toLowerCase() === wanted ? [index] : []));
  }

  // Colours behind the text of the editor: the marks of a line are kept while other lines change.
  function drawMarks() {
    const marksOf = new Map();
    const number = new Map((shown?.places ?? []).map((index, place) => [index, place]));
    for (const [index, { sentence, place }] of (seen?.flat ?? []).entries()) {
      if (!number.has(index)) continue;
      const { line, tokens } = seen.lines[sentence];
      if (!marksOf.has(line)) marksOf.set(line, []);
      const marks = marksOf.get(line);
      if (!marks.some(({ start }) => start === tokens[place].start)) marks.push({ ...tokens[place], sense: shown.dots[number.get(index)].sense });
    }
    find(".backdrop").replaceChildren(
      ...text.value.split("\n").flatMap((line, row) => {
        const parts = row ? ["\n"] : [];
        const characters = Array.from(line); // offsets count characters, strings of this language halves of some
        let end = 0;
        for (const { start, stop, sense } of marksOf.get(line) ?? []) {
          parts.push(characters.slice(end, start).join(""), make("mark", { class: `sense-${sense}`, text: characters.slice(start, stop).join("") }));
          end = stop;
        }
        return [...parts, characters.slice(end).join("")];
      }),
      "\n",
    );
    for (const chip of section.querySelectorAll(".chip")) chip.setAttribute("aria-pressed", `${exampleShown()?.word === chip.textContent}`);
  }

  // ---- what is drawn -------------------------------------------------------------------------------------------------

  function draw() {
    const all = occurrences();
    const places = all.slice(0, MOST_OCCURRENCES);
    const n = seen.flat.length;
    const grams = [...seen.products.map((row, j) => row[j]), seen.views[VIEWS.indexOf("sense")]];
    const tables = grams.map((gram) => similarities(gram, n, places, "cosine"));
    const labels = group(tables.at(-1));
    const enough = places.length > 1;
    const dots = places.map((index, place) => ({ number: place + 1, sense: labels[place] % NUM_SENSE_COLOURS, label: near(index) }));
    shown = { places, labels, tables, dots, points: enough ? planes(tables) : [] };
    for (const part of section.querySelectorAll(".stage, .heat")) part.hidden = !enough;
    find("#words").replaceChildren(...repeated().map((token) => make("option", { value: token })));
    drawMarks();
    drawFinding(all.length);
    drawStops();
    drawNumbers();
    if (enough) drawMap();
  }

  // words that occur more than once, without punctuation
  function repeated() {
    const counts = new Map();
    for (const { token } of seen.flat) counts.set(token.toLowerCase(), (counts.get(token.toLowerCase()) ?? 0) + 1);
    return [...counts].filter(([token, count]) => count > 1 && /\p{L}/u.test(token)).map(([token]) => token);
  }

  function drawFinding(count) {
    const { labels, tables } = shown;
    const name = `“${shortened(word.value.trim())}”`;
    const [finding, remark] = [find(".finding"), find(".remark")];
    say(message, "");
    remark.textContent = "";
    if (count < 2) {
      if (word.value.trim() === "") finding.textContent = "Which word? Enter one, or double-click it in the text.";
      else if (count === 0) finding.textContent = `${name} is not in these sentences.`;
      else finding.textContent = `${name} occurs only once.`;
      if (count === 1) remark.textContent = "Add a sentence with a second occurrence to compare it with.";
      return;
    }
    const example = exampleShown();
    const readers = example?.labels.length === labels.length ? example.labels : null;
    const numSenses = new Set(labels).size;
    const { same, other } = ranges(tables.at(-1), readers ?? labels);
    const all = ranges(tables[0], labels.map(() => 0)).same;
    const bySpelling = `by ${spelling.toLowerCase()} ${rangeText(all)}`;
    const numbers = other === null ? `cosines ${rangeText(same)}` : `same sense ${same ? rangeText(same) : "–"}, other sense ${rangeText(other)}`;
    const senses = numSenses === 1 ? "One sense" : `${NUMBERS[numSenses] ?? numSenses} senses`;
    const head = readers && numSenses === 1 ? `The senses of ${name} are not told apart` : `${senses} of ${name}`;
    finding.replaceChildren(make("span", { class: "head", text: `${head}: ` }), make("span", { class: "figures", text: `${numbers}; ${bySpelling}` }), ".");
    if (readers) {
      const seenByReader = `A reader sees ${NUMBERS[example.names.length].toLowerCase()}: ${example.names.join(", ")}.`;
      const right = agreement(labels, readers);
      remark.textContent = numSenses === 1 ? seenByReader : `${seenByReader} The model, which was never told, puts ${right === labels.length ? `all ${right}` : `${right} of ${labels.length}`} where a reader does.`;
    } else {
      remark.textContent = numSenses === 1 ? "To the model all occurrences are of one sense." : "The senses are found by the model, from these sentences only.";
    }
    if (count > MOST_OCCURRENCES) remark.textContent += ` ${name} occurs ${count} times; the first ${MOST_OCCURRENCES} are compared.`;
  }

  // Under each view, the cosines of the same sense and of other senses on a line from 0 to 1.
  function drawStops() {
    const example = exampleShown();
    const labels = example?.labels.length === shown.labels.length ? example.labels : shown.labels;
    for (const [stop, button] of stopButtons.entries()) {
      const found = ranges(shown.tables[stop] ?? [], labels);
      const bar = ([kind, range]) => {
        const line = make("span", { class: `line ${kind}` }, make("i"), make("small", { text: range ? rangeText(range) : "–" }));
        const [low, high] = (range ?? [0, 0]).map((value) => Math.min(1, Math.max(0, value)));
        line.firstChild.style.marginLeft = `${(100 * low).toFixed(1)}%`;
        line.firstChild.style.width = `${Math.max(3, 100 * (high - low)).toFixed(1)}%`;
        if (range) line.title = `${kind === "same" ? "Same sense" : "Other sense"}: ${rangeText(range)}`;
        return line;
      };
      button.querySelector(".bars-of-stop").replaceChildren(...Object.entries(found).map(bar));
    }
  }

  function drawMap() {
    const at = Number(travel.value);
    const name = stopNames[Math.round(at)];
    travel.setAttribute("aria-valuetext", name);
    for (const [stop, button] of stopButtons.entries()) button.setAttribute("aria-pressed", `${stop === Math.round(at)}`);
    dotMap(find(".map svg"), { stops: shown.points, dots: shown.dots, at, label: `${name}: the ${shown.dots.length} occurrences of ${word.value} on a map; the numbers are in the table` });
    drawHeat(Math.round(at));
  }

  function drawHeat(stop) {
    const heat = find(".heat");
    const key = `${stop} ${document.documentElement.dataset.theme ?? ""}`;
    if (heat.dataset.drawn === key && heat.tables === shown.tables) return;
    heat.dataset.drawn = key;
    heat.tables = shown.tables;
    const badge = (place) => make("span", { class: `badge sense-${shown.dots[place].sense}`, text: `${place + 1}` });
    const names = shown.places.map((index, place) => {
      const { sentence, place: middle } = seen.flat[index];
      const [before, own, after] = snippet(seen.sentences[sentence], middle, around);
      return make("span", { class: "row-name" }, badge(place), make("span", { class: "words" }, before, make("b", { class: `sense-${shown.dots[place].sense}`, text: own }), after));
    });
    heat.replaceChildren(heatTable({ caption: `Cosines by ${stopNames[stop].toLowerCase()}`, names, numbers: shown.places.map((_, place) => badge(place)), rows: shown.tables[stop] }));
  }

  // an occurrence with some words on each side
  function near(index) {
    const { sentence, place } = seen.flat[index];
    return snippet(seen.sentences[sentence], place, isHan(info) ? 3 : 2).join("");
  }

  function drawNumbers() {
    if (seen) advanced.draw(seen, shown, word.value);
  }

  // ---- moving --------------------------------------------------------------------------------------------------------

  function moveTo(stop) {
    cancelAnimationFrame(animation);
    const from = Number(travel.value);
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const time = still ? 0 : MOVE_MILLISECONDS * Math.max(0.5, Math.abs(stop - from));
    let begin;
    const frame = (now) => {
      begin ??= now;
      const share = time ? Math.min(1, (now - begin) / time) : 1;
      travel.value = from + (stop - from) * (share < 0.5 ? 2 * share * share : 1 - 2 * (1 - share) ** 2);
      if (shown?.points.length) drawMap();
      if (share < 1) animation = requestAnimationFrame(frame);
      else changed();
    };
    animation = requestAnimationFrame(frame);
  }

  travel.addEventListener("input", () => {
    cancelAnimationFrame(animation);
    if (shown?.points.length) drawMap();
    changed();
  });
  travel.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (!step) return;
    event.preventDefault(); // from view to view, not by a hundredth
    moveTo(Math.min(stopNames.length - 1, Math.max(0, Math.round(Number(travel.value)) + step)));
  });
  find(".play").addEventListener("click", () => {
    travel.value = 0;
    moveTo(stopNames.length - 1);
  });

  // ---- typing --------------------------------------------------------------------------------------------------------

  const typed = later(() => {
    fetchLayers();
    changed();
  });
  // A Chinese word is several tokens, which the model is asked for as one: another word is another question.
  function wordChanged() {
    if (isHan(info) && seen?.word !== word.value) typed();
    else if (seen) draw();
    changed();
  }

  text.addEventListener("input", () => {
    drawMarks();
    typed();
  });
  text.addEventListener("dblclick", () => {
    const chosen = text.value.slice(text.selectionStart, text.selectionEnd).trim();
    if (!chosen || /\s/.test(chosen)) return;
    word.value = chosen;
    wordChanged();
  });
  word.addEventListener("input", wordChanged);
  find("form").addEventListener("submit", (event) => {
    event.preventDefault();
    fetchLayers();
  });
  addEventListener("resize", later(() => shown?.points.length && !section.hidden && drawMap(), 100));

  return {
    link: () => ({ text: text.value, word: word.value, view: `${Math.round(Number(travel.value))}`, ...advanced.link() }),
    restore(params) {
      if (isForeign(info, params.get("text"))) use(examples[0]);
      else {
        text.value = params.get("text") ?? text.value;
        word.value = params.get("word") ?? word.value;
      }
      const stop = Number(params.get("view") ?? travel.value);
      if (stop >= 0 && stop < stopNames.length) travel.value = stop;
      advanced.restore(params);
      drawMarks();
      if (seen?.text === text.value && (!isHan(info) || seen.word === word.value)) draw();
      else fetchLayers();
    },
    again: () => fetchLayers(),
    repaint: () => shown?.points.length && drawMap(),
  };
}
