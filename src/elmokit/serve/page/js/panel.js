// What the panels share: elements, sentences, waiting, and errors in words.

// make("li", { class: "hit", text: "…" }, child, …)
export function make(tag, { text, on, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  if (text !== undefined) element.textContent = text;
  for (const [event, listener] of Object.entries(on ?? {})) element.addEventListener(event, listener);
  element.append(...children);
  return element;
}

export function lines(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean);
}

export function later(work, milliseconds = 350) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, milliseconds);
  };
}

// Work of which only the last call counts; its errors are written to `message`.
export function lastOnly(section, message, work) {
  let controller;
  return async (...given) => {
    controller?.abort();
    const own = (controller = new AbortController());
    const slow = setTimeout(() => say(message, "Waiting for the model …"), 300);
    section.setAttribute("aria-busy", "true");
    try {
      await work(own.signal, ...given);
      if (own === controller) section.classList.remove("stale");
      if (own === controller) say(message, "");
    } catch (error) {
      if (own === controller && error.name !== "AbortError") {
        say(message, error.message, true);
        section.classList.add("stale"); // what is drawn does not belong to what is entered
        if (error.status === undefined) console.error(error);
      }
    } finally {
      clearTimeout(slow);
      if (own === controller) section.setAttribute("aria-busy", "false");
    }
  };
}

// An error that the user can mend.
export function note(words) {
  return Object.assign(new Error(words), { status: 422 });
}

export function say(message, text, isError = false) {
  message.textContent = text;
  message.classList.toggle("error", isError);
}

// The tokens of each text: { text, start, stop }, offsets in characters.
export function tokensOf(ask, texts, signal) {
  return ask("tokenize", { inputs: texts, add_special_tokens: false }, signal);
}

export async function tokenized(ask, texts, signal) {
  return (await tokensOf(ask, texts, signal)).map((tokens) => tokens.map((token) => token.text));
}

// Whether the tokens of the model are Chinese characters, so that a word may be several of them.
export function isHan(info) {
  return info.tokenizer === "han";
}

// Tokens of which every run that is the wanted word is one token: the model gives one vector for it.
export function merged(tokens, wanted) {
  const size = wanted.length;
  const lower = (texts) => texts.join("\n").toLowerCase();
  const result = [];
  for (let place = 0; place < tokens.length; ) {
    const run = tokens.slice(place, place + size);
    const isWanted = size > 1 && lower(run.map((token) => token.text)) === lower(wanted);
    result.push(isWanted ? { text: run.map((token) => token.text).join(""), start: run[0].start, stop: run.at(-1).stop } : tokens[place]);
    place += isWanted ? size : 1;
  }
  return result;
}

// Tokens as text is written: no space before a full stop.
const CLOSING = /^([.,;:!?)\]}’”%]|'s|n't|'re|'ve|'ll|'d|'m|'')$/i;
const OPENING = /^([([{“‘$]|``)$/;

export function needsSpace(before, token) {
  return before !== undefined && !CLOSING.test(token) && !OPENING.test(before) && !touchesHan(before, token);
}

// no space is written beside a Chinese or Japanese character or mark
export const HAN = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\u3000-\u303f\uff00-\uffef]/u;

function touchesHan(before, token) {
  return HAN.test([...before].at(-1) ?? "") || HAN.test([...token][0] ?? "");
}

// A sentence that is read as the same tokens again: spaces between them, but for Chinese characters.
export function joined(tokens) {
  return tokens.reduce((text, token) => (text === "" || touchesHan(text.replace(/\]$/, ""), token.replace(/^\[/, "")) ? text + token : `${text} ${token}`), "");
}

const LONGEST_WORD = 24; // letters that are shown of a word in a label

export function shortened(word) {
  return word.length > LONGEST_WORD ? `${word.slice(0, LONGEST_WORD - 1)}…` : word;
}

// A word with the words around it: [what is before, the word, what is after]. At an end of the sentence, the other side has more.
export function snippet(tokens, place, around = 3) {
  const start = Math.max(0, Math.min(place - around, tokens.length - 2 * around - 1));
  const end = Math.min(tokens.length, Math.max(place + around, 2 * around) + 1);
  const parts = ["", "", ""];
  for (let i = start; i < end; i++) {
    const part = i < place ? 0 : i === place ? 1 : 2;
    const space = i > start && needsSpace(tokens[i - 1], tokens[i]) ? " " : "";
    parts[i === place ? 0 : part] += space;
    parts[part] += shortened(tokens[i]);
  }
  return [`${start > 0 ? "… " : ""}${parts[0]}`, parts[1], `${parts[2]}${end < tokens.length ? " …" : ""}`];
}
