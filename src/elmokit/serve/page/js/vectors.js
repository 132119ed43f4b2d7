// Mixes of the layers, computed from their inner products.
// Input: the layers of n tokens, once.  Output: for any weights, the inner products of the mixed vectors (n, n), their
// similarities and their principal components.

export function softmax(weights) {
  const top = Math.max(...weights);
  const powers = weights.map((weight) => Math.exp(weight - top));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}

// products[j][k], j <= k: of layer j with itself; of j with k and k with j together.
export function innerProducts({ layers, tokens: n, width, values }) {
  const row = (layer, token) => values.subarray((layer * n + token) * width, (layer * n + token + 1) * width);
  const products = [];
  for (let j = 0; j < layers; j++) {
    products.push([]);
    for (let k = j; k < layers; k++) {
      const matrix = (products[j][k] = new Float64Array(n * n));
      for (let a = 0; a < n; a++) {
        for (let b = 0; b <= a; b++) {
          let sum = dot(row(j, a), row(k, b));
          if (k > j) sum += dot(row(k, a), row(j, b));
          matrix[a * n + b] = matrix[b * n + a] = sum;
        }
      }
    }
  }
  return products;
}

function dot(u, v) {
  let sum = 0;
  for (let i = 0; i < u.length; i++) sum += u[i] * v[i];
  return sum;
}

// (n, n) of gamma * sum_j shares_j * layer_j
export function mix(products, shares, gamma) {
  const mixed = new Float64Array(products[0][0].length);
  for (let j = 0; j < products.length; j++) {
    for (let k = j; k < products.length; k++) {
      const factor = gamma * gamma * shares[j] * shares[k];
      const matrix = products[j][k];
      for (let i = 0; i < mixed.length; i++) mixed[i] += factor * matrix[i];
    }
  }
  return mixed;
}

// Rows of similarities between some of the tokens.
export function similarities(gram, n, places, measure) {
  const size = (place) => (measure === "dot" ? 1 : Math.sqrt(gram[place * n + place]) || 1);
  return places.map((a) => places.map((b) => gram[a * n + b] / (size(a) * size(b))));
}

const BLOCK = 4; // vectors that are sought together: more than two, so that the first two come fast
const MOST_ROUNDS = 300;

// Points in the plane of the first two principal components, and the part of the variance that each keeps.
// `basis`, as it came back from the last call, makes the picture move rather than jump when weights change.
export function principalPlane(gram, n, basis) {
  const centred = centre(gram, n);
  let total = 0;
  for (let i = 0; i < n; i++) total += centred[i * n + i];
  if (n < 3 || total < 1e-12) return { points: Array.from({ length: n }, () => [0, 0]), kept: [0, 0], basis: null };
  const count = Math.min(BLOCK, n - 1);
  let vectors = basis?.[0]?.length === n ? basis : start(n, count);
  let values = [];
  for (let round = 0; round < MOST_ROUNDS; round++) {
    const before = vectors;
    const products = before.map((vector) => times(centred, vector));
    values = products.map((product, i) => dot(product, before[i]));
    vectors = orthonormal(products);
    const change = Math.max(...[0, 1].map((i) => (vectors[i] ? 1 - Math.abs(dot(vectors[i], before[i])) : 0)));
    if (change < 1e-12) break;
  }
  vectors = vectors.map((vector, i) => turned(vector, basis?.[i]));
  const scale = (i) => Math.sqrt(Math.max(values[i] ?? 0, 0));
  const points = Array.from({ length: n }, (_, t) => [0, 1].map((i) => scale(i) * (vectors[i]?.[t] ?? 0)));
  return { points, kept: [0, 1].map((i) => Math.max(values[i] ?? 0, 0) / total), basis: vectors };
}

function centre(gram, n) {
  const means = Array.from({ length: n }, (_, a) => gram.subarray(a * n, (a + 1) * n).reduce((s, x) => s + x, 0) / n);
  const mean = means.reduce((s, x) => s + x, 0) / n;
  return gram.map((value, i) => value - means[Math.floor(i / n)] - means[i % n] + mean);
}

function start(n, count) {
  return orthonormal(Array.from({ length: count }, (_, i) => Float64Array.from({ length: n }, (_, t) => Math.sin((t + 1) * (i + 1.7)))));
}

function times(matrix, vector) {
  const n = vector.length;
  return Float64Array.from({ length: n }, (_, a) => dot(matrix.subarray(a * n, (a + 1) * n), vector));
}

function orthonormal(vectors) {
  const done = [];
  for (const vector of vectors) {
    for (const other of done) {
      const part = dot(vector, other);
      for (let i = 0; i < vector.length; i++) vector[i] -= part * other[i];
    }
    const length = Math.sqrt(dot(vector, vector)) || 1;
    done.push(vector.map((x) => x / length));
  }
  return done;
}

// A direction has no sign: take the one of before, or else the one whose largest part is positive.
function turned(vector, before) {
  const largest = vector.reduce((best, x) => (Math.abs(x) > Math.abs(best) ? x : best), 0);
  const sign = before?.length === vector.length ? dot(vector, before) : largest;
  return sign < 0 ? vector.map((x) => -x) : vector;
}
