/* What is computed from weights, with nothing of a document in it. */

export const sum = (list) => list.reduce((a, b) => a + b, 0);
const DARK = 0.26, GLOW = 0.3; // what is left of a picture without attention; white added where there is most

// Attention rollout (Abnar and Zuidema 2020): A = W / 2 + I / 2 of each encoder layer, rows normalised, and the product
// of them all; as if it were a layer. Of several sources, one that attends to itself leaves the others as they are.
export function rollout(x) {
  const n = x.source.length;
  let found = Array.from({ length: n }, (_, i) => Float64Array.from({ length: n }, (_, j) => Number(i === j)));
  for (const layer of x.layers.filter((l) => l.kind === "encoder")) {
    const { start, end } = layer.part ? x.parts[layer.part - 1] : { start: 0, end: n };
    if (layer.weights[0].length !== end - start || layer.weights[0][0].length !== end - start) return null;
    found = found.map((old, i) => {
      if (i < start || i >= end) return old;
      const row = Float64Array.from({ length: end - start }, (_, j) =>
        layer.weights.reduce((total, head) => total + head[i - start][j], 0) / layer.weights.length / 2);
      row[i - start] += 0.5;
      const total = row.reduce((a, b) => a + b, 0), mixed = new Float64Array(n);
      row.forEach((weight, j) => {
        const share = weight / total, other = found[start + j];
        for (let k = 0; k < n; k++) mixed[k] += share * other[k];
      });
      return mixed;
    });
  }
  return { name: "rollout", kind: "encoder", weights: [found.map((row) => [...row])] };
}

// Where half of the attention lies before, in cells from the start of the first: 2.5 is the middle of cell 2.
export function median(row) {
  const half = sum(row) / 2;
  let before = 0;
  for (let i = 0; i < row.length; i++) {
    if (row[i] > 0 && before + row[i] >= half) return i + (half - before) / row[i];
    before += row[i];
  }
  return null;
}

// Each cell from 0 to 1, for the one that has most. Of rollout, in which there is something of each, what is more than
// that.
export function shares(weights, floored) {
  const most = Math.max(...weights), least = floored ? Math.min(...weights) : 0;
  const floor = least < most ? least : 0;
  return weights.map((weight) => Math.max(0, weight - floor) / Math.max(most - floor, 1e-9));
}

export const frameCount = ({ kind, frames, rows, columns }) => (kind === "frames" ? frames || columns / rows : 1);

// How much of the attention each frame of a strip has.
export function frameTotals(canvas, weights) {
  const each = canvas.columns / frameCount(canvas), totals = Array(frameCount(canvas)).fill(0);
  weights.forEach((weight, k) => { totals[Math.floor((k % canvas.columns) / each)] += weight; });
  return totals;
}

// Words whose attended moment this is: it has at least half of what their most attended one has.
export const playing = (rows, cell) => rows.map((row) => row[cell] > 0 && row[cell] >= Math.max(...row) / 2);

// The veil over one frame of a picture, red, green, blue and opacity of each cell: clear and a little white where the
// weights are greatest.
export function veil(bright, canvas, frame = 0) {
  const across = canvas.columns / frameCount(canvas), out = new Uint8ClampedArray(4 * across * canvas.rows);
  for (let k = 0; k < across * canvas.rows; k++) {
    const share = bright[Math.floor(k / across) * canvas.columns + frame * across + k % across];
    const opaque = 1 - (DARK + (1 - DARK) * share) * (1 - GLOW * share);
    const white = 255 * GLOW * share / opaque;
    out.set([white, white, white, 255 * opaque], 4 * k);
  }
  return out;
}

const each = (list, count) => list.length === count && list.every((place, i) =>
  place.members.length === 1 && place.members[0] === i);

// The weights of a query word are the mean over its pieces, those of a key word the sum.
export function merge(head, queries, keys) {
  if (each(queries, head.length) && each(keys, head[0]?.length)) return head;
  return queries.map((query) => keys.map((key) => {
    let total = 0;
    for (const i of query.members) for (const j of key.members) total += head[i][j];
    return total / query.members.length;
  }));
}

// One head, or the mean or the greatest of all.
export function combine(heads, choice) {
  if (typeof choice === "number") return heads[choice];
  if (heads.length === 1) return heads[0];
  const most = choice === "max";
  return heads[0].map((row, i) => row.map((first, j) => {
    let found = first;
    for (let h = 1; h < heads.length; h++) {
      const weight = heads[h][i][j];
      found = most ? Math.max(found, weight) : found + weight;
    }
    return most ? found : found / heads.length;
  }));
}

// The greatest weight of each block of a matrix, so that it has at most so many rows and columns: a small picture.
export function shrunk(weights, most) {
  const rows = weights.length, columns = weights[0]?.length ?? 0;
  if (rows <= most && columns <= most) return weights;
  const height = Math.min(rows, most), width = Math.min(columns, most);
  const out = Array.from({ length: height }, () => new Float32Array(width));
  weights.forEach((row, q) => {
    const into = out[Math.floor(q * height / rows)];
    for (let k = 0; k < columns; k++) {
      const at = Math.floor(k * width / columns);
      if (row[k] > into[at]) into[at] = row[k];
    }
  });
  return out;
}

// Which of two lists of words belong together (the longest common subsequence): for each of both lists, whether the
// other has it.
export function common(one, other) {
  const n = one.length, m = other.length, longest = Array.from({ length: n + 1 }, () => new Uint16Array(m + 1));
  for (let i = n - 1; i >= 0; i--) {
    for (let j = m - 1; j >= 0; j--) {
      longest[i][j] = one[i] === other[j] ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
    }
  }
  const first = Array(n).fill(false), second = Array(m).fill(false);
  for (let i = 0, j = 0; i < n && j < m;) {
    if (one[i] === other[j]) first[i++] = second[j++] = true;
    else if (longest[i + 1][j] >= longest[i][j + 1]) i++;
    else j++;
  }
  return [first, second];
}
