// What comes next: sentences -> how surprised the model is by each word, in both directions, and words that fit in the place of one.

import { inkOn, rampColour, rgb, twoWayBars } from "./charts.js";
import { isHan, joined, lastOnly, later, lines, make, note, shortened } from "./panel.js";
import { ask } from "./server.js";

const EXAMPLE = ["He sat on the bank of the river and watched the water.", "The bank of England raised its interest umbrellas."].join("\n");
const CHINESE_EXAMPLE = ["他坐在河边看书，忘了时间。", "中国人民银行提高了存款的雨伞。"].join("\n");
const MOST_CHARACTERS = 8; // of a blank
const MOST_BITS = 20; // that the colours tell apart
const NUM_WORDS = 12;
const LEAST_SHARE = 0.0005; // words below it would be rows of 0.0%
const UNKNOWN = "not in the vocabulary: not counted";

export function nextPanel(section, info, changed) {
  const find = (selector) => section.querySelector(selector);
  const { text } = find("form").elements;
  const message = find(".message");
  let seen = null; // { text, sentences }
  let chosen; // { sentence, place, size }: a word; of Chinese one or more characters

  useExample();
  find(".shift-key").hidden = !isHan(info);

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
    const tokens = withBlank();
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
    text.value = isHan(info) ? CHINESE_EXAMPLE : EXAMPLE;
    chosen = isHan(info) ? { sentence: 0, place: 3, size: 2 } : { sentence: 0, place: 4, size: 1 }; // 河边, "bank"
  }

  function clamp() {
    const sentence = Math.min(chosen.sentence, seen.sentences.length - 1);
    const place = Math.min(chosen.place, Math.max(0, seen.sentences[sentence].tokens.length - 1));
    const length = seen.sentences[sentence].tokens.length;
    chosen = { sentence, place, size: Math.max(1, Math.min(chosen.size, length - place)) };
  }

  // The tokens of the chosen sentence, the chosen ones as one word.
  function withBlank() {
    const { sentence, place, size } = chosen;
    const { tokens } = seen.sentences[sentence];
    return [...tokens.slice(0, place), tokens.slice(place, place + size).join(""), ...tokens.slice(place + size)];
  }

  function isChosen(sentence, place) {
    return sentence === chosen.sentence && place >= chosen.place && place < chosen.place + chosen.size;
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
      const bits = `${forward[place].toFixed(1)} bits forward, ${backward[place].toFixed(1)} backward`;
      const label = `${token}: ${unknown[place] ? UNKNOWN : bits}`;
      const button = make("button", {
        type: "button",
        class: unknown[place] ? "unknown" : null,
        title: unknown[place] ? UNKNOWN : null,
        "aria-pressed": `${isChosen(sentence, place)}`,
        "aria-label": label,
        on: { click: (event) => choose(sentence, place, event.shiftKey) },
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
      isChosen: (place) => isChosen(chosen.sentence, place),
      unit: "bits",
      label: `Bits of surprise at each word of: ${joined(tokens)}; the numbers are in the strip above`,
      onChoose: (place) => choose(chosen.sentence, place),
    });
  }

  function choose(sentence, place, isLonger = false) {
    const [first, last] = [Math.min(chosen.place, place), Math.max(chosen.place + chosen.size - 1, place)];
    if (isLonger && isHan(info) && sentence === chosen.sentence && last - first < MOST_CHARACTERS) chosen = { sentence, place: first, size: last - first + 1 };
    else chosen = { sentence, place, size: 1 };
    for (const [row, strip] of section.querySelectorAll(".strip").entries()) {
      for (const [number, button] of strip.querySelectorAll("button").entries()) button.setAttribute("aria-pressed", `${isChosen(row, number)}`);
    }
    drawBars();
    fill();
    changed();
  }

  // the tokens are written such that they are read as the same tokens again
  function putIn(word) {
    const { sentence, place } = chosen;
    const given = seen.sentences.map((_, number) => (number === sentence ? joined(withBlank().with(place, word)) : lines(seen.text)[number]));
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
    link: () => ({ text: text.value, at: `${chosen.sentence},${chosen.place}${chosen.size > 1 ? `,${chosen.size}` : ""}` }),
    restore(params) {
      if (params.get("text") === (isHan(info) ? EXAMPLE : CHINESE_EXAMPLE)) useExample(); // another model was chosen
      else {
        text.value = params.get("text") ?? text.value;
        const [sentence, place, size = 1] = (params.get("at") ?? "").split(",").map(Number);
        if (sentence >= 0 && place >= 0) chosen = { sentence, place, size: isHan(info) && size > 1 ? Math.min(size, MOST_CHARACTERS) : 1 };
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
