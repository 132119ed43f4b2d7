// What comes next: sentences -> how surprised the model is by each word, in both directions, and words that fit in the place of one.

import { inkOn, rampColour, rgb, twoWayBars } from "./charts.js";
import { isForeign, surpriseFor } from "./examples.js";
import { joined, lastOnly, later, lines, make, note, shortened } from "./panel.js";
import { ask } from "./server.js";

const MOST_BITS = 20; // that the colours tell apart
const NUM_WORDS = 12;
const LEAST_SHARE = 0.0005; // words below it would be rows of 0.0%
const UNKNOWN = "not in the vocabulary: not counted";

export function nextPanel(section, info, changed) {
  const find = (selector) => section.querySelector(selector);
  const { text } = find("form").elements;
  const message = find(".message");
  let seen = null; // { text, sentences }
  let chosen;

  useExample();

  const score = lastOnly(section, message, async (signal) => {
    const typed = text.value;
    const given = lines(typed);
    if (given.length === 0) throw note("Enter a sentence.");
    const answers = await ask("log_probs", { inputs: given }, signal);
    const bits = (logProb) => -logProb / Math.LN2;
    seen = {
      text: typed,
      sentences: answers.map((answer) => ({
        tokens: answer.tokens,
        forward: answer.forward.map(bits),
        backward: answer.backward.map(bits),
        end: bits(answer.forward_end),
        start: bits(answer.backward_end),
        unknown: answer.unknown,
        perplexity: answer.perplexity,
      })),
    };
    clamp();
    find(".results").hidden = false;
    draw();
  });

  const fill = lastOnly(find(".blank"), find(".words-message"), async (signal) => {
    const { sentence, place } = chosen;
    const { tokens } = seen.sentences[sentence];
    const answers = await ask("substitutes", { inputs: tokens, position: place, k: NUM_WORDS, keep_word: true }, signal);
    const own = tokens[place];
    const shown = answers.filter(({ word, log_prob: logProb }) => word === own || Math.exp(logProb) >= LEAST_SHARE);
    const top = Math.exp(answers[0]?.log_prob ?? 0);
    find(".blank h2").textContent = `Words in place of “${shortened(own)}”`;
    find(".words").replaceChildren(
      ...shown.map(({ word, log_prob: logProb }) => {
        const share = Math.exp(logProb);
        const percent = share < LEAST_SHARE ? "< 0.1%" : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`;
        const name = word === own
          ? make("span", { class: "word own", text: word, title: "The word of the sentence" })
          : make("button", { type: "button", class: "word", text: word, title: "Insert it", on: { click: () => putIn(word) } });
        return make("li", {}, name, make("meter", { min: 0, max: top, value: share, "aria-label": `${word}: ${percent}` }), make("span", { class: "number", text: percent }));
      }),
    );
    const isKnown = shown.some(({ word }) => word === own);
    find(".own-note").textContent = isKnown ? "" : `“${shortened(own)}” is not in the vocabulary, so it has no probability of its own.`;
  });

  function useExample() {
    const example = surpriseFor(info);
    text.value = example.text;
    chosen = { sentence: 0, place: example.place };
  }

  function clamp() {
    const sentence = Math.min(chosen.sentence, seen.sentences.length - 1);
    const place = Math.min(chosen.place, Math.max(0, seen.sentences[sentence].tokens.length - 1));
    chosen = { sentence, place };
  }

  function draw() {
    find(".strips").replaceChildren(...seen.sentences.map(strip));
    find(".unknown-key").hidden = !seen.sentences.some(({ unknown }) => unknown.includes(true));
    drawBars();
    if (seen.sentences[chosen.sentence].tokens.length) fill();
  }

  function strip({ tokens, forward, backward, start, end, unknown, perplexity }, sentence) {
    const item = make("li");
    const row = make("div", { class: "strip" });
    row.append(cell("start", null, start, "the start of the sentence"));
    for (const [place, token] of tokens.entries()) {
      const isChosen = sentence === chosen.sentence && place === chosen.place;
      const bits = `${forward[place].toFixed(1)} bits forward, ${backward[place].toFixed(1)} backward`;
      const label = `${token}: ${unknown[place] ? UNKNOWN : bits}`;
      const button = make("button", {
        type: "button",
        class: unknown[place] ? "unknown" : null,
        title: unknown[place] ? UNKNOWN : null,
        "aria-pressed": `${isChosen}`,
        "aria-label": label,
        on: { click: () => choose(sentence, place) },
      });
      button.append(...halves(token, unknown[place] ? null : forward[place], unknown[place] ? null : backward[place]));
      row.append(button);
    }
    row.append(cell("end", end, null, "the end of the sentence"));
    item.append(row, make("p", { class: "soft", text: summary(tokens, perplexity) }));
    return item;
  }

  // Unknown words are scored as <UNK>, which is likelier than most words: they would make any text look easy.
  function summary(tokens, { forward, backward, known, num_unknown: count }) {
    if (count === tokens.length) return "No word of this sentence is in the vocabulary: the model cannot score it.";
    const bits = (perplexity) => Math.log2(perplexity ?? Infinity).toFixed(2); // null is more than a number can hold
    const figure = `perplexity ${(known ?? Infinity).toFixed(0)}`;
    if (count === 0) return `Forward ${bits(forward)} bits per token, backward ${bits(backward)}; ${figure}.`;
    return `${bits(known)} bits per token, ${figure}. ${count === 1 ? "One word is" : `${count} words are`} not in the vocabulary and not counted.`;
  }

  function cell(name, forward, backward, title) {
    const span = make("span", { class: "edge", title });
    span.append(...halves(name, forward, backward));
    return span;
  }

  function halves(token, forward, backward) {
    const half = (arrow, value) => {
      if (value === null) return make("span", { class: "bits", text: "\u00a0" });
      const colour = rampColour("warm", value / MOST_BITS);
      const part = make("span", { class: "bits", text: `${arrow} ${value.toFixed(1)}` });
      part.style.backgroundColor = rgb(colour);
      part.style.color = inkOn(colour);
      return part;
    };
    return [half("→", forward), make("span", { class: "token", text: token }), half("←", backward)];
  }

  function drawBars() {
    const { tokens, forward, backward, unknown } = seen.sentences[chosen.sentence];
    find(".bars").style.minWidth = `${60 + 34 * tokens.length}px`;
    twoWayBars(find(".bars canvas"), {
      names: tokens.map((token, place) => (unknown[place] ? `${shortened(token)} (unknown)` : shortened(token))),
      up: forward.map((value, place) => (unknown[place] ? null : value)),
      down: backward.map((value, place) => (unknown[place] ? null : value)),
      upName: "forward",
      downName: "backward",
      chosen: chosen.place,
      unit: "bits",
      label: `Bits of surprise at each word of: ${joined(tokens)}; the numbers are in the strip above`,
      onChoose: (place) => choose(chosen.sentence, place),
    });
  }

  function choose(sentence, place) {
    chosen = { sentence, place };
    find(".strip button[aria-pressed=true]")?.setAttribute("aria-pressed", "false");
    section.querySelectorAll(".strip")[sentence].querySelectorAll("button")[place].setAttribute("aria-pressed", "true");
    drawBars();
    fill();
    changed();
  }

  // the tokens are written such that they are read as the same tokens again
  function putIn(word) {
    const { sentence, place } = chosen;
    const given = seen.sentences.map(({ tokens }, number) => (number === sentence ? joined(tokens.with(place, word)) : lines(seen.text)[number]));
    text.value = given.join("\n");
    score();
    changed();
  }

  text.addEventListener("input", later(() => {
    score();
    changed();
  }));
  find("form").addEventListener("submit", (event) => {
    event.preventDefault();
    score();
  });

  return {
    link: () => ({ text: text.value, at: `${chosen.sentence},${chosen.place}` }),
    restore(params) {
      if (isForeign(info, params.get("text"))) useExample();
      else {
        text.value = params.get("text") ?? text.value;
        const [sentence, place] = (params.get("at") ?? "").split(",").map(Number);
        if (sentence >= 0 && place >= 0) chosen = { sentence, place };
      }
      if (seen?.text === text.value) {
        clamp();
        draw();
      } else score();
    },
    again: () => score(),
    repaint: () => seen && find(".strips").replaceChildren(...seen.sentences.map(strip)),
  };
}
