/* All weights as cells. Only rows and columns in sight are drawn; labels stay at the edges. */
import { clamp, make, percent, readable, set, tableHead, visible } from "./dom.js";
import { named, probability } from "./places.js";
import { hideTip, showTip } from "./tip.js";

const FAINT = 0.004, LEAST = 17, MOST = 38, LONG = 24; // cells are 17 to 38 pixels wide; letters of a label
const TABLE = 400; // rows that the table has at most

export function heatView(on) {
  const svg = make("svg", { class: "map", tabindex: 0, role: "application" });
  const room = make("div", {}, svg), scroll = make("div", { class: "scroll" }, room);
  const table = make("details", {}, make("summary", {}, "As a table"));
  const element = make("div", { class: "heat" }, scroll, table);
  let view, size, at = { q: 0, k: 0 }, framed = null;
  scroll.onscroll = () => requestAnimationFrame(() => drawInto(svg, seen()));
  table.ontoggle = () => { if (table.open && !table.children[1]) table.append(weightTable(view)); };

  // How much is in sight, from where.
  const seen = () => ({ x: scroll.scrollLeft, y: scroll.scrollTop,
    width: Math.min(size.width, scroll.clientWidth), height: Math.min(size.height, scroll.clientHeight) });

  function draw(given) {
    view = given;
    framed = null;
    at = { q: 0, k: 0 };
    size = measure(view, scroll.clientWidth);
    set(svg, { "aria-label": `Heat map, ${view.query.length} rows, ${view.key.length} columns. ` +
      "Arrow keys move from cell to cell." });
    Object.assign(room.style, { width: `${size.width}px`, height: `${size.height}px` });
    scroll.scrollTo(0, 0);
    drawInto(svg, seen());
    table.open = false;
    table.children[1]?.remove();
  }

  function drawInto(svg, { x, y, width, height }) {
    const { left, top, cell } = size, wide = width - left, high = height - top;
    const rows = range(y, high, view.query.length), columns = range(x, wide, view.key.length);
    const inner = (at, ...children) => make("svg", at, ...children);
    const rowLabel = (q) => set(label(view.query[q], framed?.[0] === q),
      { x: left - 8, y: (q + 0.5) * cell - y, "text-anchor": "end" });
    const columnLabel = (k) => set(label(view.key[k], framed?.[1] === k),
      { transform: `translate(${(k + 0.5) * cell - x} ${top - 8}) rotate(-60)` });
    const labels = [
      inner({ x: 0, y: top, width: left, height: Math.max(high, 0) }, ...rows.map(rowLabel)),
      inner({ x: left, y: 0, width: Math.max(wide, 0), height: top }, ...columns.map(columnLabel)),
    ];
    const cells = make("g", { class: "cells" });
    for (const q of rows) {
      for (const k of columns) {
        const weight = view.weights[q][k];
        if (weight < FAINT) continue;
        cells.append(make("rect", { x: k * cell - x, y: q * cell - y, width: cell, height: cell,
          "fill-opacity": Math.min(weight, 1) }));
      }
    }
    const right = view.key.length * cell - x, bottom = view.query.length * cell - y;
    const box = (q, k) => `M${k * cell - x} ${q * cell - y}h${cell}v${cell}h-${cell}z`;
    let grid = "", truth = "";
    for (const q of [...rows, rows.at(-1) + 1]) grid += `M0 ${q * cell - y}H${right}`;
    for (const k of [...columns, columns.at(-1) + 1]) grid += `M${k * cell - x} 0V${bottom}`;
    for (const q of rows) for (const k of columns) if (view.linked(view.query[q], view.key[k])) truth += box(q, k);
    const q = view.query.findIndex((place) => place.boundary), k = view.key.findIndex((place) => place.boundary);
    const boundary = q < 0 ? "" : `M0 ${q * cell - y}H${right}M${k * cell - x} 0V${bottom}`;
    const body = inner({ x: left, y: top, width: Math.max(wide, 0), height: Math.max(high, 0) }, cells,
      make("path", { class: "grid", d: grid }), make("path", { class: "truth", d: truth }),
      make("path", { class: "boundary", d: boundary }));
    if (framed) {
      const [q, k] = framed;
      body.append(make("rect", { class: "frame", x: (k ?? 0) * cell - x, y: (q ?? 0) * cell - y,
        width: k === null ? right + x : cell, height: q === null ? bottom + y : cell }));
    }
    set(svg, { width, height }).replaceChildren(...labels, body);
  }

  function range(from, length, count) {
    const first = clamp(Math.floor(from / size.cell), count);
    const last = clamp(Math.ceil((from + length) / size.cell), count);
    return Array.from({ length: last - first + 1 }, (_, i) => first + i);
  }

  // Frame a row or a column, or with both one cell.
  function frame(q, k) {
    framed = q === null && k === null ? null : [q, k];
    drawInto(svg, seen());
  }

  function showCell(q, k) {
    if (view.weights[q]?.[k] === undefined) return clear();
    at = { q, k };
    frame(q, k);
    showTip(svg.querySelector(".frame"), `${readable(view.query[q].text)} attends to ${readable(view.key[k].text)}`,
      `weight ${view.weights[q][k].toFixed(3)}\n${probability(view.query[q])}`, { live: true });
    on.cell?.(q, k);
  }

  function clear() {
    hideTip();
    frame(null, null);
    on.leave?.();
  }

  function inSight(q, k) {
    const { left, top, cell } = size;
    const near = (from, length, edge) => Math.min(Math.max(from, edge + cell - length), edge);
    scroll.scrollTo(near(scroll.scrollLeft, scroll.clientWidth - left, k * cell),
      near(scroll.scrollTop, scroll.clientHeight - top, q * cell));
  }

  svg.onpointermove = svg.onpointerdown = (event) => {
    const r = svg.getBoundingClientRect(), { left, top, cell } = size;
    const x = event.clientX - r.left - left, y = event.clientY - r.top - top;
    if (x < 0 || y < 0) return clear();
    showCell(Math.floor((y + scroll.scrollTop) / cell), Math.floor((x + scroll.scrollLeft) / cell));
  };
  // A finger that is lifted leaves too, but its owner still wants to read.
  svg.onpointerleave = (event) => { if (event.pointerType === "mouse") clear(); };
  svg.onblur = clear;
  svg.onfocus = () => { if (svg.matches(":focus-visible")) showCell(at.q, at.k); };
  svg.onclick = () => { if (framed) on.choose?.("query", at.q); };
  svg.onkeydown = (event) => {
    if (event.key === "Enter") return on.choose?.("query", at.q);
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const q = clamp(at.q + step[0], view.query.length), k = clamp(at.k + step[1], view.key.length);
    inSight(q, k);
    showCell(q, k);
  };

  return {
    element,
    draw,
    how: () => `Rows (${view.kind.query}) attend to columns (${view.kind.key}).` +
      (view.gold && view.layer.kind === "cross" ? " Framed are words that belong together." : ""),
    highlight: (side, index) => frame(side === "query" ? index : null, side === "key" ? index : null),
    clear: () => frame(null, null),
    // The whole map, whatever is in sight.
    picture() {
      const whole = make("svg", { class: "map" });
      element.append(whole);
      drawInto(whole, { x: 0, y: 0, width: size.width, height: size.height });
      return whole;
    },
  };
}

