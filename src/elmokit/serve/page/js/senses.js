// Senses of a word: groups of its occurrences.
// Input: the cosines (n, n) between the occurrences, as rows.  Output: their groups, the ranges of the cosines within and
// between groups, and points in a plane.

import { principalPlane } from "./vectors.js";

// those of elmokit.inference.grouping
const SEPARATION = 1.04; // distance of two groups, over the mean distance of two occurrences
const SMALLEST_GROUP = 3;
const SMALLEST_SHARE = 0.02;

// The group of each occurrence, the largest group first: average linkage, as `ELMo.senses` does it.
export function group(cosines) {
  const n = cosines.length;
  if (n < 2) return cosines.map(() => 0);
  const distances = cosines.map((row) => row.map((cosine) => 1 - cosine));
  const sum = distances.reduce((total, row, a) => total + row.reduce((part, x, b) => part + (a === b ? 0 : x), 0), 0);
  const furthest = (SEPARATION * sum) / (n * (n - 1));
  let groups = cosines.map((_, place) => [place]);
  for (;;) {
    let best = { distance: Infinity };
    for (let a = 0; a < groups.length; a++) {
      for (let b = a + 1; b < groups.length; b++) {
        const distance = mean(groups[a].flatMap((i) => groups[b].map((j) => distances[i][j])));
        if (distance < best.distance) best = { distance, a, b };
      }
    }
    if (groups.length === 1 || best.distance > furthest) break;
    const joined = [...groups[best.a], ...groups[best.b]];
    groups = groups.filter((_, number) => number !== best.a && number !== best.b).concat([joined]);
  }
  const sizes = groups.map((members) => members.length);
  const smallest = Math.min(Math.max(SMALLEST_GROUP, SMALLEST_SHARE * n), Math.max(...sizes));
  const large = groups.filter((members) => members.length >= smallest);
  const joined = large.map((members) => [...members]);
  for (const place of groups.filter((members) => members.length < smallest).flat()) {
    const likeness = large.map((members) => toCentre(cosines, place, members));
    joined[likeness.indexOf(Math.max(...likeness))].push(place);
  }
  joined.sort((a, b) => b.length - a.length || Math.min(...a) - Math.min(...b));
  return cosines.map((_, place) => joined.findIndex((members) => members.includes(place)));
}

// the inner product of a vector of length one with the centre of others, which has length one too
function toCentre(cosines, place, members) {
  const length = Math.sqrt(members.reduce((sum, a) => sum + members.reduce((part, b) => part + cosines[a][b], 0), 0));
  return members.reduce((sum, member) => sum + cosines[place][member], 0) / (length || 1);
}

function mean(values) {
  return values.reduce((sum, x) => sum + x, 0) / values.length;
}

// [lowest, highest] cosine of two occurrences of the same sense, and of two of different senses; null where there are none.
export function ranges(cosines, labels) {
  const found = { same: null, other: null };
  for (let a = 0; a < labels.length; a++) {
    for (let b = 0; b < a; b++) {
      const kind = labels[a] === labels[b] ? "same" : "other";
      const value = cosines[a][b];
      found[kind] = found[kind] ? [Math.min(found[kind][0], value), Math.max(found[kind][1], value)] : [value, value];
    }
  }
  return found;
}

export function rangeText(range) {
  const [low, high] = range.map((value) => value.toFixed(2));
  return low === high ? low : `${low}–${high}`;
}

// How many occurrences are in a group in which most have the sense that a reader sees.
export function agreement(labels, readers) {
  const pairs = new Map();
  for (const [place, label] of labels.entries()) {
    const counts = pairs.get(label) ?? new Map();
    counts.set(readers[place], (counts.get(readers[place]) ?? 0) + 1);
    pairs.set(label, counts);
  }
  return [...pairs.values()].reduce((sum, counts) => sum + Math.max(...counts.values()), 0);
}

// For each table of cosines, the points of the occurrences in the plane of their first two principal components. The planes
// are turned so that points move as little as possible from one to the next; the last one keeps its direction.
export function planes(tables) {
  const found = tables.map((cosines) => plane(cosines));
  for (let i = found.length - 2; i >= 0; i--) found[i] = turnedTo(found[i], found[i + 1]);
  return found;
}

function plane(cosines) {
  const n = cosines.length;
  if (n === 2) {
    const half = Math.sqrt(Math.max(0, 2 - 2 * cosines[0][1])) / 2;
    return [[-half, 0], [half, 0]];
  }
  return principalPlane(Float64Array.from(cosines.flat()), n, null).points;
}

// Rotate and mirror points so that they lie as near as possible to others (the orthogonal Procrustes problem in a plane).
function turnedTo(points, others) {
  let [xx, xy, yx, yy] = [0, 0, 0, 0];
  for (const [i, [x, y]] of points.entries()) {
    const [u, v] = others[i];
    xx += x * u;
    xy += x * v;
    yx += y * u;
    yy += y * v;
  }
  const sign = xx * yy - xy * yx < 0 ? -1 : 1; // mirrored if the determinant is negative
  const angle = Math.atan2(xy - sign * yx, xx + sign * yy);
  const [c, s] = [Math.cos(angle), Math.sin(angle)];
  return points.map(([x, y]) => [x * c - sign * y * s, x * s + sign * y * c]);
}
