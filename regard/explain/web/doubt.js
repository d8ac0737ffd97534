/* Why an output is doubtful, by what the server tells of it; how much so, the server says. */

const FLAGS = { repetition: "repeats itself", untranslated: "seems untranslated", truncated: "cut off",
  unused_input: "part of the input was not used" };

// `doubt` is that of `regard.inspection.doubt`.
export function doubt({ words, coverage, doubt: { value, unattended, repetition }, flags = [] }) {
  const reasons = [], least = words?.length ? words.reduce((a, b) => (b.confidence < a.confidence ? b : a)) : null;
  if (least && least.confidence < 0.5) reasons.push(`unsure of “${least.text}”`);
  if (unattended) reasons.push(`${unattended} of ${coverage.length} source words hardly attended to`);
  if (repetition > 0 && !flags.includes("repetition")) reasons.push(FLAGS.repetition);
  reasons.push(...flags.map((flag) => FLAGS[flag] ?? flag));
  return { value, reasons };
}
