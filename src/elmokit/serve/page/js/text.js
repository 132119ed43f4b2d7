// Text as a model reads it, for the page that runs without a server: tokens and character ids as in elmokit.text.
// Input: strings.  Output: tokens with their offsets; ids of words.

const SPACE = "[\\t\\n\\v\\f\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]";
const BLANK = new RegExp(`(?:${SPACE}|[\\x1c-\\x1f])+`, "u");
const WORD_CHARACTER = /[\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\u200c\u200d\u24b6-\u24e9\u{1f130}-\u{1f149}\u{1f150}-\u{1f169}\u{1f170}-\u{1f189}]/u;
const [NOT_AFTER_WORD, NOT_BEFORE_WORD] = ["(?<![\\p{L}\\p{N}_])", "(?![\\p{L}\\p{N}_])"];

// an apostrophe is split from the word that it opens; that of a clitic ('s, 'll) is not
function openingApostrophe(match, offset, text) {
  const rest = text.slice(offset + 1).replace(/^(?:re|ve|ll|[mtsdn])/i, "");
  const [after] = rest;
  const before = Array.from(text.slice(Math.max(0, offset - 2), offset)).at(-1);
  const isOpening = after !== undefined && WORD_CHARACTER.test(after) && !(before !== undefined && WORD_CHARACTER.test(before));
  return isOpening ? "' " : "'";
}

// the rules of elmokit.text.tokens, in their order
const RULES = [
  [/[«“‘„]|``?/gu, " $& "],
  [/^"/u, " `` "],
  [/([ (\[{<])(?:"|'')/gu, "$1 `` "],
  [/'/gu, openingApostrophe],
  [new RegExp(`([^.])\\.([\\])}>"'»”’ ]*)${SPACE}*$`, "u"), "$1 . $2 "],
  [/([:,])(\P{Nd}|$)/gu, " $1 $2"],
  [/\.{2,}|[;@#$%&?!\u2012-\u2015]/gu, " $& "],
  [/([^'])' /gu, "$1 ' "],
  [/[\][(){}<>*]|--/gu, " $& "],
  [/^|$/gu, " "],
  [/[»”’"]|''/gu, " $& "],
  [new RegExp(`${SPACE}+`, "gu"), " "],
  [/([^' ])('[sSmMdD]?) /gu, "$1 $2 "],
  [/([^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) /gu, "$1 $2 "],
  [new RegExp(`${NOT_AFTER_WORD}(can(?=not)|d(?='ye)|gim(?=me)|gon(?=na)|got(?=ta)|lem(?=me)|more(?='n)|wan(?=na\\s))(not|'ye|me|na|ta|'n)${NOT_BEFORE_WORD}`, "giu"), " $1 $2 "],
  [new RegExp(` ('t)(is)${NOT_BEFORE_WORD}`, "giu"), " $1 $2 "],
  [new RegExp(` ('t)(was)${NOT_BEFORE_WORD}`, "giu"), " $1 $2 "],
];

function treebank(text) {
  let spaced = text;
  for (const [pattern, replacement] of RULES) spaced = spaced.replace(pattern, replacement);
  const quotes = (text.match(/``|''|"/g) ?? []).values();
  const isQuoted = text.includes('"') || text.includes("''");
  return spaced.split(BLANK).filter(Boolean).map((token) => (isQuoted && ["``", "''", '"'].includes(token) ? quotes.next().value : token));
}

const TOKENIZERS = {
  treebank,
  spaces: (text) => text.split(BLANK).filter(Boolean),
  characters: (text) => Array.from(text.split(BLANK).join("")),
};

export function tokenize(text, name) {
  return TOKENIZERS[name](text);
}

// { text, start, stop }: offsets in characters, as the server counts them
export function withOffsets(text, name) {
  let [end, characters] = [0, 0];
  return tokenize(text, name).map((token) => {
    const begin = text.indexOf(token, end);
    const start = characters + Array.from(text.slice(end, begin)).length;
    end = begin + token.length;
    characters = start + Array.from(token).length;
    return { text: token, start, stop: characters };
  });
}

const [BOS, EOS, BOW, EOW, PAD] = [256, 257, 258, 259, 260];
const BOUNDARIES = { "<S>": BOS, "</S>": EOS };

// One row of ids per word, each one higher than its character: 0 is padding of sentences.
export function characterIds(word, length) {
  const bytes = word in BOUNDARIES ? [BOUNDARIES[word]] : new TextEncoder().encode(word.replace(/\p{Surrogate}/gu, "")).slice(0, length - 2);
  const row = [BOW, ...bytes, EOW];
  return Array.from({ length }, (_, i) => (row[i] ?? PAD) + 1);
}
