/* Attention between two lines of tokens: rows one above the other, or columns where rows do not fit. Of long columns
   only what is in sight is drawn. */
import { make } from "./dom.js";
import { tokenLine } from "./tokens.js";

const FAINT = 0.02; // too faint to see, and there are thousands of them
const ROW = 30; // pixels of a token in a column
const SOME = 90; // tokens that may stand in a row, or in a column drawn whole

export function linksView(on) {
  const hears = { ...on, reach };
  const svg = make("svg", { "aria-hidden": true }), lines = {
    key: tokenLine({ label: "attended to", side: "key", on: hears }),
    query: tokenLine({ label: "attending", side: "query", on: hears }),
  };
  const box = make("div", { class: "links" }, svg, lines.key.element, lines.query.element);
  let view, window = [0, 0], columns = false;
  box.onscroll = () => { if (windowed()) requestAnimationFrame(drawWindow); };

  const windowed = () => columns && Math.max(view.query.length, view.key.length) > SOME;

  function reach(_, index) { // so that a token that is out of sight can have the focus
    box.scrollTop = Math.max(0, index * ROW - box.clientHeight / 2);
    drawWindow();
  }

  function draw(given) {
    view = given;
    for (const side of ["key", "query"]) lines[side].element.ariaLabel = `${view.kind[side]}, ${ROLE[side]}`;
    box.className = "links";
    columns = Math.max(view.query.length, view.key.length) > SOME;
    if (!columns) {
      for (const side of ["key", "query"]) lines[side].show(view[side]);
      const fits = () => [lines.key, lines.query].every((x) => x.element.scrollWidth <= box.clientWidth);
      if (!fits()) box.classList.add("tight");
      columns = !fits();
    }
    for (const { element } of [lines.key, lines.query]) element.style.height = "";
    svg.removeAttribute("height");
    if (!columns) return drawPaths(rowEnds());
    box.className = "links columns";
    box.scrollTop = 0;
    for (const side of ["key", "query"]) lines[side].element.style.height = `${view[side].length * ROW}px`;
    svg.setAttribute("height", Math.max(view.query.length, view.key.length) * ROW);
    window = [-1, -1];
    drawWindow();
  }

  // The tokens of columns that are in sight, and some more.
  function drawWindow() {
    const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 10);
    const next = windowed() ? [first, first + Math.ceil(box.clientHeight / ROW) + 20] : [0, SOME + 1];
    if (Math.abs(next[0] - window[0]) < 6 && next[1] <= window[1] + 6 && window[0] >= 0) return;
    window = next;
    for (const side of ["key", "query"]) {
      lines[side].show(view[side], ...window);
      for (const item of lines[side].element.children) item.style.top = `${item.dataset.index * ROW}px`;
    }
    drawPaths(columnEnds());
  }

  function rowEnds() {
    const origin = box.getBoundingClientRect();
    const end = (side, i) => {
      const r = lines[side].at(i).getBoundingClientRect();
      return [(r.left + r.right) / 2 - origin.left, (side === "key" ? r.bottom : r.top) - origin.top];
    };
    const found = { query: view.query.map((_, i) => end("query", i)), key: view.key.map((_, i) => end("key", i)) };
    return (side, i) => found[side][i];
  }

  function columnEnds() {
    const origin = box.getBoundingClientRect(), r = lines.key.element.getBoundingClientRect();
    const x = { key: r.right - origin.left, query: lines.query.element.getBoundingClientRect().left - origin.left };
    return (side, i) => [x[side], (i + 0.5) * ROW];
  }

  function drawPaths(end) {
    const paths = [], [first, last] = columns ? window : [0, view.query.length];
    view.weights.slice(first, last).forEach((row, i) => row.forEach((weight, k) => {
      if (weight < FAINT) return;
      const q = first + i, [x, y] = end("query", q), [u, v] = end("key", k);
      const bend = columns ? `${(x + u) / 2} ${y} ${(x + u) / 2} ${v}` : `${x} ${(y + v) / 2} ${u} ${(y + v) / 2}`;
      const path = make("path", { d: `M${x} ${y}C${bend} ${u} ${v}`, "stroke-opacity": Math.min(weight, 1) });
      paths.push(Object.assign(path, { query: q, key: k }));
    }));
    svg.replaceChildren(...paths);
  }

  return {
    element: box,
    draw,
    focus: () => lines.query.focus(),
    how: () => `The ${view.kind.query} (${columns ? "right" : "below"}) attends to the ${view.kind.key} ` +
      `(${columns ? "left" : "above"}).` +
      (view.query.some((place) => place.given) ? " What was given is grey; the rest was written." : ""),
    aside: (side) => (columns ? (side === "key" ? "left" : "right") : side === "key" ? "above" : ""),
    highlight(side, index) {
      box.classList.add("busy");
      for (const path of svg.children) path.classList.toggle("on", path[side] === index);
      const weight = (i) => (side === "query" ? view.weights[index][i] : view.weights[i][index]);
      lines[side].mark(null, index);
      lines[side === "query" ? "key" : "query"].mark(weight);
    },
    clear() {
      box.classList.remove("busy");
      for (const line of [lines.key, lines.query]) line.mark();
    },
  };
}
const ROLE = { key: "attended to", query: "attending" };
