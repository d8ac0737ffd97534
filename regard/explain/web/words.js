/* Words of a text, and how two texts differ. */
import { make } from "./dom.js";
import { common } from "./numbers.js";

const UNSPACED = /\p{Script=Han}|\p{Script=Hiragana}|\p{Script=Katakana}|\p{Script=Thai}/u;

// Words between spaces; of a text without any, as in Chinese, those that the browser finds.
export function words(text) {
  const parts = text.trim().split(/\s+/).filter(Boolean);
  if (parts.length > 1 || !UNSPACED.test(text)) return parts;
  return [...new Intl.Segmenter(undefined, { granularity: "word" }).segment(text)].map((part) => part.segment);
}

export const joined = (list, like) => list.join(/\s/.test(like.trim()) || list.length < 2 ? " " : "");

// A text whose words that the other does not have are marked; what is gone is not shown.
export function marked(text, other) {
  const own = words(text), [kept] = common(own, words(other)), space = /\s/.test(text.trim()) ? " " : "";
  return make("span", { dir: "auto" }, ...own.flatMap((word, i) => [i ? space : "",
    kept[i] ? word : make("ins", {}, word)]));
}

// Sentences of a text: its lines, or in each line what the browser takes for sentences.
export function sentences(text, split) {
  const rows = text.split(/\n/).map((line) => line.trim()).filter(Boolean);
  if (!split) return rows;
  const cutter = new Intl.Segmenter(undefined, { granularity: "sentence" });
  return rows.flatMap((line) => [...cutter.segment(line)].map((part) => part.segment.trim()).filter(Boolean));
}
