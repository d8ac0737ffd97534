/* Two models on one input, side by side. */
import { ask, latest } from "./api.js";
import { attentionPanel } from "./attention.js";
import { composer } from "./compose.js";
import { button, counted, field, make } from "./dom.js";
import { common } from "./numbers.js";
import { outputPanel } from "./output.js";
import { prepare } from "./prepare.js";

export function compareView(models, onchange) {
  const only = latest(), input = composer(() => run()), told = make("p", { class: "quiet", role: "status" });
  const columns = [0, 1].map((i) => column(`Model ${i + 1}`, models, i, () => { onchange(); run(); }));
  const element = make("div", { class: "view" }, make("section", { "aria-label": "Input" }, input.element,
    make("div", { class: "row" }, button("Compare", () => run(), { class: "primary" }), told)),
  make("div", { class: "pair" }, ...columns.map((each) => each.element)));
  const chosen = () => columns.map((each) => models.find((model) => model.name === each.name));
  input.show(chosen()[0].sources);

  async function run() {
    const pair = chosen();
    input.show(pair[0].sources);
    const given = input.get(), signal = only.begin();
    told.textContent = "";
    columns.forEach((each) => each.hide());
    if (String(pair[0].sources) !== String(pair[1].sources)) {
      told.textContent = "These models read different kinds of input.";
      return;
    }
    if (given === null) return;
    onchange();
    told.textContent = "Asking both models …";
    try {
      const found = await Promise.all(pair.map(({ name }) => ask("explain", { model: name, input: given }, signal)));
      await Promise.all(found.map(prepare));
      const kept = common(...found.map((x) => x.target));
      columns.forEach((each, i) => each.show(found[i], kept[i]));
      const count = kept.flat().filter((same) => !same).length;
      told.textContent = count ? `Dotted: ${counted(count, "token")} that the other output lacks.`
        : found[0].drawn === found[1].drawn ? "Both write the same." : "The pictures differ.";
    } catch (error) {
      if (error.name !== "AbortError") told.textContent = error.message;
    }
  }

  return {
    element,
    run,
    draw: () => columns.forEach((each) => each.attention.draw()),
    reset: () => columns.forEach((each) => each.attention.reset()),
    get state() { return { text: input.text, models: columns.map((each) => each.name) }; },
    restore(saved) {
      if (Array.isArray(saved.models)) columns.forEach((each, i) => each.choose(saved.models[i]));
      input.show(chosen()[0].sources);
      if (!saved.text) return;
      input.set(saved.text);
      run();
    },
  };
}

function column(label, models, i, onchange) {
  let x = null, kept = []; // an explanation, and of each of its tokens whether the other model has it too
  const select = make("select", {}, ...models.map((model) => make("option", { value: model.name }, model.name)));
  select.value = models[Math.min(i, models.length - 1)].name;
  select.onchange = onchange;
  const attention = attentionPanel({ pointed: (index) => output.mark(index), changed: () => show(x, kept) },
    `Attention of ${label.toLowerCase()}`);
  const output = outputPanel({ pointed: (index) => (index === null ? attention.leave() : attention.point(index)) });
  const card = make("section", { "aria-label": label }, field(label, select), output.element);
  const hide = () => { output.element.hidden = attention.element.hidden = true; };
  hide();

  function show(given, same) {
    [x, kept] = [given, same];
    output.element.hidden = attention.element.hidden = false;
    attention.show(x);
    output.show(x, attention.unit, { sourceShown: false, differs: (i) => !same[i] });
  }

  return {
    element: make("div", { class: "view" }, card, attention.element),
    attention,
    hide,
    show,
    get name() { return select.value; },
    choose(name) { if (models.some((model) => model.name === name)) select.value = name; },
  };
}
