/* Every head of every layer, each as a small map. */
import { button, color, make } from "./dom.js";
import { merge, shrunk } from "./numbers.js";
import { kinds, sides } from "./places.js";

const DOTS = 96; // that a small map has at most on a side
const HEADS = 400; // maps that are drawn

// A small map of weights, a dot or more a cell.
export function mini(weights) {
  const small = shrunk(weights, DOTS);
  const canvas = make("canvas", { width: small[0]?.length || 1, height: small.length || 1, "aria-hidden": true });
  const brush = canvas.getContext("2d");
  brush.fillStyle = color("--accent");
  small.forEach((row, q) => row.forEach((weight, k) => {
    if (weight < 0.004) return;
    brush.globalAlpha = Math.min(weight, 1);
    brush.fillRect(k, q, 1, 1);
  }));
  return canvas;
}

/* `on.pick(layer, head)` hears which one was chosen; `off(layer, head)` says which are switched off. */
export function headsView(on) {
  const element = make("div", { class: "multiples" });

  function draw({ x, layer: chosen, head: chosenHead, unit }) {
    let left = HEADS;
    const groups = Object.entries(kinds(x)).map(([kind, { group }]) => {
      const rows = x.layers.filter((layer) => layer.kind === kind).map((layer, i) => {
        const [query, key] = sides(x, layer, unit);
        const cells = layer.weights.slice(0, Math.max(0, left)).map((head, h) => {
          const off = on.off?.(layer.name, h), name = `layer ${i + 1}, head ${h}${off ? ", off" : ""}`;
          const map = button("", () => on.pick(layer.name, h), { "aria-label": name, class: off ? "off" : "",
            title: name, "aria-pressed": layer.name === chosen.name && h === chosenHead });
          map.prepend(mini(merge(head, query, key)));
          return make("td", {}, map);
        });
        left -= cells.length;
        return make("tr", {}, make("th", { scope: "row", title: layer.name }, `layer ${i + 1}`), ...cells);
      });
      const most = Math.max(0, ...x.layers.filter((l) => l.kind === kind).map((l) => l.weights.length));
      const heads = Array.from({ length: most }, (_, h) => make("th", { scope: "col" }, `head ${h}`));
      return rows.length ? make("table", {}, make("caption", {}, group),
        make("thead", {}, make("tr", {}, make("td"), ...heads)), make("tbody", {}, ...rows)) : null;
    });
    element.replaceChildren(...groups.filter(Boolean));
  }

  const how = () => "Rows are layers, columns heads. Choose one to see it large.";
  return { element, draw, how, highlight() {}, clear() {} };
}
