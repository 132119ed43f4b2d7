// Neighbours: a word in its sentence -> the nearest words of an indexed corpus, in theirs.

import { isHan, joined, lastOnly, later, make, needsSpace, note, tokenized } from "./panel.js";
import { ask } from "./server.js";

const EXAMPLE = "He sat on the [bank] of the river.";
const CHINESE_EXAMPLE = "他把钱存在[银行]里。";

export function neighboursPanel(section, info, changed) {
  const find = (selector) => section.querySelector(selector);
  const { text, k } = find("form").elements;
  let seen = null;

  text.value = isHan(info) ? CHINESE_EXAMPLE : EXAMPLE;

  const look = lastOnly(section, find(".message"), async (signal) => {
    const typed = text.value.trim();
    const asked = Math.min(100, Math.max(1, Math.round(Number(k.value)) || 10));
    const bare = await tokenized(ask, [typed.replaceAll(/[[\]]/g, " ")], signal);
    drawSentence(bare[0]);
    find(".results").hidden = false;
    find(".hits").replaceChildren();
    if (!/\[[^[\]]+\]/.test(typed)) throw note("Choose a word of the sentence.");
    const hits = await ask("neighbours", { inputs: typed, k: asked }, signal);
    seen = { text: typed, k: k.value };
    find(".hits").replaceChildren(...hits.map(hit));
  });

  function drawSentence(tokens) {
    const marked = /\[\s*([^[\]]+?)\s*\]/.exec(text.value);
    const begin = marked ? numLetters(text.value.slice(0, marked.index)) : Infinity;
    const end = marked ? begin + numLetters(marked[1]) : 0; // a Chinese word may be several tokens
    const chips = find(".chips");
    chips.replaceChildren();
    let left = 0;
    for (const [place, token] of tokens.entries()) {
      if (needsSpace(tokens[place - 1], token)) chips.append(" ");
      const isMarked = left >= begin && left < end;
      chips.append(make("button", { type: "button", class: "word", text: token, "aria-pressed": `${isMarked}`, on: { click: () => mark(tokens, place) } }));
      left += numLetters(token);
    }
  }

  function numLetters(words) {
    return words.replaceAll(/\s/g, "").length;
  }

  function mark(tokens, place) {
    text.value = joined(tokens.with(place, `[${tokens[place]}]`));
    look();
    changed();
  }

  function hit({ tokens, index, cosine }) {
    const quote = make("q");
    for (const [place, token] of tokens.entries()) {
      if (needsSpace(tokens[place - 1], token)) quote.append(" ");
      quote.append(place === index ? make("mark", { text: token }) : token);
    }
    return make("li", {},
      make("meter", { min: 0, max: 1, value: Math.max(0, cosine), "aria-label": `cosine ${cosine.toFixed(3)}` }),
      make("span", { class: "number", text: cosine.toFixed(3) }),
      quote,
    );
  }

  const typed = later(() => {
    look();
    changed();
  });
  text.addEventListener("input", typed);
  k.addEventListener("input", typed);
  find("form").addEventListener("submit", (event) => {
    event.preventDefault();
    look();
  });

  return {
    link: () => ({ text: text.value, k: k.value }),
    restore(params) {
      text.value = params.get("text") ?? text.value;
      k.value = params.get("k") ?? k.value;
      if (seen?.text !== text.value.trim() || seen.k !== k.value) look();
    },
    again: () => look(),
    repaint() {},
  };
}
