/* One model and one input: the output as it is written, its alternatives, its beam, what it attends to, and what would
   be otherwise. */
import { alternativesPanel } from "./alternatives.js";
import { ask, events, latest } from "./api.js";
import { attentionPanel } from "./attention.js";
import { composer } from "./compose.js";
import { counterfactualPanel } from "./counterfactual.js";
import { announce, button, counted, field, make, number, picture, section } from "./dom.js";
import { editor } from "./edits.js";
import { common } from "./numbers.js";
import { outputPanel } from "./output.js";
import { isModule } from "./places.js";
import { prepare } from "./prepare.js";
import { treeView } from "./tree.js";
import { marked } from "./words.js";

const ALTERNATIVES = 8, WIDEST = 32; // asked for; of a beam, where the server does not say
const HINT = " Choose a token to see what else might have stood there.";

export function exploreView(models, onchange) {
  let forced = []; // ids of tokens that the output begins with
  let given = null, found = null, shown = null; // the input, the inspection of it and its explanation
  let original = null; // the output as the model has it

  const only = latest(), input = composer(() => run());
  const select = make("select", {}, ...models.map((model) => make("option", { value: model.name }, model.name)));
  const beam = make("input", { type: "number", min: 1 });
  const method = make("select"), methods = field("Explained by", method);
  const told = make("p", { class: "told", role: "status" }), facts = make("p", { class: "quiet" });
  const live = make("p", { class: "live", dir: "auto" }); // a screen reader is told when all is written
  const before = make("p", { class: "quiet", dir: "auto" }), chips = make("div", { class: "row chips" });

  const edits = editor(() => look()), tree = treeView((ids) => force(ids.slice(prompt())));
  const what = counterfactualPanel((text) => { input.set(text); run(); });
  const attention = attentionPanel({
    pointed: (index) => output.mark(index),
    off: edits.off,
    editable: () => Boolean(found?.outputs),
    changed() { showOutput(); onchange(); },
    choose(view, index) { if (this.editable() && isModule(view.layer.name)) edits.edit(view, index); },
  });
  const output = outputPanel({
    pointed: (index) => (index === null ? attention.leave() : attention.point(index)),
    choose(index, token) {
      if (found?.outputs) others.show(found.outputs[0].tokens, output.place(index).members, token);
    },
  });
  const others = alternativesPanel(async (ids) => {
    await force(ids);
    output.walk(ids.length - 1);
  });
  const headButton = button("", () => edits.toggle(attention.layer, attention.state.head));

  const result = section("Output", "Output", chips, live, output.element, before, others.element);
  const element = make("div", { class: "view" }, make("section", { "aria-label": "Input" }, input.element,
    make("div", { class: "row" }, field("Model", select), field("Beam", beam), methods,
      button("Run", () => run(), { class: "primary" }), told), facts),
  result, attention.element, tree.element, what.element);
  attention.element.append(make("div", { class: "row edit-tools" }, headButton), edits.element);

  const model = () => models.find((each) => each.name === select.value);
  // How many tokens of a tree a language model was given, after the mark that a text begins with.
  const prompt = () => (model().sources.length ? 0 : found.explanation.given - 1);
  select.onchange = () => { clear(); setModel(); onchange(); };
  beam.onchange = () => { if (given !== null) run(); };
  method.onchange = () => { attention.state.layer = null; if (given !== null) look(); }; // what it found is shown first

  function setModel() {
    const info = model(), known = (info.languages ?? []).filter(({ source }) => source !== "source");
    input.show(info.sources);
    beam.value = info.search?.beam ?? "";
    beam.max = info.limits?.beam ?? WIDEST;
    beam.closest("label").hidden = !info.writes;
    facts.textContent = [known.slice(0, 4).map(({ source, target }) => `${source} to ${target}`).join(", "),
      info.parameters && `${info.parameters.toLocaleString("en")} parameters`, !info.ready && "not ready yet"]
      .filter(Boolean).join(" · ");
    const names = ["attention", ...(info.methods ?? []).filter((name) => name !== "attention")];
    method.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
    methods.hidden = names.length < 2;
  }

  // Nothing is asked, shown, forced or edited.
  function clear() {
    only.stop();
    [forced, given, found, shown, original] = [[], null, null, null, null];
    edits.set(null);
    told.textContent = "";
    for (const each of [others, attention, tree, what]) each.element.hidden = true;
    result.hidden = true;
  }

  const search = () => {
    const width = Number(beam.value);
    return width && width !== model().search?.beam ? { search: { beam: width } } : {};
  };

  function fail(error) {
    if (error.name === "AbortError") return;
    told.textContent = error.message;
    told.classList.add("error");
    result.hidden = !found && !live.textContent;
  }

  // The output as it is written, and then all about it; whether nothing else was asked for meanwhile.
  async function run() {
    const next = input.get();
    if (next === null) {
      input.focus();
      return false;
    }
    clear();
    given = next;
    onchange();
    const signal = only.begin();
    result.hidden = live.hidden = false;
    output.element.hidden = result.ariaBusy = true;
    before.textContent = live.textContent = "";
    chips.replaceChildren();
    try {
      if (model().writes && model().target !== "image") await follow(signal);
      await look(signal);
    } catch (error) {
      fail(error);
    }
    if (!signal.aborted) result.ariaBusy = false;
    return !signal.aborted;
  }

  async function follow(signal) {
    const asked = { model: select.value, input: Array.isArray(given) ? [given] : given, ...search() };
    for await (const event of events("generate", asked, signal)) {
      if (event.text !== undefined) live.textContent = event.text;
      else if (event.outputs) live.textContent = event.outputs[0]?.[0]?.text ?? "";
    }
  }

  // Alternatives, tree and attention, with what is forced and edited.
  async function look(signal = only.begin()) {
    onchange();
    told.textContent = "Looking inside …";
    told.classList.remove("error");
    try {
      const asked = { model: select.value, input: given, ...search(), ...(edits.get() && { edits: edits.get() }) };
      found = model().writes ? await inspected(asked, signal) : null;
      shown = found ? found.explanation : await ask("explain", asked, signal);
      found ??= { outputs: null, tree: null };
      if (method.value !== "attention") {
        shown = await ask("explain", { ...asked, method: method.value, target: found.outputs?.[0].text }, signal);
      }
      await prepare(shown);
    } catch (error) {
      showChips(); // what was refused can be taken back
      return fail(error);
    }
    told.textContent = "";
    others.element.hidden = true; // those of another output
    const best = found.outputs?.[0], asItIs = !forced.length && !edits.get();
    if (best) best.drawn = shown.drawn;
    if (best && asItIs) original = best;
    live.hidden = true;
    output.element.hidden = result.hidden = attention.element.hidden = false;
    attention.show(shown);
    showOutput();
    tree.show(found.tree);
    if (best && asItIs && model().sources.length) { // a prompt has no score
      what.show({ model: select.value, ...search() }, given, original);
    }
    announce(shown.drawn ? "The picture is there." : best ? best.text : shown.target.join(" "));
  }

  function force(ids) {
    forced = ids;
    others.element.hidden = true;
    return look();
  }

  // Null where a model cannot be looked into so, as one that another engine computes.
  async function inspected(asked, signal) {
    try {
      return await ask("inspect", { ...asked, forced, alternatives: ALTERNATIVES, tree: true }, signal);
    } catch (error) {
      if (forced.length || edits.get() || !error.status) throw error;
      return null;
    }
  }

  function showOutput() {
    if (!shown) return;
    const best = found.outputs?.[0], changed = original && best && best !== original;
    const ids = (one) => one.tokens.map((token) => token.id);
    const [kept] = changed ? common(ids(best), ids(original)) : [];
    output.show(shown, attention.unit, { hint: best ? HINT : "", sourceShown: false, forced: forced.length,
      differs: (i) => kept?.[i] === false });
    before.replaceChildren();
    if (changed && best.text !== original.text) {
      before.append("Without that: ", original.drawn ? picture(original.drawn) : marked(original.text, best.text),
        ` (log p ${number(original.log_prob)})`);
    }
    showChips();
    const { head } = attention.state, name = attention.layer;
    headButton.parentElement.hidden = !best || typeof head !== "number" || !isModule(name);
    headButton.textContent = edits.off(name, head) ? `Switch head ${head} on again` : `Switch head ${head} off`;
  }

  // What was changed, each with a way to take it back.
  function showChips() {
    const changes = edits.list().map(({ text, drop }) => chip(text, drop));
    if (changes.length) changes.unshift(make("strong", { class: "chip edited" }, "edited"));
    if (forced.length) {
      changes.push(chip(`begins as you chose (${counted(forced.length, "token")})`, () => { forced = []; look(); }));
    }
    if (changes.length) changes.push(button("Reset", () => { forced = []; edits.set(null); look(); }));
    chips.replaceChildren(...changes);
  }

  clear();
  setModel();
  return {
    element,
    draw() { attention.draw(); tree.draw(); },
    reset() { attention.reset(); },
    // Begin anew with a text.
    open(name, text) {
      if (models.some((each) => each.name === name)) select.value = name;
      setModel();
      input.set(text);
      return run();
    },
    get state() {
      return { model: select.value, text: input.text, forced: forced.length ? forced : null, edits: edits.get(),
        ...attention.chosen, beam: search().search?.beam };
    },
    // First as it is, to compare with, and then as it was changed.
    async restore(saved) {
      if (models.some((each) => each.name === saved.model)) select.value = saved.model;
      setModel();
      attention.restore(saved);
      if (saved.beam > 0) beam.value = saved.beam;
      if (!saved.text) return;
      input.set(saved.text);
      if (!(await run()) || (!Array.isArray(saved.forced) && !saved.edits)) return;
      forced = Array.isArray(saved.forced) ? saved.forced : [];
      edits.set(saved.edits);
      await look();
    },
  };
}

const chip = (text, drop) => make("span", { class: "chip" }, text,
  button("×", drop, { "aria-label": `Take back: ${text}` }));
