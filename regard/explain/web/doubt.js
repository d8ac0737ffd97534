/* How doubtful an output is, from what the server tells of it, and why. */
import { sum } from "./numbers.js";

const LITTLE = 0.2; // a source word that received less attention than this is not attended to
const FLAGS = { repetition: "repeats itself", untranslated: "seems untranslated", truncated: "cut off",
  unused_input: "part of the input was not used" };

// As `regard.inspection.doubt` has it: 1 - c √w (1 - g) (1 - r), of the tokens' mean probability, that of the least
// probable word, the gap in coverage of the source and the share of bigrams that are repeated.
export function doubt(source, { text, tokens, words, coverage, flags = [] }) {
  const reasons = [], logs = tokens.map((token) => token.log_prob ?? -Infinity);
  const mean = Math.exp(sum(logs) / Math.max(1, logs.length));
  const least = words?.length ? words.reduce((a, b) => (b.confidence < a.confidence ? b : a)) : null;
  const longer = Math.max(1, (coverage?.length ?? 0) / Math.max(1, words?.length ?? 1)); // than the output
  const received = (coverage ?? []).map((share) => share * longer);
  const gap = received.length ? sum(received.map((share) => Math.max(0, 1 - share))) / received.length : 0;
  const repeated = Math.max(0, repetition(text) - repetition(source));
  const open = received.filter((share) => share < LITTLE).length;
  if (least && least.confidence < 0.5) reasons.push(`unsure of “${least.text}”`);
  if (open) reasons.push(`${open} of ${received.length} source words hardly attended to`);
  if (repeated > 0 && !flags.includes("repetition")) reasons.push(FLAGS.repetition);
  reasons.push(...flags.map((flag) => FLAGS[flag] ?? flag));
  return { value: 1 - mean * Math.sqrt(least?.confidence ?? 1) * (1 - gap) * (1 - repeated), reasons };
}

function repetition(text) {
  const words = text.split(/\s+/).filter(Boolean), pairs = words.slice(1).map((word, i) => `${words[i]} ${word}`);
  return pairs.length ? 1 - new Set(pairs).size / pairs.length : 0;
}
