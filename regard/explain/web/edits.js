/* What is changed inside a model: heads that are switched off, rows of weights that are set by hand. */
import { button, make, percent, readable } from "./dom.js";
import { sum } from "./numbers.js";

const MOST = 120; // bars that are drawn; of more keys, those with most weight
const HOW = "Drag a bar, or use the arrow keys on it. The row is normalised, and what follows is written anew.";

// What of a list may be an edit: a link may say anything.
const listed = (given, fits) => (Array.isArray(given) ? given.filter(fits) : []);

/* `onchange` is called when something was changed; `get` gives the edits as the API takes them. */
export function editor(onchange) {
  let off = []; // [layer, head]
  let rows = []; // { layer, head or null for all, position, weights }
  let open = null; // the row that bars stand for: { layer, head, positions, weights }

  const bars = make("div", { class: "bars" }), title = make("h3");
  const element = make("div", { class: "row-editor", role: "group", "aria-label": "Edit a row of weights" }, title,
    make("p", { class: "quiet" }, HOW), bars, make("div", { class: "row" },
      button("As the model has it", () => { drop(); close(); onchange(); }), button("Close", close)));
  element.hidden = true;

  const same = (row) => row.layer === open.layer && row.head === open.head && open.positions.includes(row.position);
  const is = (layer, head) => ([name, number]) => name === layer && number === head;
  function drop() { rows = rows.filter((row) => !same(row)); }
  function close() { element.hidden = true; open = null; }

  // Bars for what one query of a view attends to.
  function edit({ query, x, head: chosen, layer }, index) {
    const { members, text } = query[index], head = typeof chosen === "number" ? chosen : null;
    const heads = head === null ? layer.weights : [layer.weights[head]];
    const weights = heads[0][members[0]].map((_, k) => sum(heads.map((each) => each[members[0]][k])) / heads.length);
    const pieces = layer.kind === "decoder" ? x.inputs : x.source;
    open = { layer: layer.name, head, positions: members, weights };
    const where = head === null ? "all heads" : `head ${head}`;
    title.textContent = `What “${readable(text)}” attends to, in ${where} of ${layer.name}`;
    const shown = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, MOST).sort((a, b) => a - b);
    bars.replaceChildren(...shown.map((k) => bar(k, readable(pieces[k] ?? String(k)))));
    element.hidden = false;
    bars.querySelector("input")?.focus({ preventScroll: true });
    element.scrollIntoView({ block: "nearest" });
  }

  function bar(k, piece) {
    const input = make("input", { type: "range", min: 0, max: 1, step: 0.01, "aria-label": piece });
    const share = make("span", { class: "quiet" });
    const tell = () => {
      share.textContent = percent(open.weights[k]);
      input.setAttribute("aria-valuetext", share.textContent);
    };
    input.value = open.weights[k];
    tell();
    input.oninput = () => { open.weights[k] = Number(input.value); tell(); };
    input.onchange = () => apply(k, Number(input.value));
    return make("label", {}, share, input, make("bdi", {}, piece));
  }

  // One weight is as wanted, and the others keep their proportions.
  function apply(k, wanted) {
    const rest = sum(open.weights) - wanted;
    const share = (weight) => (rest > 0 ? Number((weight * (1 - wanted) / rest).toFixed(4)) : 0);
    const weights = open.weights.map((weight, i) => (i === k ? wanted : share(weight)));
    if (!weights.some((weight) => weight > 0)) return;
    drop();
    for (const position of open.positions) rows.push({ layer: open.layer, head: open.head, position, weights });
    onchange();
  }

  return {
    element,
    edit,
    off: (layer, head) => off.some(is(layer, head)),
    toggle(layer, head) {
      off = off.some(is(layer, head)) ? off.filter((each) => !is(layer, head)(each)) : [...off, [layer, head]];
      onchange();
    },
    // What a reader is told of, each with a way to take it back.
    list: () => [
      ...off.map((each) => ({ text: `head ${each[1]} of ${each[0]} off`,
        drop() { off = off.filter((other) => other !== each); onchange(); } })),
      ...rows.map((row) => ({ text: `row ${row.position + 1} of ${row.layer} edited`,
        drop() { rows = rows.filter((other) => other !== row); onchange(); } })),
    ],
    get: () => (off.length || rows.length ? { heads_off: off, rows } : null),
    set(edits) {
      off = listed(edits?.heads_off, Array.isArray);
      rows = listed(edits?.rows, (row) => typeof row?.layer === "string");
      close();
    },
  };
}
