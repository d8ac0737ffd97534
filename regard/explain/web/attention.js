/* What was attended to: choose a layer, a head, pieces or words, and how it is drawn. */
import { choices, lines, make } from "./dom.js";
import { headsView, mini } from "./heads.js";
import { heatView } from "./heat.js";
import { linksView } from "./links.js";
import { combine, merge, rollout } from "./numbers.js";
import { belong, candidateTexts, cellSides, isModule, kinds, named, partners, places, probability, sides, withGold }
  from "./places.js";
import { saveMenu } from "./saving.js";
import { seenView } from "./seen.js";
import { hideTip, showTip } from "./tip.js";

const VIEWS = { lines: "Lines", map: "Heat map", heads: "Every head" };
const AVERAGED = " Some weights are the mean of their heads: all would not fit into a page.";
const UNITS = ["pieces", "words"];
const ALL = "all"; // sources at once
const DEEP = 1000; // source pieces up to which a browser multiplies rollout in no time
const POINT = " Point at a token, tap it, or walk there with the arrow keys.";
const EDIT = " Choose one that attends to edit its weights; choose a head to switch it off.";

/* `on` hears of it, where there is a model to ask: pointed(index of a target place, or null), choose(view, index) a
   query, changed() another choice; off(layer, head) says which heads are switched off, editable() whether attention can
   be edited. `name` is what a screen reader calls it. */
