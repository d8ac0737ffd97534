/* From an explanation to what stands along the sides of its attention. */
import { number, percent, readable } from "./dom.js";
import { sum } from "./numbers.js";

const KINDS = { // what attends, and what is attended to
  cross: { group: "Target attends to source", query: "target", key: "source" },
  encoder: { group: "Source attends to itself", query: "source", key: "source" },
  decoder: { group: "Target attends to itself", query: "target so far", key: "target so far" },
};
const READ = { // of a text that is no other's source: it is continued, or something is predicted of it
  encoder: { group: "Text attends to itself", query: "text", key: "text" },
  decoder: { group: "Text attends to itself", query: "text so far", key: "text so far" },
};
export const kinds = (x) => (x.given || x.places ? { ...KINDS, ...READ } : KINDS);

// Whether a layer is one of the network's own, which can be edited, and not computed from several, as rollout is.
export const isModule = (name) => Boolean(name?.includes("."));

// The places along one side: pieces as they are, or the pieces of a word together. A mark such as </s> belongs to no
// word and stays by itself, so that attention to it remains in sight. The first `given` pieces were given, the others
// written. For some pieces something is `predicted` (a tag, what fills a blank); a target piece may have `candidates`.
export function places(pieces, words, logs, unit, { given = 0, predicted = new Map(), candidates = [] } = {}) {
  const out = [];
  pieces.forEach((piece, i) => {
    const joins = unit === "words" && i > 0 && i !== given && words[i] >= 0 && words[i] === words[i - 1];
    const boundary = given > 0 && i === given; // from here on it was written
    if (!joins) out.push({ text: "", members: [], mark: words[i] < 0, given: i < given, boundary });
    out.at(-1).text += joins ? piece.replace(/^·/, "") : piece; // the dot of a piece that goes on a word
    out.at(-1).members.push(i);
  });
  for (const place of out) {
    if (unit === "words") place.text = readable(place.text.replace(BYTES, decoded));
    const own = place.members.map((i) => logs?.[i]); // undefined: has none; null: minus infinity
    place.log = own.includes(undefined) ? undefined : own.includes(null) ? null : sum(own);
    place.predicted = place.members.map((i) => predicted.get(i)).find(Boolean);
    if (place.predicted) place.log = place.predicted.log;
    place.candidates = place.predicted ? place.predicted.candidates : candidates[place.members[0]];
  }
  return out;
}

// Pieces of a character that is in no vocabulary, as SentencePiece names its bytes.
const BYTES = /(?:<0x[0-9A-F]{2}>)+/g;

function decoded(bytes) {
  try {
    const numbers = bytes.match(/[0-9A-F]{2}/g).map((two) => parseInt(two, 16));
    return new TextDecoder("utf-8", { fatal: true }).decode(Uint8Array.from(numbers));
  } catch {
    return bytes; // a part of a character
  }
}

// What attends and what is attended to in a layer.
export function sides(x, { kind, part }, unit) {
  const { start, end } = part ? x.parts[part - 1] : {}; // one of several sources attends to itself
  const pieces = x.source.slice(start, end), own = x.source_word.slice(start, end);
  const source = places(pieces, own, null, unit);
  if (kind === "cross") return [places(x.target, x.target_word, x.log_probs, unit), source];
  if (kind === "encoder" || x.places) { // predictions stand with the queries, not with the keys
    const predicted = new Map((x.places ?? []).map((place, i) =>
      [place, { text: x.target[i], log: x.log_probs[i], candidates: x.candidates?.[i] }]));
    return [places(pieces, own, null, unit, { predicted }), source];
  }
  // The decoder reads the target one place late; a single network reads what was given before it.
  const before = x.inputs.length - x.target.length + 1, alone = x.given || before > 1;
  const words = [...Array.from({ length: before }, (_, i) => (alone ? x.source_word[i] : -1) ?? -1),
    ...x.target_word.slice(0, -1)];
  const logs = [...Array(before).fill(undefined), ...x.log_probs.slice(0, -1)];
  const read = places(x.inputs, words, logs, unit, { given: x.given > 1 ? x.given : 0 });
  return [read, read];
}

// The cells of a canvas, each with the pieces in it; and what attends to them: the words of a target or, in an encoder,
// the whole (a class token, or else all pieces) and then each cell.
export function cellSides(x, { kind }, unit) {
  const cells = Array.from({ length: x.canvas.rows * x.canvas.columns }, () => ({ text: "", members: [] }));
  x.source_word.forEach((word, i) => {
    if (word < 0) return;
    cells[word].text ||= x.source[i];
    cells[word].members.push(i);
  });
  if (kind === "encoder") {
    const alone = x.source_word[0] < 0;
    const whole = { text: alone ? x.source[0] : "mean", mark: true, members: alone ? [0] : [...x.source.keys()] };
    return [[whole, ...cells], cells];
  }
  return [withGold(x, places(x.target, x.target_word, x.log_probs, unit)), cells];
}

// Places of the target, each with the cells that belong to it in truth, where that is known.
export function withGold(x, list) {
  for (const place of list) {
    const words = place.members.map((i) => x.target_word[i]).filter((word) => word >= 0);
    const cells = (x.gold ?? []).filter(([, word]) => words.includes(word)).map(([cell]) => cell);
    place.gold = cells.filter((cell) => !x.canvas || cell < x.canvas.rows * x.canvas.columns);
  }
  return list;
}

// How much one place of an encoder's layer attends to each cell, in the mean of its heads.
export const attends = ({ weights }, { members }, cells) => cells.map((cell) => sum(weights.map((head) =>
  sum(members.map((i) => sum(cell.members.map((j) => head[i][j])))))) / members.length / weights.length);

// Whether a gold link says of a place in the target and one in the source that they belong together.
export const belong = (x, from, to) => (x.gold ?? []).some(([source, target]) =>
  to.members.some((j) => x.source_word[j] === source) && from.members.some((i) => x.target_word[i] === target));

// As it reads, without special tokens apart from the `blanks`.
export const text = (pieces, words, blanks = []) => places(pieces, words, null, "words")
  .filter((x) => !x.mark || blanks.includes(x.members[0])).map((x) => x.text).join(" ");

export const named = ({ text, predicted }) =>
  readable(text) + (predicted ? ` → ${readable(predicted.text)}` : "");

export function probability({ log }) {
  if (log === undefined) return "";
  return log === null ? "probability 0" : `probability ${percent(Math.exp(log))} (log p ${number(log)})`;
}

export const candidateTexts = (list) => (list ?? []).map(([piece, share]) => `${readable(piece)} ${percent(share)}`);

// What a place attends to, or is attended to by: the strongest five, a line each.
export function partners({ query, key, weights }, side, index) {
  const weight = (i) => (side === "query" ? weights[index][i] : weights[i][index]);
  const list = (side === "query" ? key : query).map((place, i) => ({ place, weight: weight(i) }))
    .filter((x) => x.weight >= 0.01).sort((a, b) => b.weight - a.weight).slice(0, 5);
  const found = list.map((x) => `${percent(x.weight)} ${named(x.place)}`);
  return found.length ? [side === "query" ? "attends to" : "is attended to by", ...found].join("\n") : "";
}
