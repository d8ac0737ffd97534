/* One model and one input: the output as it is written, its alternatives, its beam, what it attends to, and what would
   be otherwise. */
import { alternativesPanel } from "./alternatives.js";
import { ask, events, latest } from "./api.js";
import { attentionPanel } from "./attention.js";
import { composer } from "./compose.js";
import { counterfactualPanel } from "./counterfactual.js";
import { announce, button, make, number } from "./dom.js";
import { editor } from "./edits.js";
import { outputPanel } from "./output.js";
import { prepare } from "./prepare.js";
import { treeView } from "./tree.js";
import { marked } from "./words.js";

const ALTERNATIVES = 8;

export function exploreView(models, onchange) {
  const select = make("select", {}, ...models.map((model) => make("option", { value: model.name }, model.name)));
  const method = make("select"), methods = make("label", { hidden: "" }, make("span", { class: "quiet" }, "Explained by"), method);
  const input = composer(() => run()), beam = make("input", { type: "number", min: 1, max: 32, "aria-label": "Beam" });
  const told = make("p", { class: "told", role: "status" }), facts = make("p", { class: "quiet" });
  const live = make("p", { class: "live", dir: "auto", "aria-live": "polite", "aria-label": "Output" });
  const before = make("p", { class: "quiet", dir: "auto" }), chips = make("div", { class: "row chips" });
  const only = latest(), edits = editor(() => look()), tree = treeView(), what = counterfactualPanel((text) => { input.set(text); run(); });
  const attention = attentionPanel({
    pointed: (index) => output.mark(index), off: edits.off, changed: () => { showOutput(); changed(); },
    choose(view, index) { if (view.layer.name !== "rollout") edits.edit(view, index); },
  });
  const output = outputPanel({
    pointed: (index) => (index === null ? attention.leave() : attention.point(index)),
    choose(index, token) { if (found?.outputs) choices.show(found.outputs[0].tokens, output.place(index).members, token); },
  });
  const choices = alternativesPanel((ids) => { forced = ids; look().then(() => output.walk(Math.max(0, ids.length - 1))); });
  const headButton = button("", () => edits.toggle(attention.state.layer ?? shown.best, attention.state.head));
  const result = make("section", { "aria-label": "Output", hidden: "" }, make("header", {}, make("h2", {}, "Output"), chips), live,
    output.element, before, choices.element);
  const run_ = button("Run", () => run(), { class: "primary" });
  const element = make("div", { class: "view" }, make("section", { "aria-label": "Input" }, input.element, make("div", { class: "row" },
    make("label", { class: "inline" }, make("span", { class: "quiet" }, "Model"), select),
    make("label", { class: "inline" }, make("span", { class: "quiet" }, "Beam"), beam), methods, run_, told), facts),
  result, attention.element, tree.element, what.element);
  attention.element.append(make("div", { class: "row edit-tools" }, headButton), edits.element);
  attention.element.hidden = tree.element.hidden = true;
  let forced = [], given = null, found = null, shown = null, original = null;

  const model = () => models.find((each) => each.name === select.value);
  select.onchange = () => { reset(); setModel(); changed(); };
  beam.onchange = () => run();
  method.onchange = () => look();

  function setModel() {
    const info = model();
    input.show(info.sources);
    beam.value = info.search?.beam ?? "";
    beam.closest("label").hidden = !info.writes;
    const pairs = (info.languages ?? []).filter(({ source }) => source !== "source").map(({ source, target }) => `${source} to ${target}`).slice(0, 4).join(", ");
    facts.textContent = [pairs, info.parameters ? `${info.parameters.toLocaleString("en")} parameters` : "", info.ready ? "" : "not ready yet"]
      .filter(Boolean).join(" · ");
    method.replaceChildren(...["attention", ...(info.methods ?? []).filter((name) => name !== "attention")].map((name) => make("option", { value: name }, name)));
    methods.hidden = !info.methods?.length;
  }

  function reset() {
    [forced, given, found, original] = [[], null, null, null];
    edits.set(null);
    choices.element.hidden = true;
    result.hidden = attention.element.hidden = tree.element.hidden = what.element.hidden = true;
  }

  const search = () => (beam.value && Number(beam.value) !== model().search?.beam ? { search: { beam: Number(beam.value) } } : {});

  // The output as it is written, and then all about it.
  async function run(keep = false) {
    const next = input.get();
    if (next === null) return input.focus();
    if (!keep) reset();
    given = next;
    changed();
    const signal = only.begin();
    result.hidden = live.hidden = false;
    output.element.hidden = true;
    before.textContent = live.textContent = told.textContent = "";
    result.ariaBusy = true;
    try {
      if (model().writes && !keep) {
        for await (const event of events("generate", { model: select.value, input: Array.isArray(given) ? [given] : given, ...search() }, signal)) {
          if (event.text !== undefined) live.textContent = event.text;
          else if (event.delta) live.textContent += event.delta;
          else if (event.outputs) live.textContent = event.outputs[0]?.[0]?.text ?? "";
        }
      }
      await look(signal);
    } catch (error) {
      fail(error);
    }
    result.ariaBusy = false;
  }

  function fail(error) {
    if (error.name === "AbortError") return;
    told.textContent = error.message;
    told.classList.add("error");
  }

  // Alternatives, tree and attention, with what is forced and edited.
  async function look(signal = only.begin()) {
    changed();
    told.textContent = "Looking inside …";
    told.classList.remove("error");
    try {
      const asked = { model: select.value, input: given, ...search() };
      found = model().writes ? await inspected(asked, signal) : null;
      shown = found ? found.explanation : await ask("explain", asked, signal);
      found ??= { outputs: null, tree: null };
      if (!methods.hidden && method.value !== "attention") {
        shown = await ask("explain", { ...asked, method: method.value, target: found.outputs?.[0].text }, signal);
      }
      await prepare(shown);
    } catch (error) {
      return fail(error);
    }
    told.textContent = "";
    const best = found.outputs?.[0];
    if (best && !forced.length && !edits.get()) original = { text: best.text, log_prob: best.log_prob };
    live.hidden = true;
    output.element.hidden = result.hidden = attention.element.hidden = false;
    attention.show(shown);
    showOutput();
    tree.show(found.tree);
    if (!forced.length && !edits.get() && best) what.show(select.value, given, original);
    announce(best ? best.text : shown.target.join(" "));
  }

  // Null where a model cannot be looked into so, as one that another engine computes.
  async function inspected(asked, signal) {
    try {
      return await ask("inspect", { ...asked, forced, alternatives: ALTERNATIVES, tree: true,
        ...(edits.get() && { edits: edits.get() }) }, signal);
    } catch (error) {
      if (forced.length || edits.get() || !error.status) throw error;
      return null;
    }
  }

  function showOutput() {
    if (!shown) return;
    output.show(shown, attention.unit, { hint: found.outputs ? " Choose a token to see what else might have stood there." : "", sourceShown: false, forced: forced.length });
    const best = found.outputs?.[0], edited = edits.list();
    before.replaceChildren();
    if (original && best && best.text !== original.text) {
      before.append("Without that: ", marked(original.text, best.text), ` (log p ${number(original.log_prob)})`);
    }
    const chip = (text, drop, name) => make("span", { class: `chip ${name}` }, text, button("×", drop, { "aria-label": `take back: ${text}` }));
    chips.replaceChildren(
      ...(edited.length ? [make("strong", { class: "chip edited" }, "edited")] : []),
      ...(forced.length ? [chip(`begins as you chose (${forced.length} tokens)`, () => { forced = []; look(); }, "forced-chip")] : []),
      ...edited.map(({ text, drop }) => chip(text, drop, "")),
      ...(edited.length || forced.length ? [button("Reset", () => { forced = []; edits.set(null); look(); })] : []));
    const { head, layer } = attention.state, name = layer ?? shown.best;
    headButton.parentElement.hidden = !model().writes || typeof head !== "number" || name === "rollout" || !shown.layers.length;
    headButton.textContent = edits.off(name, head) ? `Switch head ${head} on again` : `Switch head ${head} off`;
  }

  function changed() { onchange(); }

  setModel();
  return {
    element,
    draw() { attention.draw(); tree.draw(); },
    reset() { attention.reset(); },
    // Begin anew with a text.
    open(name, text) {
      if (models.some((each) => each.name === name)) select.value = name;
      reset();
      setModel();
      input.set(text);
      return run();
    },
    get state() {
      const { layer, head, unit, view } = attention.state;
      return { model: select.value, text: input.text, forced: forced.length ? forced : null, edits: edits.get(),
        layer, head: head === "mean" ? null : head, unit, view, beam: search().search?.beam ?? null };
    },
    restore({ model: name, text, forced: ids, edits: changes, layer, head, unit, view, beam: width }) {
      if (models.some((each) => each.name === name)) select.value = name;
      setModel();
      attention.restore({ ...(layer && { layer }), ...(head !== undefined && { head }), ...(unit && { unit }), ...(view && { view }) });
      if (width) beam.value = width;
      if (!text) return;
      input.set(text);
      edits.set(changes);
      forced = Array.isArray(ids) ? ids : [];
      const changedBefore = forced.length || changes;
      if (!changedBefore) run();
      else restoreChanged();
    },
  };

  // First as it is, to compare with, and then as it was changed.
  async function restoreChanged() {
    const [ids, changes] = [forced, edits.get()];
    [forced] = [[]];
    edits.set(null);
    await run();
    forced = ids;
    edits.set(changes);
    await look();
  }
}
