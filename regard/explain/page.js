"use strict";
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const KINDS = { // what attends, and what is attended to
  cross: { group: "Target attends to source", query: "target", key: "source" },
  encoder: { group: "Source attends to itself", query: "source", key: "source" },
  decoder: { group: "Target attends to itself", query: "target so far", key: "target so far" },
};
const READ = { // of a text that is no other's source: it is continued, or something is predicted of it
  encoder: { group: "Text attends to itself", query: "text", key: "text" },
  decoder: { group: "Text attends to itself", query: "text so far", key: "text so far" },
};
const heard = data.some((x) => x.canvas?.kind === "sound"); // of which words are known by their time
const state = { sentence: 0, layer: null, head: "mean", unit: heard ? "words" : "pieces", word: null, scope: "" };
// What is on the screen: { mode, kind, layer, query: places, key: places, weights: [query][key] }, and over a canvas
// also { canvas, image, heads, layers, thumbnails, label, gold, spoken, floored, averaged }.
let view;
let map; // where the cells of the heat map lie: { left, top, cell, frame }, and the cell last shown: { q, k }

/* ---- helpers ---- */

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
// Children that are strings become text: no token is ever read as HTML.
function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "rect", "path", "text", "tspan"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  element.append(...children);
  return set(element, attributes);
}
function radio(name, value, chosen, ...content) {
  const input = make("input", { type: "radio", name, value });
  input.checked = value === chosen;
  return make("label", { class: "choice" }, input, ...content);
}
const percent = (x) => (x >= 0.0995 || x < 0.0005 ? Math.round(100 * x) : (100 * x).toFixed(1)) + "%";
const number = (x) => (x === -Infinity ? "−∞" : x.toFixed(2).replace("-", "−"));
const sum = (list) => list.reduce((a, b) => a + b, 0);
const readable = (text) => text.replaceAll("▁", " ").trim() || "␣";
const named = (place) => readable(place.text) + (place.predicted ? ` → ${readable(place.predicted.text)}` : "");
const kinds = (x) => (x.given || x.places ? { ...KINDS, ...READ } : KINDS);

// Spaces, and SentencePiece's mark for them, are to be seen but faintly; a control character as its escape.
function visible(text, tag) {
  const printed = text.replace(/[\0-\x1f]/g, (c) => JSON.stringify(c).slice(1, -1));
  return printed.split(/([▁\s]+)/).filter(Boolean)
    .map((part) => (/[▁\s]/.test(part) ? make(tag, { class: "faint" }, "␣".repeat(part.length)) : part));
}

/* ---- from the data to what is shown ---- */

// The places along one side: pieces as they are, or the pieces of a word together. A mark such as </s> belongs to no
// word and stays by itself, so that attention to it remains in sight. The first `given` pieces were given, the others
// written. For some pieces something is `predicted` (a tag, what fills a blank); a target piece may have `candidates`.
function places(pieces, words, logs, unit, { given = 0, predicted = new Map(), candidates = [] } = {}) {
  const out = [];
  pieces.forEach((piece, i) => {
    const joins = unit === "words" && i > 0 && i !== given && words[i] >= 0 && words[i] === words[i - 1];
    const boundary = given > 0 && i === given; // from here on it was written
    if (!joins) out.push({ text: "", members: [], mark: words[i] < 0, given: i < given, boundary });
    out.at(-1).text += joins ? piece.replace(/^·/, "") : piece; // the dot of a piece that goes on a word
    out.at(-1).members.push(i);
  });
  for (const place of out) {
    if (unit === "words") place.text = readable(place.text);
    const own = place.members.map((i) => logs?.[i]); // undefined: has none; null: minus infinity
    place.log = own.includes(undefined) ? undefined : own.includes(null) ? null : sum(own);
    place.predicted = place.members.map((i) => predicted.get(i)).find(Boolean);
    if (place.predicted) place.log = place.predicted.log;
    place.candidates = place.predicted ? place.predicted.candidates : candidates[place.members[0]];
  }
  return out;
}