function short(text) {
  const letters = [...text];
  return letters.length > LONG ? letters.slice(0, LONG - 1).join("") + "…" : text;
}

function label(place, here) {
  const text = make("text", { class: place.mark || place.given ? "mark" : "" }, ...visible(short(place.text), "tspan"));
  text.classList.toggle("here", here);
  if (place.predicted) {
    text.append(make("tspan", { class: "predicted" }, ` → ${short(readable(place.predicted.text))}`));
  }
  return text;
}

// Where cells lie: the room of labels, and the size of a cell and of the whole.
function measure({ query, key }, room) {
  const brush = make("canvas").getContext("2d");
  brush.font = "13px system-ui, sans-serif";
  const widest = (list) => Math.max(0, ...list.map((place) => brush.measureText(short(named(place))).width));
  const left = Math.ceil(widest(query)) + 22, long = widest(key), top = Math.ceil(0.87 * long) + 20;
  const cell = Math.floor(Math.max(LEAST, Math.min(MOST, (room - left - long / 2) / key.length)));
  const width = left + key.length * cell + Math.ceil(long / 2), height = top + query.length * cell + 2;
  return { left, top, cell, width, height };
}

// For who cannot see the map: what each row attends to most.
function weightTable({ query, key, weights, kind }) {
  const rows = query.slice(0, TABLE).map((place, q) => {
    const best = weights[q].map((weight, k) => [weight, k]).sort((a, b) => b[0] - a[0]).slice(0, 3);
    return make("tr", {}, make("th", { scope: "row", dir: "auto" }, named(place)), ...best.map(([weight, k]) =>
      make("td", { dir: "auto" }, `${readable(key[k].text)} ${percent(weight)}`)));
  });
  const more = query.length > TABLE ? `, the first ${TABLE} of ${query.length} rows` : "";
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "table of weights" },
    make("table", {}, make("caption", {}, `The ${kind.key} that each ${kind.query} attends to${more}`),
      tableHead([kind.query, "attends most to", "then to", "and to"]), make("tbody", {}, ...rows)));
}