export function attentionPanel(on = {}, name = "Attention") {
  const state = { source: null, layer: null, head: "mean", unit: null, view: "lines" };
  let whole = null, x = null, view = null, scope = ""; // x is all of it, or what is seen of one of several sources

  const layer = make("select"), tools = make("div", { class: "tools" });
  const sources = choices("Source", (source) => change({ source, layer: null }));
  const units = choices("Tokens", (unit) => change({ unit })), heads = choices("Heads", (head) => change({ head }));
  const kind = choices("Drawn as", (chosen) => change({ view: chosen }));
  heads.element.classList.add("heads");
  for (const each of [sources, kind, units]) each.element.classList.add("switch");
  layer.onchange = () => change({ layer: layer.value });
  const how = make("p", { class: "quiet how" }), scale = make("span", { class: "scale" }, " 0 ", make("i"), " 1");
  const hears = { enter, leave, choose: (side, index) => { if (side === "query") on.choose?.(view, index); } };
  const views = {
    lines: linksView(hears),
    map: heatView({ cell: (q) => on.pointed?.(view.layer.kind === "cross" ? q : null), leave: () => on.pointed?.(null),
      choose: hears.choose }),
    heads: headsView({ pick: (name, head) => change({ layer: name, head, view: "lines" }), off: on.off }),
    seen: seenView({ enter, layer: (name) => change({ layer: name }) }),
  };
  const none = make("p", { class: "none" }, "This model has no attention, so there is none to show.");
  const body = make("div", {}, how, ...Object.values(views).map((each) => each.element));
  const save = saveMenu("attention", { picture: () => drawn(), json: () => x });
  tools.append(sources.element, make("label", {}, make("span", { class: "quiet" }, "Layer"), layer), kind.element,
    units.element, heads.element);
  const element = make("section", { class: "attention", "aria-label": name },
    make("header", {}, make("h2", {}, "What is attended to"), save), none, tools, body);

  const active = () => views[x.canvas && view.layer.kind !== "decoder" ? "seen" : state.view];
  const drawn = () => (active().picture ? active().picture() : active().element);

  function change(changes) {
    Object.assign(state, changes);
    draw();
    on.changed?.();
  }

  function show(given) {
    whole = given;
    draw();
  }

  // Of several sources that which can be drawn on is shown first.
  function drawSources() {
    const drawn = whole.by_source ?? [], names = [...drawn.map((each) => each.name), ALL];
    const chosen = names.includes(state.source) ? state.source : names[0];
    x = drawn.find((each) => each.name === chosen) ?? whole;
    sources.element.hidden = !drawn.length;
    sources.show(names, chosen);
  }

  function draw() {
    if (!whole) return;
    hideTip();
    drawSources();
    if (!UNITS.includes(state.unit)) state.unit = x.canvas?.kind === "sound" ? "words" : "pieces"; // words have times
    if (!Object.hasOwn(VIEWS, state.view)) state.view = "lines"; // a link may say anything
    const chosen = chosenLayer();
    for (const each of [tools, body, save]) each.hidden = !chosen;
    none.hidden = Boolean(chosen);
    if (!chosen) { views.seen.pause(); view = null; return; }
    const over = x.canvas && chosen.kind !== "decoder";
    const [query, key] = over ? cellSides(x, chosen, state.unit) : sides(x, chosen, state.unit);
    const all = chosen.weights.map((head) => merge(head, query, key));
    if (!Array.isArray(all[state.head]) && state.head !== "max") state.head = "mean";
    view = { x, kind: kinds(x)[chosen.kind], layer: chosen, head: state.head, unit: state.unit, query, key,
      weights: combine(all, state.head), canvas: x.canvas, image: x.image, heads: [],
      layers: chosen.kind === "encoder" && over ? encoderLayers() : [], gold: Boolean(x.gold),
      spoken: withGold(x, places(x.target, x.target_word, null, "words")).filter((word) => word.gold.length),
      linked: (from, to) => chosen.kind === "cross" && belong(x, from, to),
      floored: chosen.name === "rollout" };
    drawTools(chosen, all, over);
    const name = over ? "seen" : state.view;
    for (const [each, { element: part }] of Object.entries(views)) part.hidden = each !== name;
    if (!over) views.seen.pause();
    const same = [chosen.kind, state.source, state.unit, x.target.join()].join();
    views[name].draw(view, same === scope);
    scope = same;
    const more = (name === "lines" ? POINT + (on.editable?.() && isModule(chosen.name) ? EDIT : "") : "") + (x.averaged ? AVERAGED : "") +
      (x.left_out ? ` Nor would ${x.left_out} layers, which are left out.` : "");
    how.replaceChildren(views[name].how() + more, ...(name === "map" ? [scale] : []));
  }

  // The layer that was asked for, rollout as if it were one, or what to show first.
  function chosenLayer() {
    const found = (name) => x.layers.find((l) => l.name === name) ?? (name === "rollout" ? rolled() : undefined);
    return found(state.layer) ?? found(x.best) ?? ((x.canvas && rolled()) || x.layers[0]);
  }

  const rolls = () => x.layers.some((l) => l.kind === "encoder") && x.source.length <= DEEP && !x.left_out;

  function rolled() {
    if (x.rollout === undefined) x.rollout = rolls() ? rollout(x) : null;
    return x.rollout ?? undefined;
  }

  const encoderLayers = () => [...x.layers.filter((l) => l.kind === "encoder"), rolled()].filter(Boolean);

  function drawTools(chosen, all, over) {
    const groups = Object.entries(kinds(x)).map(([kind, { group }]) => make("optgroup", { label: group },
      ...x.layers.filter((l) => l.kind === kind).map((l) => make("option", { value: l.name },
        l.name + (l.name === x.best && x.layers.length > 1 && isModule(l.name) ? " (aligns best)" : "")))));
    if (rolls() && !x.layers.some((l) => l.name === "rollout")) {
      groups.push(make("optgroup", { label: "Through all layers of the encoder" },
        make("option", { value: "rollout" }, "rollout (Abnar and Zuidema 2020)")));
    }
    layer.replaceChildren(...groups.filter((group) => group.children.length));
    layer.value = chosen.name;
    const split = (words) => words.some((word, i) => i > 0 && word >= 0 && word === words[i - 1]);
    units.element.hidden = !split(x.source_word) && !split(x.target_word);
    units.show(UNITS, state.unit);
    kind.element.hidden = Boolean(over);
    const several = x.layers.length > 1 || all.length > 1;
    if (!several && state.view === "heads") state.view = "lines";
    kind.show(Object.keys(VIEWS).filter((name) => several || name !== "heads"), state.view, (name) => [VIEWS[name]]);
    heads.element.hidden = all.length < 2 || (state.view === "heads" && !over);
    if (heads.element.hidden) return;
    heads.show(["mean", "max", ...all.keys()], state.head, (choice) => {
      const weights = combine(all, choice), off = on.off?.(chosen.name, choice);
      const small = over ? views.seen.thumbnail(view, weights) : mini(weights);
      if (off) small.classList.add("off");
      return [small, off ? `${choice} off` : String(choice)];
    });
  }

  /* ---- pointing ---- */

  function enter(side, index, token) {
    if (!view || !view[side]?.[index]) return;
    active().highlight(side, index);
    on.pointed?.(side === "query" && view.layer.kind === "cross" ? index : null);
    if (!token) return;
    const place = view[side][index];
    const details = lines(probability(place), ...candidateTexts(place.candidates), partners(view, side, index));
    token.ariaLabel = `${named(place)}: ${details.replaceAll("\n", ", ")}`;
    showTip(token, named(place), details, { aside: views.lines.aside(side) });
  }

  function leave() {
    hideTip();
    on.pointed?.(null);
    if (view) active().clear();
  }

  return {
    element, show, draw, leave, state,
    // A token of the target is pointed at elsewhere.
    point(index) {
      if (!view || !(view.layer.kind === "cross" || active() === views.seen)) return;
      active().highlight(active() === views.seen ? "target" : "query", index);
    },
    reset() {
      leave();
      if (view) active().reset?.();
    },
    // What was chosen, for a link, and back again.
    get chosen() { return { ...state, head: state.head === "mean" ? null : state.head }; },
    restore(saved) {
      for (const name of Object.keys(state)) state[name] = saved[name] ?? state[name];
      if (!["mean", "max"].includes(state.head)) state.head = Number(state.head);
    },
    get unit() { return state.unit; },
    get layer() { return view?.layer.name; },
  };
}
