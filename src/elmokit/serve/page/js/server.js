// Requests to the server, or to the model in this page: `elmokit export --web` writes a page that runs without a server.
// Input: a path and a body.  Output: the response, or an Error with a message for the user.

const KEY = "elmokit-key";
let model = new URLSearchParams(location.search).get("model"); // of a server with several models; null is the first one
export const isLocal = document.documentElement.dataset.model !== undefined;
const local = isLocal ? import("./local.js") : null;

export class Refusal extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export function keepKey(key) {
  sessionStorage.setItem(KEY, key.trim());
}

async function exchange(path, options) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The server does not answer. Is elmokit serve still running?", 0);
  }
  if (response.ok) return response;
  throw new Refusal(await reason(response), response.status);
}

async function reason(response) {
  if (response.status === 401) {
    const wasSent = sessionStorage.getItem(KEY) !== null;
    sessionStorage.removeItem(KEY);
    document.dispatchEvent(new CustomEvent("key-wanted"));
    return wasSent ? "The server does not accept this key. Check it and enter it again." : "This server needs an API key: enter it to continue.";
  }
  let text = "";
  try {
    text = (await response.json()).error;
  } catch {
    text = `the server answered ${response.status} ${response.statusText}`;
  }
  if (response.status === 429) {
    return `The server is busy: try again in ${response.headers.get("retry-after") ?? 1} s.`;
  }
  const words = forPeople(text);
  return `${words.charAt(0).toUpperCase()}${words.slice(1)}${/[.!?…]$/.test(words) ? "" : "."}`;
}

// Messages of the server name the fields of a request; on the page these are sentences and texts.
function forPeople(text) {
  return text
    .replace(/^(?:inputs|input|sentences)\[(\d+)\](?:\[\d+\])?/, (_, number) => `sentence ${Number(number) + 1}`)
    .replace(/^inputs\b/, "the text")
    .replace(/\btokens\b/g, "words and punctuation marks");
}

// What is to be known of the model that the address names, `?model=NAME`, or of the first one if the server has no such model.
export async function facts() {
  if (isLocal) return (await local).request("info", {});
  const wanted = model;
  try {
    const info = await (await exchange(wanted === null ? "info" : `info?${new URLSearchParams({ model: wanted })}`, {})).json();
    if (info.models[0] === wanted) model = null;
    return info;
  } catch (error) {
    if (wanted === null || error.status !== 404) throw error;
    model = null;
    return { ...(await facts()), missing: wanted };
  }
}

// The address of the same view with another model.
export function addressOf(name) {
  return `?${new URLSearchParams({ model: name })}${location.hash}`;
}

function withModel(body) {
  return JSON.stringify(model === null ? body : { ...body, model });
}

export async function ask(path, body, signal) {
  if (isLocal) return (await local).request(path, body, signal);
  const headers = { "content-type": "application/json" };
  return (await exchange(path, { method: "POST", headers, body: withModel(body), signal })).json();
}

// All layers of all tokens, one sentence after the other: { layers, tokens, width, values: Float32Array }.
export function layersOf(sentences, signal) {
  return arrays("layers", { inputs: sentences }, signal);
}

// The same for one view, "slot" or "sense", which counts as one layer.
export function viewOf(sentences, view, signal) {
  return arrays("embed_all", { inputs: sentences, layers: view }, signal);
}

async function arrays(path, body, signal) {
  if (isLocal) return (await local).request(path, body, signal);
  const headers = { "content-type": "application/json", accept: "application/x-npy" };
  const response = await exchange(path, { method: "POST", headers, body: withModel(body), signal });
  return readNpy(await response.arrayBuffer());
}

// Version 1 of NumPy's format: magic, a header of text, then the numbers, here little-endian float32.
function readNpy(buffer) {
  const length = new DataView(buffer).getUint16(8, true);
  const header = new TextDecoder("latin1").decode(new Uint8Array(buffer, 10, length));
  const shape = /'shape': \(([^)]*)\)/.exec(header)[1].split(",").map(Number);
  const [layers, tokens, width] = shape.length === 2 ? [1, ...shape] : shape;
  if (!header.includes("'<f4'")) throw new Error(`The server sent numbers of another type: ${header}`);
  return { layers, tokens, width, values: new Float32Array(buffer.slice(10 + length)) };
}