function sides(x, { kind, part }, unit) {
  const { start, end } = part ? x.parts[part - 1] : {}; // one of several sources attends to itself
  const pieces = x.source.slice(start, end), own = x.source_word.slice(start, end);
  const source = places(pieces, own, null, unit);
  if (kind === "cross") return [places(x.target, x.target_word, x.log_probs, unit), source];
  if (kind === "encoder" || x.places) { // predictions stand with the queries, not with the keys
    const predicted = new Map((x.places ?? []).map((place, i) =>
      [place, { text: x.target[i], log: x.log_probs[i], candidates: x.candidates?.[i] }]));
    return [places(pieces, own, null, unit, { predicted }), source];
  }
  // The decoder reads the target one place late; a single network reads what was given before it.
  const before = x.inputs.length - x.target.length + 1, alone = x.given || before > 1;
  const words = [...Array.from({ length: before }, (_, i) => (alone ? x.source_word[i] : -1) ?? -1),
    ...x.target_word.slice(0, -1)];
  const logs = [...Array(before).fill(undefined), ...x.log_probs.slice(0, -1)];
  const read = places(x.inputs, words, logs, unit, { given: x.given > 1 ? x.given : 0 });
  return [read, read];
}

// Whether a gold link says of a place in the target and one in the source that they belong together.
const belong = (x, from, to) => (x.gold ?? []).some(([source, target]) =>
  to.members.some((j) => x.source_word[j] === source) && from.members.some((i) => x.target_word[i] === target));

// The weights of a query word are the mean over its pieces, those of a key word the sum.
const merge = (head, queries, keys) => queries.map((query) => keys.map((key) =>
  sum(query.members.map((i) => sum(key.members.map((j) => head[i][j])))) / query.members.length));

function combine(heads, choice) {
  if (typeof choice === "number") return heads[choice];
  const of = choice === "max" ? (all) => Math.max(...all) : (all) => sum(all) / all.length;
  return heads[0].map((row, i) => row.map((_, j) => of(heads.map((head) => head[i][j]))));
}

// As it reads, without special tokens apart from the `blanks`.
const text = (pieces, words, blanks = []) => places(pieces, words, null, "words")
  .filter((x) => !x.mark || blanks.includes(x.members[0])).map((x) => x.text).join(" ");

function probability({ log }) {
  if (log === undefined) return "";
  return log === null ? "probability 0" : `probability ${percent(Math.exp(log))} (log p ${number(log)})`;
}

const candidateTexts = (list) => (list ?? []).map(([piece, share]) => `${readable(piece)} ${percent(share)}`);

// What a token attends to, or is attended to by: the strongest five, a line each.
function partners(side, index) {
  if (side === "target") return "";
  const weight = (i) => (side === "query" ? view.weights[index][i] : view.weights[i][index]);
  const list = view[side === "query" ? "key" : "query"].map((place, i) => ({ place, weight: weight(i) }))
    .filter((x) => x.weight >= 0.01).sort((a, b) => b.weight - a.weight).slice(0, 5);
  const lines = list.map((x) => `${percent(x.weight)} ${named(x.place)}`);
  return lines.length ? [side === "query" ? "attends to" : "is attended to by", ...lines].join("\n") : "";
}

/* ---- drawing ---- */

