/* Many sentences: translated, ranked by doubt, corrected, saved as training data. */
import { ask, latest } from "./api.js";
import { announce, button, choices, counted, field, make, percent, section, tableHead } from "./dom.js";
import { doubt } from "./doubt.js";
import { download } from "./saving.js";
import { sentences } from "./words.js";

const BATCH = 8; // sentences that are asked for at once, so that the first are soon there
const LINK = 4000; // letters of a document that go into a link
const ORDERS = { doubt: "most doubtful first", text: "as in the text" };
const TYPES = { TSV: "text/tab-separated-values", JSONL: "application/jsonl" };

/* `explore(model, text)` shows one sentence in full. */
export function documentView(models, explore, onchange) {
  let rows = []; // { i, source, model, output, text, doubt, corrected, element }
  const corrections = new Map(); // of sources, which hold when they are translated again
  let sorting = "doubt";
  const readers = models.filter((model) => String(model.sources) === "text" && model.target === "text");
  const select = make("select", {}, ...readers.map((model) => make("option", { value: model.name }, model.name)));
  const area = make("textarea", { dir: "auto", rows: 6, "aria-label": "Document",
    placeholder: "Paste a text, a sentence a line" });
  const split = make("input", { type: "checkbox" }), told = make("p", { class: "quiet", role: "status" });
  const only = latest(), body = make("tbody"), bar = make("progress", { max: 1, value: 0, "aria-label": "Progress" });
  const order = choices("Order", (chosen) => { sorting = chosen; arrange(); });
  order.element.classList.add("switch");
  const start = button("Translate", () => run(), { class: "primary" });
  start.disabled = !readers.length;
  const save = (kind, corrected) =>
    button(`${corrected ? "Corrected" : "All"} as ${kind}`, () => write(kind, corrected));
  const tools = make("div", { class: "tools" }, order.element, make("div", { class: "row" }, save("TSV", false),
    save("JSONL", false), save("TSV", true), save("JSONL", true)));
  const result = section("Sentences by doubt", "Sentences", bar, tools,
    make("div", { class: "tall", tabindex: 0, role: "region", "aria-label": "Table of sentences" },
      make("table", { class: "document" }, tableHead(["Doubt", "Source", "Output"], "More"), body)));
  result.hidden = true;
  const element = make("div", { class: "view document-view" }, make("section", { "aria-label": "Document" },
    readers.length ? null : make("p", {}, "No model here turns text into text."), area,
    make("div", { class: "row" }, field("Model", select), make("label", { class: "inline" }, split,
      "several sentences a line"), start, told)), result);

  async function run() {
    const texts = sentences(area.value, split.checked), signal = only.begin(), model = select.value;
    if (!texts.length) return;
    onchange();
    rows = texts.map((source, i) => ({ i, source, model }));
    body.replaceChildren();
    result.hidden = bar.hidden = false;
    order.show(Object.keys(ORDERS), sorting, (name) => [ORDERS[name]]);
    try {
      for (let from = 0; from < rows.length; from += BATCH) {
        bar.value = from / rows.length;
        told.textContent = `${from} of ${counted(rows.length, "sentence")}`;
        await translate(rows.slice(from, from + BATCH), model, signal);
        arrange();
      }
      const weak = rows.filter((row) => row.doubt.value >= 0.5).length;
      told.textContent = `${counted(rows.length, "sentence")}, ${weak} of them doubtful`;
      announce(told.textContent);
    } catch (error) {
      if (error.name !== "AbortError") told.textContent = error.message;
    }
    if (!signal.aborted) bar.hidden = true;
  }

  async function translate(some, model, signal) {
    const input = some.length > 1 ? some.map((row) => row.source) : some[0].source;
    let outputs = [], refusal = "no output";
    try {
      ({ outputs } = await ask("generate", { model, input, tokens: true, alignment: true }, signal));
    } catch (error) {
      if (error.status !== 422) throw error;
      refusal = error.message;
      if (some.length > 1) { // which of them it was shows when each is by itself
        for (const row of some) await translate([row], model, signal);
        return;
      }
    }
    some.forEach((row, i) => {
      row.output = outputs[i]?.[0];
      row.corrected = corrections.has(row.source);
      row.text = corrections.get(row.source) ?? row.output?.text ?? "";
      row.doubt = row.output ? doubt(row.output) : { value: 1, reasons: [refusal] };
      row.element = line(row);
    });
  }

  function arrange() {
    const done = rows.filter((row) => row.element);
    if (sorting === "doubt") done.sort((a, b) => b.doubt.value - a.doubt.value || a.i - b.i);
    const here = document.activeElement;
    body.replaceChildren(...done.map((row) => row.element));
    if (body.contains(here)) here.focus({ preventScroll: true });
  }

  function line(row) {
    const meter = make("span", { class: "doubt" }, percent(row.doubt.value));
    meter.style.setProperty("--p", row.doubt.value);
    const shown = make("p", { dir: "auto" }, ...written(row)), state = make("span", { class: "chip" }, "corrected");
    const text = make("textarea", { dir: "auto", rows: 2, "aria-label": `Output of sentence ${row.i + 1}` });
    text.value = row.text;
    text.hidden = true;
    state.hidden = !row.corrected;
    text.oninput = () => {
      row.text = text.value;
      row.corrected = row.text !== (row.output?.text ?? "");
      state.hidden = !row.corrected;
      if (row.corrected) corrections.set(row.source, row.text);
      else corrections.delete(row.source);
    };
    const correct = button("Correct", () => {
      text.hidden = !text.hidden;
      shown.hidden = !text.hidden;
      shown.replaceChildren(...written(row));
      correct.textContent = text.hidden ? "Correct" : "Done";
      if (!text.hidden) text.focus();
    });
    return make("tr", {}, make("td", {}, meter), make("td", { dir: "auto" }, row.source),
      make("td", {}, shown, text, make("p", { class: "quiet" }, row.doubt.reasons.join("; ")), state),
      make("td", {}, correct, button("Look into it", () => explore(row.model, row.source))));
  }

  function write(kind, corrected) {
    const flat = (text) => text.replace(/\s+/g, " ").trim();
    const pairs = rows.filter((row) => row.text && (row.corrected || !corrected))
      .map((row) => ({ source: flat(row.source), target: flat(row.text) }));
    const text = pairs.map((pair) => (kind === "TSV" ? `${pair.source}\t${pair.target}` : JSON.stringify(pair)) + "\n");
    download(`pairs.${kind.toLowerCase()}`, text.join(""), TYPES[kind]);
  }

  return {
    element,
    run,
    draw() {},
    reset() {},
    get state() { return { document: area.value.length <= LINK ? area.value : "", document_model: select.value }; },
    restore(saved) {
      if (saved.document) area.value = saved.document;
      if (readers.some((model) => model.name === saved.document_model)) select.value = saved.document_model;
      if (saved.document) run();
    },
  };
}

// The output, with words underlined that the model is unsure of.
function written({ output, text, corrected }) {
  if (corrected || !output?.words?.length) return [text];
  return output.words.flatMap((word, i) => [i ? " " : "", make("span", { class: word.confidence < 0.5 ? "unsure" : "",
    title: percent(word.confidence) }, word.text)]);
}
