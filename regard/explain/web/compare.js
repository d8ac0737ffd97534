/* Two models on one input, side by side. */
import { ask, latest } from "./api.js";
import { attentionPanel } from "./attention.js";
import { composer } from "./compose.js";
import { button, make } from "./dom.js";
import { common } from "./numbers.js";
import { outputPanel } from "./output.js";
import { prepare } from "./prepare.js";

export function compareView(models, onchange) {
  const input = composer(() => run()), told = make("p", { class: "quiet", role: "status" }), only = latest();
  const columns = [0, 1].map((i) => column(`Model ${i + 1}`, models, i, () => { onchange(); run(); }));
  const both = make("div", { class: "pair" }, ...columns.map((each) => each.element));
  const element = make("div", { class: "view" }, make("section", { "aria-label": "Input" }, input.element,
    make("div", { class: "row" }, button("Compare", () => run(), { class: "primary" }), told)), both);
  input.show(["text"]);

  async function run() {
    const chosen = columns.map((each) => models.find((model) => model.name === each.name));
    input.show(chosen[0].sources);
    const given = input.get();
    if (given === null) return;
    onchange();
    if (String(chosen[0].sources) !== String(chosen[1].sources)) {
      told.textContent = "These models read different kinds of input.";
      return;
    }
    const signal = only.begin();
    told.textContent = "Asking both models …";
    try {
      const found = await Promise.all(chosen.map(({ name }) => ask("explain", { model: name, input: given }, signal)));
      await Promise.all(found.map(prepare));
      const [one, other] = found.map((x) => x.target), kept = common(one, other);
      columns.forEach((each, i) => each.show(found[i], kept[i]));
      const count = kept.flat().filter((same) => !same).length;
      told.textContent = count ? `${count} tokens differ; they are underlined with dots.` : "Both write the same.";
    } catch (error) {
      if (error.name !== "AbortError") told.textContent = error.message;
    }
  }

  return {
    element,
    run,
    draw: () => columns.forEach((each) => each.draw()),
    reset: () => columns.forEach((each) => each.reset()),
    get state() { return { text: input.text, models: columns.map((each) => each.name) }; },
    restore({ text, models: names }) {
      names?.forEach((name, i) => columns[i].choose(name));
      input.show(models.find((model) => model.name === columns[0].name).sources);
      if (text) input.set(text);
    },
  };
}

function column(label, models, i, onchange) {
  const select = make("select", {}, ...models.map((model) => make("option", { value: model.name }, model.name)));
  select.value = models[Math.min(i, models.length - 1)].name;
  select.onchange = onchange;
  const attention = attentionPanel({ pointed: (index) => output.mark(index), changed: () => { if (x) show(x, kept); } });
  const output = outputPanel({ pointed: (index) => (index === null ? attention.leave() : attention.point(index)) });
  const result = make("div", { hidden: "" }, output.element);
  const card = make("section", { "aria-label": label }, make("label", {}, make("span", { class: "quiet" }, label), select), result);
  let x = null, kept = [];
  attention.element.hidden = true;

  function show(given, same) {
    [x, kept] = [given, same];
    result.hidden = attention.element.hidden = false;
    attention.show(x);
    output.show(x, "pieces", { sourceShown: false, differs: (i) => !same[i] });
  }

  return { element: make("div", { class: "view" }, card, attention.element), show, draw: () => attention.draw(), reset: () => attention.reset(),
    get name() { return select.value; }, choose(name) { if (models.some((model) => model.name === name)) select.value = name; } };
}