function draw() {
  const x = data[state.sentence];
  const layer = chosenLayer(x), mode = x.canvas && layer && layer.kind !== "decoder" ? overCanvas : overPieces;
  const parts = layer ? ["choices", ...mode.parts] : ["none"];
  for (const id of ["none", "choices", "seen", "linked", "mapped"]) $(id).hidden = !parts.includes(id);
  $("tip").hidden = true;
  $("source").replaceChildren(given(x));
  const total = x.log_probs.includes(null) ? -Infinity : sum(x.log_probs);
  const whole = x.places?.[0] === -1; // a label or a number
  $("total").textContent = x.log_probs.length === 0 ? "" : whole ? `${probability({ log: x.log_probs[0] })}.` :
    "The bar under a token is its probability. " +
    `All together: log p ${number(total)}, or ${percent(Math.exp(total / x.log_probs.length))} a piece.`;
  const names = x.candidates ? ["Text", "Filled in"] : x.places ? [x.canvas ? "Source" : "Text", "Predicted"]
    : x.given ? ["Given", "Written"] : ["Source", "Target"];
  ["source-name", "target-name"].forEach((id, i) => { $(id).textContent = names[i]; });
  $("candidates").replaceChildren(...(x.candidates ?? []).map((list, i) => make("li", {},
    `${x.source[x.places[i]]}: ${candidateTexts(list).join(", ")}`)));
  view = { mode, layer: layer ?? {} };
  const target = places(x.target, x.target_word, x.log_probs, state.unit, { candidates: x.candidates });
  if (whole) target[0].plain = true;
  if (!layer) return fill($("target"), "target", target);
  const [query, key] = mode === overCanvas ? cellSides(x, layer, state.unit) : sides(x, layer, state.unit);
  const heads = layer.weights.map((head) => merge(head, query, key));
  if (state.head >= heads.length) state.head = "mean";
  const kind = kinds(x)[layer.kind], weights = combine(heads, state.head);
  view = { mode, kind, layer, query, key, weights, canvas: x.canvas, image: x.image, heads: [], thumbnails: [],
    layers: layer.kind === "encoder" ? encoderLayers(x) : [], label: whole, gold: Boolean(x.gold),
    spoken: withGold(x, places(x.target, x.target_word, null, "words")).filter((word) => word.gold.length),
    linked: (from, to) => layer.kind === "cross" && belong(x, from, to),
    floored: layer.name === "rollout", averaged: x.averaged };
  const scope = [state.sentence, layer.kind, state.unit].join();
  if (scope !== state.scope) state.word = layer.kind === "encoder" ? 0 : null; // what a word's number meant is another
  state.scope = scope;
  if (mode !== overCanvas || !x.canvas.sound) $("audio").pause();
  fill($("target"), "target", target);
  drawChoices(x, layer, heads);
  for (const id of ["words", "links"]) $(id).replaceChildren(); // what the other mode drew has the same ids
  mode.draw();
}

// The layer that was asked for, rollout as if it were one, or what to show first.
function chosenLayer(x) {
  const named = (name) => x.layers.find((l) => l.name === name) ?? (name === "rollout" ? rolled(x) : undefined);
  return named(state.layer) ?? named(x.best) ?? ((x.canvas && rolled(x)) || x.layers[0]);
}
function rolled(x) {
  if (x.rollout === undefined) x.rollout = x.layers.some((l) => l.kind === "encoder") ? rollout(x) : null;
  return x.rollout ?? undefined;
}

const encoderLayers = (x) => [...x.layers.filter((l) => l.kind === "encoder"), rolled(x)].filter(Boolean);

function drawChoices(x, layer, heads) {
  const groups = Object.entries(kinds(x)).map(([kind, { group }]) => make("optgroup", { label: group },
    ...x.layers.filter((l) => l.kind === kind).map((l) => make("option", { value: l.name },
      l.name + (l.name === x.best && x.layers.length > 1 ? " (aligns best)" : "")))));
  if (x.layers.some((l) => l.kind === "encoder") && !x.layers.some((l) => l.name === "rollout")) {
    groups.push(make("optgroup", { label: "Through all layers of the encoder" },
      make("option", { value: "rollout" }, "rollout (Abnar and Zuidema 2020)")));
  }
  $("layer").replaceChildren(...groups.filter((group) => group.children.length));
  $("layer").value = layer.name;
  const split = (words) => words.some((word, i) => i > 0 && word >= 0 && word === words[i - 1]);
  $("units").hidden = !split(x.source_word) && !split(x.target_word);
  $("units").lastChild.replaceChildren(...["pieces", "words"].map((unit) => radio("unit", unit, state.unit, unit)));
  $("heads").hidden = heads.length < 2;
  $("heads").lastChild.replaceChildren(...["mean", "max", ...heads.keys()].map((choice) =>
    radio("head", choice, state.head, view.mode.thumbnail(combine(heads, choice)), String(choice))));
}

/* Attention to pieces is shown as links between two lines and as cells of a map. */
const overPieces = {
  parts: ["linked", "mapped"],
  thumbnail,
  draw() { drawLinks(); drawMap(); },
  describe: partners,
  showTip,
  highlight,
  clearHighlight() {
    map?.frame.setAttribute("visibility", "hidden");
    $("links").classList.remove("busy");
    for (const token of document.querySelectorAll(".here, .lit")) token.classList.remove("here", "lit");
  },
  reset() {},
};

