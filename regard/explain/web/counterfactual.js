/* What if a word of the source were another, or not there: outputs and scores against the original. */
import { ask, latest } from "./api.js";
import { button, make, number, picture, section, tableHead } from "./dom.js";
import { joined, marked, words } from "./words.js";

const MASK = "▒"; // a character that no training text has, so that it is an unknown token
const MOST = 60; // words that are left out one by one
const COLUMNS = ["Source", "Output", "Log p", "Log p of the original output"];

/* `explore(text)` shows a variant in full. */
export function counterfactualPanel(explore) {
  let original = null, asked = null, list = []; // { source, text, log_prob }; model and search; words of the source
  const only = latest(), body = make("tbody"), bar = make("div", { class: "word-editor" });
  const line = make("div", { class: "source-words", dir: "auto", role: "group", "aria-label": "Words of the source" });
  const told = make("p", { class: "quiet", role: "status" });
  const table = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Variants" },
    make("table", { class: "variants" }, tableHead(COLUMNS, "More"), body));
  const each = button("Leave out each word in turn", () => run(list.map((_, i) => list.toSpliced(i, 1)), true));
  const element = section("What if", "What if the source were another", each,
    make("p", { class: "quiet" }, "Choose a word to change it, to delete it or to mask it."), line, bar, told, table);

  // `found` is { text, log_prob } of the output as it is.
  function show(how, source, found) {
    only.stop();
    element.hidden = typeof source !== "string";
    if (element.hidden) return;
    [asked, original, list] = [how, { source, text: found.text, log_prob: found.log_prob }, words(source)];
    body.replaceChildren();
    table.hidden = bar.hidden = true;
    told.textContent = "";
    each.disabled = list.length < 2 || list.length > MOST;
    line.replaceChildren(...list.map((word, i) =>
      button(word, () => edit(i), { class: "source-word" })));
  }

  function edit(i) {
    const input = make("input", { dir: "auto", "aria-label": `Instead of ${list[i]}` });
    const close = () => { bar.hidden = true; line.children[i].focus(); };
    const change = (word) => { close(); run([list.toSpliced(i, 1, ...(word ? [word] : []))]); };
    input.value = list[i];
    input.onkeydown = (event) => {
      if (event.key === "Enter" && input.value.trim()) change(input.value.trim());
      if (event.key === "Escape") close();
    };
    bar.replaceChildren(input, button("Change", () => change(input.value.trim()), { class: "primary" }),
      button("Delete", () => change("")),
      button("Mask", () => change(MASK), { title: "an unknown token in its place" }));
    bar.hidden = false;
    input.select();
    input.focus();
  }

  async function run(variants, importance = false) {
    const texts = variants.map((some) => joined(some, original.source)).filter(Boolean), signal = only.begin();
    if (!texts.length) return;
    const pairs = texts.map((source) => ({ source, target: original.text }));
    told.textContent = "Asking the model …";
    try {
      const [{ outputs }, { scores }] = await Promise.all([ask("generate", { ...asked, input: texts }, signal),
        ask("score", { model: asked.model, pairs }, signal)]);
      told.textContent = "";
      texts.forEach((text, i) => add(text, outputs[i]?.[0], scores[i]));
      if (importance) colour(scores);
    } catch (error) {
      if (error.name !== "AbortError") told.textContent = error.message;
    }
  }

  // How much less probable the original output is without each word.
  function colour(scores) {
    const losses = scores.map(({ log_prob }) => Math.max(0, original.log_prob - (log_prob ?? -1e9)));
    const most = Math.max(...losses, 1e-9);
    losses.forEach((loss, i) => {
      const word = line.children[i];
      word.style.setProperty("--w", loss / most);
      word.title = `without it, log p of the output is ${number(loss)} less`;
      word.classList.add("weighed");
    });
    told.textContent = "The stronger a word is coloured, the less probable the original output is without it.";
  }

  function add(text, output, score) {
    const change = (value) => {
      const more = value - original.log_prob;
      return value === null ? "−∞" : `${number(value)} (${more < 0 ? "" : "+"}${number(more)})`;
    };
    const written = output?.picture ? picture(`data:image/png;base64,${output.picture}`)
      : output ? marked(output.text, original.text) : "none";
    const cells = [marked(text, original.source), written,
      output ? change(output.log_prob) : "", change(score.log_prob), button("Look into it", () => explore(text))];
    table.hidden = false;
    body.prepend(make("tr", {}, ...cells.map((cell) => make("td", {}, cell))));
  }

  return { element, show };
}
