/* What is changed inside a model: heads that are switched off, rows of weights that are set by hand. */
import { button, make, percent, readable } from "./dom.js";

const MOST = 120; // bars that are drawn; of more keys, those with most weight

/* `onchange` is called when something was changed; `get` gives the edits as the API takes them. */
export function editor(onchange) {
  let off = [], rows = [];
  const key = (layer, head) => JSON.stringify([layer, head]);
  const bars = make("div", { class: "bars" }), title = make("h3"), element = make("div", { class: "row-editor", role: "group",
    "aria-label": "Edit a row of weights" }, title, make("p", { class: "quiet" },
    "Drag a bar, or use the arrow keys on it. The row is normalised, and the rest is written anew when you let go."), bars,
    make("div", { class: "row" }, button("As the model has it", () => { drop(); close(); onchange(); }), button("Close", close)));
  element.hidden = true;
  let open = null; // { layer, head, positions, weights }

  const same = (row) => open && row.layer === open.layer && row.head === open.head && open.positions.includes(row.position);
  function drop() { rows = rows.filter((row) => !same(row)); }
  function close() { element.hidden = true; open = null; }

  // Bars for what one query attends to.
  function edit(view, index) {
    const place = view.query[index], x = view.x, head = typeof view.head === "number" ? view.head : null;
    const raw = view.layer.weights, count = raw[0][place.members[0]].length;
    const weights = Array.from({ length: count }, (_, k) => (head === null
      ? raw.reduce((total, each) => total + each[place.members[0]][k], 0) / raw.length : raw[head][place.members[0]][k]));
    open = { layer: view.layer.name, head, positions: place.members, weights };
    const pieces = view.layer.kind === "decoder" ? x.inputs : x.source;
    title.textContent = `What “${readable(place.text)}” attends to, in ` +
      (head === null ? "all heads" : `head ${head}`) + ` of ${view.layer.name}`;
    const shown = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, MOST).sort((a, b) => a - b);
    bars.replaceChildren(...shown.map((k) => bar(k, pieces[k] ?? String(k))));
    element.hidden = false;
    bars.querySelector("input")?.focus({ preventScroll: true });
    element.scrollIntoView({ block: "nearest" });
  }

  function bar(k, piece) {
    const input = make("input", { type: "range", min: 0, max: 1, step: 0.01, "aria-label": readable(piece), orient: "vertical" });
    const share = make("span", { class: "quiet" });
    const tell = () => {
      share.textContent = percent(open.weights[k]);
      input.setAttribute("aria-valuetext", percent(open.weights[k]));
    };
    input.value = open.weights[k];
    tell();
    input.oninput = () => { open.weights[k] = Number(input.value); tell(); };
    input.onchange = () => { // the others keep their proportions
      const wanted = Number(input.value), rest = open.weights.reduce((a, b) => a + b, 0) - wanted;
      const weights = open.weights.map((weight, i) => (i === k ? wanted : rest > 0 ? weight * (1 - wanted) / rest : 0));
      if (!weights.some((weight) => weight > 0)) return;
      drop();
      for (const position of open.positions) rows.push({ layer: open.layer, head: open.head, position, weights });
      onchange();
    };
    return make("label", {}, share, input, make("bdi", {}, readable(piece)));
  }

  return {
    element, edit, close,
    off: (layer, head) => off.some((each) => key(...each) === key(layer, head)),
    toggle(layer, head) {
      const without = off.filter((each) => key(...each) !== key(layer, head));
      off = without.length < off.length ? without : [...off, [layer, head]];
      onchange();
    },
    // What a reader is told of, each with a way to take it back.
    list: () => [
      ...off.map(([layer, head]) => ({ text: `head ${head} of ${layer} off`, drop: () => { off = off.filter((each) =>
        key(...each) !== key(layer, head)); onchange(); } })),
      ...rows.map((row) => ({ text: `row ${row.position + 1} of ${row.layer} edited`, drop: () => {
        rows = rows.filter((each) => each !== row); onchange(); } })),
    ],
    get: () => (off.length || rows.length ? { heads_off: off, rows } : null),
    set(edits) {
      off = edits?.heads_off ?? [];
      rows = edits?.rows ?? [];
      close();
    },
  };
}