// The source, as it was given.
const given = (x) => (x.image ? x.image.cloneNode() : text(x.source, x.source_word, x.candidates && x.places));
const lines = (...parts) => parts.filter(Boolean).join("\n");

function thumbnail(weights) {
  const canvas = make("canvas", { width: view.key.length, height: view.query.length, "aria-hidden": true });
  const brush = canvas.getContext("2d");
  brush.fillStyle = getComputedStyle($("main")).getPropertyValue("--accent");
  weights.forEach((row, q) => row.forEach((weight, k) => {
    brush.globalAlpha = Math.min(weight, 1);
    brush.fillRect(k, q, 1, 1);
  }));
  return canvas;
}

// A line of tokens that can be pointed at, tapped, and walked along with the arrow keys.
function fill(line, side, list) {
  line.replaceChildren(...list.map((place, i) => {
    const details = lines(probability(place), ...candidateTexts(place.candidates), view.mode.describe(side, i));
    // <bdi> keeps a mark such as <s> from setting the direction of a line of Arabic or Hebrew.
    const shown = place.plain ? [place.text] : visible(place.text, "span"); // in a label a space is a space
    const token = make("li", { class: "token", id: `${side}-${i}`, role: "option", tabindex: i ? -1 : 0,
      "aria-label": `${named(place)}: ${details.replaceAll("\n", ", ")}` },
      make(place.mark ? "bdi" : "span", { class: place.mark ? "mark" : "" }, ...shown));
    if (place.predicted) {
      token.append(make("bdi", { class: "predicted" }, "→", ...visible(place.predicted.text, "span")));
    }
    for (const name of ["given", "boundary"]) token.classList.toggle(name, Boolean(place[name]));
    if (place.log !== undefined) {
      token.classList.add("scored");
      token.style.setProperty("--p", place.log === null ? 0 : Math.exp(place.log));
    }
    token.onpointerenter = token.onfocus = () => {
      view.mode.highlight(side, i);
      view.mode.showTip(token, named(place), details);
    };
    token.onpointerleave = token.onblur = () => { clearHighlight(); document.activeElement?.onfocus?.(); };
    return token;
  }));
  line.onkeydown = (event) => {
    const ahead = getComputedStyle(line).direction === "rtl" ? -1 : 1;
    const step = { ArrowRight: ahead, ArrowLeft: -ahead, ArrowDown: 1, ArrowUp: -1 }[event.key];
    const next = step && line.children[[...line.children].indexOf(event.target) + step];
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1; // the tab key stops once in each line, where one last was
    next.tabIndex = 0;
    next.focus();
  };
}

function drawLinks() {
  const { kind } = view, box = $("links");
  const line = (label) => make("ol", { class: "tokens", dir: "auto", role: "listbox", "aria-label": label });
  const lines = [line(`${kind.key}, attended to`), line(`${kind.query}, attending`)];
  box.className = "";
  box.replaceChildren(make("svg", { "aria-hidden": true }), ...lines);
  fill(lines[0], "key", view.key);
  fill(lines[1], "query", view.query);
  const fits = () => lines.every((x) => x.scrollWidth <= box.clientWidth);
  if (!fits()) box.className = "tight";
  if (!fits()) box.className = "columns";
  const columns = box.className === "columns";
  $("ends").textContent = `The ${kind.query} (${columns ? "right" : "below"}) attends to the ${kind.key} ` +
    `(${columns ? "left" : "above"}). Point at a token, tap it, or walk there with the arrow keys.` +
    (view.query.some((place) => place.given) ? " What was given is grey; the rest was written." : "");
  const origin = box.getBoundingClientRect(); // only now: the words above may have pushed it down
  const end = (side) => (_, i) => {
    const r = $(`${side}-${i}`).getBoundingClientRect();
    return columns ? [(side === "key" ? r.right : r.left) - origin.left, (r.top + r.bottom) / 2 - origin.top]
      : [(r.left + r.right) / 2 - origin.left, (side === "key" ? r.bottom : r.top) - origin.top];
  };
  const from = view.query.map(end("query")), to = view.key.map(end("key"));
  view.weights.forEach((row, q) => row.forEach((weight, k) => {
    if (weight < 0.02) return; // too faint to see, and there are thousands of them
    const [x, y] = from[q], [u, v] = to[k];
    const bend = columns ? `${(x + u) / 2} ${y} ${(x + u) / 2} ${v}` : `${x} ${(y + v) / 2} ${u} ${(y + v) / 2}`;
    const path = make("path", { d: `M${x} ${y}C${bend} ${u} ${v}`, "stroke-opacity": Math.min(weight, 1) });
    box.firstChild.append(Object.assign(path, { query: q, key: k }));
  }));
}

