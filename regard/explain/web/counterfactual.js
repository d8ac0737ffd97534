/* What if a word of the source were another, or not there: outputs and scores against the original. */
import { ask, latest } from "./api.js";
import { button, make, number, tableHead } from "./dom.js";
import { joined, marked, words } from "./words.js";

const MASK = "▒"; // a character that no training text has, so that it is an unknown token
const MOST = 60; // words that are left out one by one

/* `explore(text)` shows a variant in full. */
export function counterfactualPanel(explore) {
  const line = make("div", { class: "source-words", dir: "auto", role: "group", "aria-label": "Words of the source" });
  const bar = make("div", { class: "word-editor" }), told = make("p", { class: "quiet", role: "status" });
  const body = make("tbody"), table = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Variants" },
    make("table", { class: "variants" }, tableHead(["Source", "Output", "Log p", "Log p of the original output"], "More"), body));
  const each = button("Leave out each word in turn", () => leaveOut());
  const element = make("section", { "aria-label": "What if" }, make("header", {}, make("h2", {}, "What if the source were another"), each),
    make("p", { class: "quiet" }, "Choose a word to change it, to delete it or to mask it."), line, bar, told, table);
  element.hidden = true;
  const only = latest();
  let original = null, model = null, list = [];

  // `found` is { text, log_prob } of the output as it is.
  function show(name, source, found) {
    only.stop();
    element.hidden = typeof source !== "string";
    if (element.hidden) return;
    [model, original, list] = [name, { source, ...found }, words(source)];
    body.replaceChildren();
    table.hidden = true;
    bar.hidden = true;
    told.textContent = "";
    each.disabled = list.length < 2 || list.length > MOST;
    line.replaceChildren(...list.map((word, i) => button(make("bdi", {}, word), () => edit(i), { class: "source-word" })));
  }

  function edit(i) {
    const input = make("input", { dir: "auto", "aria-label": `Instead of ${list[i]}` });
    input.value = list[i];
    const change = (word) => { bar.hidden = true; run([list.toSpliced(i, 1, ...(word ? [word] : []))]); line.children[i].focus(); };
    input.onkeydown = (event) => {
      if (event.key === "Enter" && input.value.trim()) change(input.value.trim());
      if (event.key === "Escape") { bar.hidden = true; line.children[i].focus(); }
    };
    bar.replaceChildren(input, button("Change", () => change(input.value.trim()), { class: "primary" }),
      button("Delete", () => change("")), button("Mask", () => change(MASK), { title: "an unknown token in its place" }));
    bar.hidden = false;
    input.select();
    input.focus();
  }

  const leaveOut = () => run(list.map((_, i) => list.toSpliced(i, 1)), true);

  async function run(variants, importance = false) {
    const texts = variants.map((each) => joined(each, original.source)).filter(Boolean), signal = only.begin();
    told.textContent = "Asking the model …";
    try {
      const [{ outputs }, { scores }] = await Promise.all([ask("generate", { model, input: texts }, signal),
        ask("score", { model, pairs: texts.map((source) => ({ source, target: original.text })) }, signal)]);
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
      line.children[i].style.setProperty("--w", loss / most);
      line.children[i].title = `without it, log p of the output is ${number(loss)} less`;
      line.children[i].classList.add("weighed");
    });
    told.textContent = "The stronger a word is coloured, the less probable the original output is without it.";
  }

  function add(text, output, score) {
    table.hidden = false;
    const change = (value, from) => (value === null || value === undefined ? "−∞"
      : `${number(value)} (${value >= from ? "+" : "−"}${Math.abs(value - from).toFixed(2)})`);
    body.prepend(make("tr", {}, make("td", {}, marked(text, original.source)),
      make("td", {}, output ? marked(output.text, original.text) : "none"),
      make("td", {}, output ? change(output.log_prob, original.log_prob) : ""),
      make("td", {}, change(score.log_prob, original.log_prob)), make("td", {}, button("Look into it", () => explore(text)))));
  }

  return { element, show };
}
