// The model in the browser, for the page that runs without a server: answers the requests that a server would.
// Input: { id, path, body } with the bodies of the HTTP interface.  Output: { id, answer } or { id, error }, and
// { loaded, total, what } while the model is loaded. Everything comes from the folder of the page.

import * as ort from "../runtime/ort.wasm.min.mjs";
import { characterIds, tokenize, withOffsets } from "./text.js";

const SENTENCES_AT_ONCE = 16;
const ROWS_AT_ONCE = 16; // of the output layer: a row has a number for each word of the vocabulary
const root = new URL("../model/", import.meta.url);

ort.env.wasm.wasmPaths = new URL("../runtime/", import.meta.url).href;
ort.env.wasm.numThreads = self.crossOriginIsolated ? Math.min(4, navigator.hardwareConcurrency) : 1;

const info = fetch(new URL("model.json", root)).then((response) => response.json());
let loaded = 0;

async function load(name) {
  const { files } = await info;
  const total = Object.values(files).reduce((sum, size) => sum + size, 0);
  const response = await fetch(new URL(name, root));
  if (!response.ok) throw new Error(`${name} could not be loaded: ${response.status} ${response.statusText}`);
  const bytes = new Uint8Array(files[name]);
  let end = 0;
  for (let reader = response.body.getReader(), part; !(part = await reader.read()).done; ) {
    bytes.set(part.value, end);
    end += part.value.length;
    loaded += part.value.length;
    postMessage({ loaded, total, what: "Loading the model" });
  }
  return bytes;
}

async function session(name) {
  const bytes = await load(name);
  postMessage({ what: "Starting the model" });
  return ort.InferenceSession.create(bytes, { executionProviders: ["wasm"], graphOptimizationLevel: "basic" }); // more takes longer to start than it saves
}

const words = load("words.json").then((bytes) => {
  const { words, weights, unknown } = JSON.parse(new TextDecoder().decode(bytes));
  return { words, weights, unknown, ids: new Map(words.map((word, id) => [word, id])) };
});
const bilm = session("bilm.onnx");
// after the biLM, which gives the first answer
const output = bilm.then(async () => ((await info).language_model ? session("output.onnx") : null));
for (const promise of [words, bilm, output]) promise.catch(() => {}); // whoever waits for it is told

// ---- the biLM --------------------------------------------------------------------------------------------------------

// { layers (L+1, n, d), slot (n, d), sense (n, d) } of all tokens, one sentence after the other
async function read(sentences) {
  const { num_layers: numLayers, vector_dim: width } = await info;
  const count = sentences.reduce((sum, tokens) => sum + tokens.length, 0);
  const found = { count, width, layers: new Float32Array(numLayers * count * width), slot: new Float32Array(count * width), sense: new Float32Array(count * width) };
  let first = 0;
  for (let begin = 0; begin < sentences.length; begin += SENTENCES_AT_ONCE) {
    const batch = sentences.slice(begin, begin + SENTENCES_AT_ONCE);
    const result = await run(batch);
    const length = Math.max(...batch.map((tokens) => tokens.length));
    for (const [row, tokens] of batch.entries()) {
      const part = (values, layer) => values.subarray((layer * batch.length + row) * length * width, ((layer * batch.length + row) * length + tokens.length) * width);
      found.slot.set(part(result.slot.data, 0), first * width);
      found.sense.set(part(result.sense.data, 0), first * width);
      for (let layer = 0; layer < numLayers; layer++) found.layers.set(part(result.layers.data, layer), (layer * count + first) * width);
      first += tokens.length;
    }
  }
  return found;
}

async function run(batch) {
  const { max_characters: columns } = await info;
  const table = await words;
  const model = await bilm;
  const length = Math.max(...batch.map((tokens) => tokens.length));
  const ids = new BigInt64Array(batch.length * length * columns);
  const weights = new Float32Array(batch.length * length);
  for (const [row, tokens] of batch.entries()) {
    for (const [place, token] of tokens.entries()) {
      const at = row * length + place;
      ids.set(characterIds(token, columns).map(BigInt), at * columns);
      weights[at] = table.ids.has(token) ? table.weights[table.ids.get(token)] : table.unknown;
    }
  }
  return model.run({
    ids: new ort.Tensor("int64", ids, [batch.length, length, columns]),
    weights: new ort.Tensor("float32", weights, [batch.length, length]),
  });
}

// the last sentences are kept: the page asks for layers, slot and sense of the same
let last = { key: null };
function readOnce(sentences) {
  const key = JSON.stringify(sentences);
  if (last.key !== key) last = { key, found: read(sentences) };
  return last.found;
}

// ---- the output layer ------------------------------------------------------------------------------------------------

// calls use(row, log-probabilities of every word) for each row of hidden states (Float32Array of width P)
async function predict(rows, use) {
  const model = await output;
  const numWords = (await words).words.length;
  for (let begin = 0; begin < rows.length; begin += ROWS_AT_ONCE) {
    const part = rows.slice(begin, begin + ROWS_AT_ONCE);
    const hidden = new Float32Array(part.length * part[0].length);
    for (const [i, row] of part.entries()) hidden.set(row, i * row.length);
    const { log_probs: scores } = await model.run({ hidden: new ort.Tensor("float32", hidden, [part.length, part[0].length]) });
    for (let i = 0; i < part.length; i++) use(begin + i, scores.data.subarray(i * numWords, (i + 1) * numWords));
  }
}