function drawMap() {
  const { query, key, weights, kind } = view, svg = $("map");
  $("sides").textContent = `Rows (${kind.query}) attend to columns (${kind.key}).` +
    (view.gold && view.layer.kind === "cross" ? " Framed are words that belong together." : "");
  const short = (label) => (label.length > 24 ? label.slice(0, 23) + "…" : label);
  const predicted = ({ text }) => make("tspan", { class: "predicted" }, ` → ${short(readable(text))}`);
  const label = (place) => make("text", { class: place.mark || place.given ? "mark" : "" },
    ...visible(short(place.text), "tspan"), ...(place.predicted ? [predicted(place.predicted)] : []));
  const rows = query.map(label), columns = key.map(label);
  svg.replaceChildren(...rows, ...columns);
  const widest = (list) => Math.max(0, ...list.map((x) => x.getComputedTextLength()));
  const left = Math.ceil(widest(rows)) + 10, long = widest(columns), top = Math.ceil(0.87 * long) + 18;
  const room = $("scroll").clientWidth - left - long / 2;
  const cell = Math.floor(Math.max(17, Math.min(36, room / key.length)));
  const width = key.length * cell, height = query.length * cell;
  rows.forEach((x, q) => set(x, { x: left - 6, y: top + (q + 0.5) * cell, "text-anchor": "end" }));
  columns.forEach((x, k) => set(x, { transform: `translate(${left + (k + 0.5) * cell} ${top - 8}) rotate(-60)` }));
  const cells = make("g", { class: "cells" });
  weights.forEach((row, q) => row.forEach((weight, k) => {
    if (weight < 0.004) return;
    const corner = { x: left + k * cell, y: top + q * cell };
    cells.append(make("rect", { ...corner, width: cell, height: cell, "fill-opacity": Math.min(weight, 1) }));
  }));
  let grid = "";
  for (let q = 0; q <= query.length; q++) grid += `M${left} ${top + q * cell}h${width}`;
  for (let k = 0; k <= key.length; k++) grid += `M${left + k * cell} ${top}v${height}`;
  const q = query.findIndex((place) => place.boundary), k = key.findIndex((place) => place.boundary);
  const boundary = q < 0 ? "" : `M0 ${top + q * cell}h${left + width}M${left + k * cell} 0v${top + height}`;
  const frame = make("rect", { class: "frame", visibility: "hidden" });
  const box = (q, k) => `M${left + k * cell} ${top + q * cell}h${cell}v${cell}h-${cell}z`;
  const truth = query.flatMap((from, q) => key.map((to, k) => (view.linked(from, to) ? box(q, k) : ""))).join("");
  svg.append(cells, make("path", { class: "grid", d: grid }), make("path", { class: "truth", d: truth }),
    make("path", { class: "boundary", d: boundary }), frame);
  set(svg, { width: left + width + long / 2, height: top + height + 2,
    "aria-label": `Heat map, ${query.length} rows, ${key.length} columns. Arrow keys move from cell to cell.` });
  map = { left, top, cell, frame, q: 0, k: 0 };
}

/* ---- pointing ---- */

// Light up a token and its partners in both views.
function highlight(side, index) {
  if (side === "target") return;
  $("links").classList.add("busy");
  for (const path of $("links").firstChild.children) path.classList.toggle("on", path[side] === index);
  $(`${side}-${index}`).classList.add("here");
  const other = side === "query" ? "key" : "query";
  view[other].forEach((_, i) => {
    const token = $(`${other}-${i}`), weight = side === "query" ? view.weights[index][i] : view.weights[i][index];
    token.classList.add("lit");
    token.style.setProperty("--w", Math.sqrt(Math.min(weight, 1))); // the root, for a light on a whole token is pale
  });
  frame(side === "query" ? index : null, side === "key" ? index : null);
}

