/* Many sentences: translated, ranked by doubt, corrected, saved as training data. */
import { ask, latest } from "./api.js";
import { announce, button, choices, make, percent, tableHead } from "./dom.js";
import { doubt } from "./doubt.js";
import { download } from "./saving.js";
import { sentences } from "./words.js";

const BATCH = 8; // sentences that are asked for at once, so that the first are soon there

/* `explore(model, text)` shows one sentence in full. */
export function documentView(models, explore, onchange) {
  const readers = models.filter((model) => String(model.sources) === "text" && model.target === "text");
  const select = make("select", {}, ...readers.map((model) => make("option", { value: model.name }, model.name)));
  const area = make("textarea", { dir: "auto", rows: 6, "aria-label": "Text", placeholder: "Paste a text, a sentence a line" });
  const split = make("input", { type: "checkbox" }), told = make("p", { class: "quiet", role: "status" }), only = latest();
  const order = choices("Order", (chosen) => { sorting = chosen; arrange(); });
  order.element.classList.add("switch");
  const body = make("tbody"), bar = make("progress", { max: 1, value: 0, "aria-label": "Progress" });
  const start = button("Translate", () => run(), { class: "primary" });
  const save = (kind, some) => button(some ? `Corrected as ${kind}` : `All as ${kind}`, () => write(kind, some));
  const tools = make("div", { class: "tools" }, order.element, make("div", { class: "row" }, save("TSV"), save("JSONL"), save("TSV", true),
    save("JSONL", true)));
  const result = make("section", { "aria-label": "Sentences by doubt", hidden: "" }, make("header", {}, make("h2", {}, "Sentences"), bar),
    tools, make("div", { class: "tall", tabindex: 0, role: "region", "aria-label": "Table of sentences" },
      make("table", { class: "document" }, tableHead(["Doubt", "Source", "Output"], "More"), body)));
  const element = make("div", { class: "view" }, make("section", { "aria-label": "Document" },
    readers.length ? null : make("p", {}, "No model here turns text into text."), area, make("div", { class: "row" },
      make("label", { class: "inline" }, make("span", { class: "quiet" }, "Model"), select),
      make("label", { class: "inline" }, split, "several sentences a line"), start, told)), result);
  element.classList.add("document-view");
  start.disabled = !readers.length;
  let rows = [], sorting = "doubt";
  const orders = { doubt: "most doubtful first", text: "as in the text" };

  async function run() {
    const texts = sentences(area.value, split.checked);
    if (!texts.length) return;
    onchange();
    const signal = only.begin(), model = select.value;
    rows = texts.map((source, i) => ({ i, source, model }));
    body.replaceChildren();
    result.hidden = bar.hidden = false;
    order.show(Object.keys(orders), sorting, (name) => [orders[name]]);
    try {
      for (let from = 0; from < rows.length; from += BATCH) {
        bar.value = from / rows.length;
        told.textContent = `${from} of ${rows.length} sentences`;
        await translate(rows.slice(from, from + BATCH), model, signal);
        arrange();
      }
      const weak = rows.filter((row) => row.doubt.value >= 0.5).length;
      announce(told.textContent = `${rows.length} sentences, ${weak} of them doubtful`);
    } catch (error) {
      if (error.name !== "AbortError") told.textContent = error.message;
    }
    bar.hidden = true;
  }

  async function translate(some, model, signal) {
    const { outputs } = await ask("generate", { model, input: some.map((row) => row.source), tokens: true, alignment: true }, signal);
    some.forEach((row, i) => {
      row.output = outputs[i]?.[0];
      row.text = row.output?.text ?? "";
      row.doubt = row.output ? doubt(row.source, row.output) : { value: 1, reasons: ["no output"] };
      row.element = line(row);
    });
  }

  function arrange() {
    const done = rows.filter((row) => row.element);
    if (sorting === "doubt") done.sort((a, b) => b.doubt.value - a.doubt.value || a.i - b.i);
    body.replaceChildren(...done.map((row) => row.element));
  }

  function line(row) {
    const meter = make("span", { class: "doubt", title: row.doubt.reasons.join(", ") }, percent(row.doubt.value));
    meter.style.setProperty("--p", row.doubt.value);
    const reasons = make("p", { class: "quiet" }, row.doubt.reasons.join("; "));
    const text = make("textarea", { dir: "auto", rows: 2, "aria-label": `Output of sentence ${row.i + 1}` });
    text.value = row.text;
    const shown = make("p", { dir: "auto" }, ...(row.output?.words ?? []).flatMap((word, i) => [i ? " " : "", confident(word)]));
    if (!row.output?.words?.length) shown.textContent = row.text;
    const state = make("span", { class: "chip", hidden: "" }, "corrected");
    text.oninput = () => {
      row.text = text.value;
      row.corrected = row.text !== (row.output?.text ?? "");
      state.hidden = !row.corrected;
    };
    text.hidden = true;
    const correct = button("Correct", () => {
      text.hidden = !text.hidden;
      shown.hidden = !text.hidden && !row.corrected ? true : !text.hidden;
      if (text.hidden && row.corrected) shown.textContent = row.text;
      correct.textContent = text.hidden ? "Correct" : "Done";
      if (!text.hidden) text.focus();
    });
    return make("tr", {}, make("td", {}, meter), make("td", { dir: "auto" }, row.source), make("td", {}, shown, text, reasons, state),
      make("td", {}, correct, button("Look into it", () => explore(row.model, row.source))));
  }

  // A word, paler in its ink the less sure it is.
  function confident(word) {
    const element = make("bdi", { class: word.confidence < 0.5 ? "unsure" : "", title: percent(word.confidence) }, word.text);
    return element;
  }

  function write(kind, corrected) {
    const pairs = rows.filter((row) => row.text && (!corrected || row.corrected));
    const flat = (text) => text.replace(/\s+/g, " ").trim();
    const text = kind === "TSV" ? pairs.map((row) => `${flat(row.source)}\t${flat(row.text)}\n`)
      : pairs.map((row) => `${JSON.stringify({ source: row.source, target: flat(row.text) })}\n`);
    download(`pairs.${kind.toLowerCase()}`, text.join(""), kind === "TSV" ? "text/tab-separated-values" : "application/jsonl");
  }

  return { element, run, draw() {}, reset() {},
    get state() { return { document: area.value.length <= 4000 ? area.value : "", document_model: select.value }; },
    restore({ document: text, document_model: name }) {
      if (text) area.value = text;
      if (readers.some((model) => model.name === name)) select.value = name;
    } };
}
