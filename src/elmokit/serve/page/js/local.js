// Requests to the model in this page, which runs in a worker (the page without a server).
// Input: a path and a body, as for a server.  Output: the answer; while the model is loaded, events "model-loading".

const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
const waiting = new Map();
let next = 0;

worker.onmessage = ({ data: { id, answer, error, ...progress } }) => {
  if (id === undefined) {
    document.dispatchEvent(new CustomEvent("model-loading", { detail: progress }));
    return;
  }
  const { resolve, reject } = waiting.get(id);
  waiting.delete(id);
  if (error === undefined) resolve(answer);
  else reject(new Error(error));
};
worker.onerror = (event) => {
  const error = new Error(`The model could not be started: ${event.message ?? "a file is missing"}.`);
  for (const { reject } of waiting.values()) reject(error);
  waiting.clear();
};

export function request(path, body, signal) {
  return new Promise((resolve, reject) => {
    const id = next++;
    waiting.set(id, { resolve, reject });
    signal?.addEventListener("abort", () => reject(signal.reason));
    worker.postMessage({ id, path, body });
  });
}