function clearHighlight() {
  $("tip").hidden = true;
  view?.mode.clearHighlight();
}

// Frame a row or a column of the heat map, or with both one cell.
function frame(q, k) {
  const { left, top, cell } = map;
  set(map.frame, { visibility: "visible", x: left + (k ?? 0) * cell, y: top + (q ?? 0) * cell,
    width: k === null ? view.key.length * cell : cell, height: q === null ? view.query.length * cell : cell });
}

function showCell(q, k) {
  if (view.weights[q]?.[k] === undefined) return clearHighlight();
  Object.assign(map, { q, k });
  frame(q, k);
  showTip(map.frame, `${readable(view.query[q].text)} attends to ${readable(view.key[k].text)}`,
    `weight ${view.weights[q][k].toFixed(3)}\n${probability(view.query[q])}`);
}

function showTip(element, title, details) {
  const tip = $("tip"), r = element.getBoundingClientRect();
  tip.ariaLive = element === map?.frame ? "polite" : "off"; // a token has a label that says the same
  tip.replaceChildren(make("b", {}, title), details.trim());
  tip.hidden = false;
  // Away from the links: outside of a column, above the upper line, below all else.
  const key = element.id.startsWith("key"), beside = element.closest(".columns");
  const above = key && !beside && r.top > tip.offsetHeight;
  const left = !beside ? r.left : key ? r.left - tip.offsetWidth - 8 : r.right + 8;
  const top = beside ? r.top : above ? r.top - tip.offsetHeight - 6 : r.bottom + 6;
  const edge = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = `${Math.max(8, Math.min(left, edge)) + scrollX}px`;
  tip.style.top = `${top + scrollY}px`;
}

$("map").onpointermove = $("map").onpointerdown = (event) => {
  const r = $("map").getBoundingClientRect(), at = (place) => Math.floor(place / map.cell);
  showCell(at(event.clientY - r.top - map.top), at(event.clientX - r.left - map.left));
};
// A finger that is lifted leaves too, but its owner still wants to read.
$("map").onpointerleave = (event) => { if (event.pointerType === "mouse") clearHighlight(); };
$("map").onblur = clearHighlight;
$("map").onfocus = () => { if ($("map").matches(":focus-visible")) showCell(map.q, map.k); };
$("map").onkeydown = (event) => {
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!step) return;
  event.preventDefault();
  const clamp = (x, length) => Math.max(0, Math.min(x, length - 1));
  showCell(clamp(map.q + step[0], view.query.length), clamp(map.k + step[1], view.key.length));
};
document.onkeydown = (event) => {
  if (event.key !== "Escape") return;
  clearHighlight();
  view?.mode.reset();
};
document.onchange = ({ target }) => {
  const value = /^\d+$/.test(target.value) ? Number(target.value) : target.value;
  state[target.name || target.id] = value;
  draw();
  // The buttons were drawn anew: give the keyboard its place among them back.
  if (target.name) document.querySelector(`input[name="${target.name}"]:checked`).focus({ preventScroll: true });
};
matchMedia("(prefers-color-scheme: dark)").onchange = draw; // canvases do not follow the style sheet

function start() {
  prepareCanvas();
  $("nav").hidden = data.length < 2;
  $("layout").classList.toggle("many", data.length > 1);
  $("sentences").append(...data.map((x, i) => radio("sentence", i, 0,
    make("span", { dir: "auto" }, given(x)),
    make("span", { dir: "auto", class: "quiet" }, text(x.target, x.target_word)))));
  draw();
  let width = innerWidth;
  onresize = () => { // the height does not matter, and on a phone it changes at every scroll
    if (width !== innerWidth) draw();
    width = innerWidth;
  };
}

for (const x of data) if (x.canvas) x.image = make("img", { src: x.canvas.pixels, alt: `the ${x.canvas.kind}` });
// A canvas can only be painted with a picture that has been read.
if (data.length) Promise.all(data.map((x) => x.image?.decode())).then(start);
else $("main").replaceChildren("There are no sentences to show.");
