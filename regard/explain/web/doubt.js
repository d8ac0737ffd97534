/* How doubtful an output is, from what the server tells of it, and why. */

const GAP = 0.2; // attention that a source word should have received in all
const FLAGS = { repetition: "repeats itself", untranslated: "seems untranslated", truncated: "cut off",
  unused_input: "part of the input was not used" };

// From 0 to 1: the greatest of four doubts. How improbable its tokens are in the (geometric) mean, half of how
// improbable its least probable word is, the share of source words that nothing attended to, and the flags.
export function doubt({ log_prob, tokens, words, coverage, flags = [] }) {
  const reasons = [], count = Math.max(1, tokens?.length ?? 1);
  const mean = 1 - Math.exp((log_prob ?? -1e9) / count);
  const least = words?.length ? words.reduce((a, b) => (b.confidence < a.confidence ? b : a)) : null;
  const open = coverage?.length ? coverage.filter((share) => share < GAP).length / coverage.length : 0;
  if (least && least.confidence < 0.5) reasons.push(`unsure of “${least.text}”`);
  if (open > 0.15) reasons.push(`${Math.round(100 * open)}% of the source hardly attended to`);
  reasons.push(...flags.map((flag) => FLAGS[flag] ?? flag));
  const flagged = flags.some((flag) => flag !== "unused_input") ? 0.9 : flags.length ? 0.6 : 0;
  return { value: Math.max(mean, least ? (1 - least.confidence) / 2 : 0, open, flagged), reasons };
}