async function logProbs(sentences) {
  const { specials: [bos, eos, unk], num_layers: numLayers } = await info;
  const { ids } = await words;
  const { count, width, layers, slot } = await readOnce(sentences);
  const half = width / 2;
  const top = (token) => layers.subarray(((numLayers - 1) * count + token) * width, ((numLayers - 1) * count + token + 1) * width);
  const [rows, targets] = [[], []];
  const add = (row, target) => targets.push(target) && rows.push(row) - 1;
  let first = 0;
  const places = sentences.map((tokens) => {
    const targetOf = (token) => ids.get(token) ?? unk;
    const at = (place) => slot.subarray((first + place) * width, (first + place + 1) * width);
    const found = {
      forward: tokens.map((token, place) => add(at(place).subarray(0, half), targetOf(token))),
      backward: tokens.map((token, place) => add(at(place).subarray(half), targetOf(token))),
      forward_end: add(top(first + tokens.length - 1).subarray(0, half), eos),
      backward_end: add(top(first).subarray(half), bos),
    };
    first += tokens.length;
    return found;
  });
  const values = new Float64Array(rows.length);
  await predict(rows, (row, scores) => (values[row] = scores[targets[row]]));
  return sentences.map((tokens, number) => {
    const scores = {
      tokens,
      forward: places[number].forward.map((row) => values[row]),
      backward: places[number].backward.map((row) => values[row]),
      forward_end: values[places[number].forward_end],
      backward_end: values[places[number].backward_end],
      unknown: tokens.map((token) => !ids.has(token) || ids.get(token) === unk),
    };
    return { ...scores, perplexity: perplexityOf(scores) };
  });
}

// as perplexity_of of elmokit.inference.scores
function perplexityOf({ forward, backward, forward_end: forwardEnd, backward_end: backwardEnd, unknown }) {
  const isKnown = (_, place) => !unknown[place];
  const of = (...values) => Math.exp(-values.reduce((sum, value) => sum + value, 0) / values.length);
  return {
    forward: of(...forward, forwardEnd),
    backward: of(...backward, backwardEnd),
    both: of(...forward, forwardEnd, ...backward, backwardEnd),
    num_tokens: forward.length + 1,
    num_unknown: unknown.filter(Boolean).length,
    known: of(...forward.filter(isKnown), forwardEnd, ...backward.filter(isKnown), backwardEnd),
  };
}

// p(w | left, right) ~ p(w | left) p(w | right) / p(w), as Scorer.substitutes with num_read=0
async function substitutes({ inputs: tokens, position, k, keep_word: keepWord }) {
  const { specials } = await info;
  const { words: names, ids } = await words;
  const { width, slot } = await readOnce([tokens]);
  const own = slot.subarray(position * width, (position + 1) * width);
  const scores = new Float64Array(names.length);
  await predict([own.subarray(0, width / 2), own.subarray(width / 2)], (_, part) => part.forEach((value, word) => (scores[word] += value)));
  for (let rank = 0; rank < scores.length; rank++) scores[rank] -= Math.log(Math.log1p(1 / (rank + 1)));
  for (const special of specials) scores[special] = -Infinity;
  const top = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  const total = top + Math.log(scores.reduce((sum, score) => sum + Math.exp(score - top), 0));
  const word = specials.includes(ids.get(tokens[position])) ? undefined : ids.get(tokens[position]);
  const order = [...scores.keys()].filter((id) => scores[id] > -Infinity && (keepWord || id !== word)).sort((a, b) => scores[b] - scores[a]).slice(0, k);
  if (keepWord && word !== undefined && !order.includes(word)) order.push(word);
  return order.map((id) => ({ word: names[id], log_prob: scores[id] - total }));
}

// ---- requests --------------------------------------------------------------------------------------------------------

const ANSWERS = {
  async info() {
    const [facts] = await Promise.all([info, words, bilm]);
    return facts;
  },
  async tokenize({ inputs }) {
    const { tokenizer } = await info;
    return inputs.map((text) => withOffsets(text, tokenizer));
  },
  async layers({ inputs }) {
    const { count, width, layers } = await readOnce(inputs);
    return { layers: layers.length / (count * width), tokens: count, width, values: layers };
  },
  async embed_all({ inputs, layers: view }) {
    const found = await readOnce(inputs);
    return { layers: 1, tokens: found.count, width: found.width, values: found[view] };
  },
  async log_probs({ inputs }) {
    const { tokenizer } = await info;
    return logProbs(inputs.map((text) => tokenize(text, tokenizer)));
  },
  substitutes,
};

onmessage = async ({ data: { id, path, body } }) => {
  try {
    postMessage({ id, answer: await ANSWERS[path](body) });
  } catch (error) {
    postMessage({ id, error: error.message });
  }
};
