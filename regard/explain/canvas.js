"use strict";
/* Attention over what can be drawn on: a picture, the spectrogram of a sound, a strip of frames. */
const DARK = 0.26, GLOW = 0.3; // what is left of a picture without attention; how much white is added with most of it
const CURVE = 0.26; // the share of a sound's screen that is below its spectrogram, for attention over time

/* ---- numbers ---- */

// Attention rollout (Abnar and Zuidema 2020): A = W / 2 + I / 2 of each encoder layer, rows normalised, and the product
// of them all; as if it were a layer. Of several sources, one that attends to itself leaves the others as they are.
function rollout(x) {
  const n = x.source.length;
  let found = Array.from({ length: n }, (_, i) => Float64Array.from({ length: n }, (_, j) => Number(i === j)));
  for (const layer of x.layers.filter((l) => l.kind === "encoder")) {
    const { start, end } = layer.part ? x.parts[layer.part - 1] : { start: 0, end: n };
    if (layer.weights[0].length !== end - start || layer.weights[0][0].length !== end - start) return null;
    found = found.map((old, i) => {
      if (i < start || i >= end) return old;
      const row = Float64Array.from({ length: end - start }, (_, j) =>
        layer.weights.reduce((total, head) => total + head[i - start][j], 0) / layer.weights.length / 2);
      row[i - start] += 0.5;
      const total = row.reduce((a, b) => a + b, 0), mixed = new Float64Array(n);
      row.forEach((weight, j) => {
        const share = weight / total, other = found[start + j];
        for (let k = 0; k < n; k++) mixed[k] += share * other[k];
      });
      return mixed;
    });
  }
  return { name: "rollout", kind: "encoder", weights: [found.map((row) => [...row])] };
}

// Where half of the attention lies before, in cells from the start of the first: 2.5 is the middle of cell 2.
function median(row) {
  const half = row.reduce((a, b) => a + b, 0) / 2;
  let before = 0;
  for (let i = 0; i < row.length; i++) {
    if (row[i] > 0 && before + row[i] >= half) return i + (half - before) / row[i];
    before += row[i];
  }
  return null;
}

// Each cell from 0 to 1, for the one that has most. Of rollout, in which there is something of each, what is more than
// that.
function shares(weights, floored) {
  const most = Math.max(...weights), least = floored ? Math.min(...weights) : 0;
  const floor = least < most ? least : 0;
  return weights.map((weight) => Math.max(0, weight - floor) / Math.max(most - floor, 1e-9));
}

const frameCount = ({ kind, frames, rows, columns }) => (kind === "frames" ? frames || columns / rows : 1);

// How much of the attention each frame of a strip has.
function frameTotals(canvas, weights) {
  const each = canvas.columns / frameCount(canvas), totals = Array(frameCount(canvas)).fill(0);
  weights.forEach((weight, k) => { totals[Math.floor((k % canvas.columns) / each)] += weight; });
  return totals;
}

// Words whose attended moment this is: it has at least half of what their most attended one has.
const playing = (rows, cell) => rows.map((row) => row[cell] > 0 && row[cell] >= Math.max(...row) / 2);

/* ---- sides ---- */

// The cells of a canvas, each with the pieces in it; and what attends to them: the words of a target or, in an encoder,
// the whole (a class token, or else all pieces) and then each cell.
function cellSides(x, { kind }, unit) {
  const cells = Array.from({ length: x.canvas.rows * x.canvas.columns }, () => ({ text: "", members: [] }));
  x.source_word.forEach((word, i) => {
    if (word < 0) return;
    cells[word].text ||= x.source[i];
    cells[word].members.push(i);
  });
  if (kind === "encoder") {
    const alone = x.source_word[0] < 0;
    const whole = { text: alone ? x.source[0] : "mean", mark: true, members: alone ? [0] : [...x.source.keys()] };
    return [[whole, ...cells], cells];
  }
  return [withGold(x, places(x.target, x.target_word, x.log_probs, unit)), cells];
}

// Places of the target, each with the cells that belong to it in truth, where that is known.
function withGold(x, list) {
  for (const place of list) {
    const words = place.members.map((i) => x.target_word[i]).filter((word) => word >= 0);
    const cells = (x.gold ?? []).filter(([, word]) => words.includes(word)).map(([cell]) => cell);
    place.gold = cells.filter((cell) => !x.canvas || cell < x.canvas.rows * x.canvas.columns);
  }
  return list;
}

// How much one place of an encoder's layer attends to each cell, in the mean of its heads.
const attends = ({ weights }, { members }, cells) => cells.map((cell) => sum(weights.map((head) =>
  sum(members.map((i) => sum(cell.members.map((j) => head[i][j])))))) / members.length / weights.length);

/* ---- the mode ---- */

/* The word last pointed at stays, to compare heads by. In an encoder, a cell of the canvas can be pointed at. */
const overCanvas = {
  parts: ["seen"],
  thumbnail(weights) {
    const canvas = screen(make("canvas", { "aria-hidden": true }), 128);
    view.heads.push({ canvas, weights });
    return canvas;
  },
  draw() {
    const { kind, sound, seconds } = view.canvas, encoder = view.layer.kind === "encoder";
    fill($("words"), "query", encoder ? view.query.slice(0, 1) : view.query);
    [...$("words").children].forEach((token, q) => {
      const canvas = screen(make("canvas", { "aria-hidden": true }), 192);
      paint(canvas, view.weights[q]);
      token.prepend(canvas);
      token.addEventListener("keydown", (event) => { if (event.key === "Enter" && sound) playFrom(q); });
      token.ondblclick = () => { if (sound) playFrom(q); };
    });
    $("layers").hidden = !encoder;
    $("layers").lastChild.replaceChildren(...view.layers.map((layer, i) => {
      const canvas = screen(make("canvas", { "aria-hidden": true }), 192);
      view.thumbnails.push({ canvas, layer });
      const name = layer.name === "rollout" ? layer.name : `layer ${i + 1}`;
      return radio("layer", layer.name, view.layer.name, canvas, name);
    }));
    screen($("picture"), kind === "picture" ? 768 : 1536);
    $("look").classList.toggle("wide", kind !== "picture");
    set($("picture"), { tabindex: encoder ? 0 : -1, "data-points": encoder });
    $("frame").hidden = kind !== "frames";
    $("audio").hidden = !sound;
    $("cursor").hidden = !sound;
    if (sound && $("audio").getAttribute("data-of") !== String(state.sentence)) {
      $("audio").src = sound;
      set($("audio"), { "data-of": state.sentence });
    }
    $("how").textContent = HOW[kind] + (encoder ? HOW.encoder : "") + (view.gold ? HOW.gold[kind] : "")
      + (sound ? HOW.play : "") + (view.averaged ? HOW.averaged : "");
    $("times").textContent = kind === "sound" && seconds ? `0 to ${seconds.toFixed(2)} seconds` : "";
    this.highlight("query", state.word);
    follow();
  },
  describe(side, index) {
    const row = view.weights[this.row(side, index)], canvas = view.canvas;
    const most = Math.max(...row), best = row.indexOf(most), at = readable(view.key[best].text);
    const seconds = (cell) => `${(cell * canvas.seconds / canvas.columns).toFixed(2)} s`;
    if (canvas.kind === "frames") {
      const totals = frameTotals(canvas, row), frame = totals.indexOf(Math.max(...totals));
      return `most of all in frame ${frame + 1} of ${totals.length}: ${percent(totals[frame])}`;
    }
    if (canvas.kind === "picture") return `most of all at ${at} (row, column): ${percent(most)}`;
    if (!canvas.seconds) return `most of all at ${at}: ${percent(most)}`;
    const half = median(row), gold = view.query[this.row(side, index)].gold ?? [];
    return lines(`most of all at ${seconds(best + 0.5)}: ${percent(most)}`,
      half !== null && `half of it before ${seconds(half)}`,
      gold.length > 0 && `spoken from ${seconds(Math.min(...gold))} to ${seconds(Math.max(...gold) + 1)}`);
  },
  showTip() {}, // the caption says it already
  row: (side, index) => (side === "target" && view.layer.kind === "encoder" ? 0 : index), // a label is of the whole
  highlight(side, at) {
    const index = this.row(side, at);
    const place = view.query[index];
    state.word = place ? index : null;
    paint($("picture"), place && view.weights[index], place);
    if (view.canvas.kind === "frames") paintFrame(place && view.weights[index]);
    for (const { canvas, weights } of view.heads) paint(canvas, place ? weights[index] : overall(weights));
    for (const { canvas, layer } of view.thumbnails) {
      paint(canvas, attends(layer, place ?? view.query[0], view.key), null, layer.name === "rollout");
    }
    for (const token of document.querySelectorAll(".here")) token.classList.remove("here");
    const both = view.layer.kind === "cross" || (index === 0 && view.label); // of a caption, no word is meant
    for (const part of !place ? [] : both ? ["query", "target"] : ["query"]) {
      $(`${part}-${index}`)?.classList.add("here");
    }
    const details = place
      ? [make("b", {}, readable(place.text)), lines(probability(place), this.describe("query", index))]
      : [AS_IT_IS[view.canvas.kind]];
    $("word").replaceChildren(...details);
    set($("picture"), { "aria-label": $("word").textContent });
  },
  clearHighlight() {},
  reset() { this.highlight("query", null); },
};
const AS_IT_IS = { picture: "The picture as it is.", sound: "The sound as it is.", frames: "The frames as they are." };
const HOW = {
  picture: "Bright is where the model attends, on a scale of its own for each word. Point at a word, tap it, or walk " +
    "there with the arrow keys; Escape shows the whole picture.",
  sound: "Below the spectrogram is when the model attends, on a scale of its own for each word. Point at a word, tap " +
    "it, or walk there with the arrow keys; Escape shows the sound as it is.",
  frames: "Bright is where the model attends, on a scale of its own for each word; the frame it attends to most is " +
    "shown large. Point at a word, tap it, or walk there with the arrow keys; Escape shows all frames as they are.",
  encoder: " Point at a cell to see what it attends to.",
  gold: { picture: " Outlined is the thing that a word names.", frames: " Outlined is the thing that a word names.",
    sound: " Dashed lines and bands are when a word is spoken." },
  play: " Click into the spectrogram to play from there; Enter on a word plays what it attends to. Words are marked " +
    "while what they attend to is heard.",
  averaged: " Weights of encoder layers are the mean of their heads: all would not fit into a page.",
};

const overall = (weights) => (view.layer.kind === "encoder" ? weights[0] // of all words together
  : view.key.map((_, k) => sum(weights.map((row) => row[k]))));

/* ---- painting ---- */

// A canvas in the shape of what is drawn on, with so many dots on its longer side.
function screen(canvas, longest) {
  const { naturalWidth, naturalHeight } = view.image, sound = view.canvas.kind === "sound";
  const [width, height] = sound ? [longest, longest / (longest > 1000 ? 5 : 3)] : [naturalWidth, naturalHeight];
  const scale = longest / Math.max(width, height);
  canvas.classList.add("picture");
  return Object.assign(canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
}

function paint(canvas, weights, place, floored = view.floored) {
  const brush = canvas.getContext("2d"), { width, height } = canvas, bright = weights && shares(weights, floored);
  if (view.canvas.kind === "sound") return paintSound(brush, width, height, bright, place);
  brush.imageSmoothingEnabled = view.image.naturalWidth > width; // few pixels are to be seen as such
  brush.drawImage(view.image, 0, 0, width, height);
  if (bright) lightUp(brush, bright, width, height);
  brush.fillStyle = "#fff";
  for (let i = 1, frames = frameCount(view.canvas); i < frames; i++) { // a line between frames
    brush.fillRect(i * width / frames - width / 1600, 0, width / 800, height);
  }
  if (place?.gold?.length) outline(brush, place.gold, width, height);
}

// A veil over the picture, clear and a little white where the weights are greatest; over a strip one for each frame, so
// that no light falls on the next.
function lightUp(brush, bright, width, height) {
  const { rows, columns } = view.canvas, frames = frameCount(view.canvas), across = columns / frames;
  Object.assign(brush, { imageSmoothingEnabled: true, imageSmoothingQuality: "high" });
  for (let frame = 0; frame < frames; frame++) {
    const veil = new ImageData(across, rows);
    for (let k = 0; k < across * rows; k++) {
      const share = bright[Math.floor(k / across) * columns + frame * across + k % across];
      const opaque = 1 - (DARK + (1 - DARK) * share) * (1 - GLOW * share);
      const white = 255 * GLOW * share / opaque;
      veil.data.set([white, white, white, 255 * opaque], 4 * k);
    }
    const small = make("canvas", { width: across, height: rows });
    small.getContext("2d").putImageData(veil, 0, 0);
    brush.drawImage(small, frame * width / frames, 0, width / frames, height);
  }
}

// The frame that has most of the attention, by itself.
function paintFrame(weights) {
  const canvas = $("frame"), frames = frameCount(view.canvas), whole = $("picture");
  const totals = weights ? frameTotals(view.canvas, weights) : [1];
  const frame = totals.indexOf(Math.max(...totals)), width = whole.width / frames;
  Object.assign(canvas, { width: 2 * width, height: 2 * whole.height });
  canvas.getContext("2d").drawImage(whole, frame * width, 0, width, whole.height, 0, 0, canvas.width, canvas.height);
}

function outline(brush, cells, width, height) {
  const { rows, columns } = view.canvas, [w, h] = [width / columns, height / rows], inside = new Set(cells);
  brush.beginPath();
  for (const cell of inside) {
    const [y, x] = [Math.floor(cell / columns), cell % columns];
    const line = (beyond, ...ends) => {
      if (beyond) return;
      brush.moveTo(ends[0] * w, ends[1] * h);
      brush.lineTo(ends[2] * w, ends[3] * h);
    };
    line(inside.has(cell - columns), x, y, x + 1, y);
    line(inside.has(cell + columns), x, y + 1, x + 1, y + 1);
    line(x > 0 && inside.has(cell - 1), x, y, x, y + 1);
    line(x < columns - 1 && inside.has(cell + 1), x + 1, y, x + 1, y + 1);
  }
  Object.assign(brush, { strokeStyle: "#ffb000", lineWidth: Math.max(2, width / 200), lineCap: "square" });
  brush.stroke();
}

// The spectrogram, with the borders of words where they are known, and below it attention over time. A small one is the
// curve alone.
function paintSound(brush, width, height, bright, place) {
  const large = width > 1000, top = large ? height * (1 - CURVE) : 0, step = width / view.canvas.columns;
  const color = (name) => getComputedStyle($("main")).getPropertyValue(name);
  brush.clearRect(0, 0, width, height);
  const band = (cells, from, to) => brush.fillRect(Math.min(...cells) * step, from,
    (Math.max(...cells) + 1 - Math.min(...cells)) * step, to - from);
  if (large) {
    brush.imageSmoothingEnabled = view.image.naturalWidth > width;
    brush.drawImage(view.image, 0, 0, width, top - 6);
    Object.assign(brush, { strokeStyle: "#fff", fillStyle: "#fff", lineWidth: 2, font: "26px system-ui, sans-serif" });
    brush.setLineDash([8, 6]);
    for (const word of view.spoken) {
      for (const edge of [Math.min(...word.gold), Math.max(...word.gold) + 1]) {
        brush.beginPath();
        brush.moveTo(edge * step, 0);
        brush.lineTo(edge * step, top - 6);
        brush.stroke();
      }
      brush.fillText(word.text, Math.min(...word.gold) * step + 6, 28);
    }
    brush.setLineDash([]);
  }
  if (!bright) return;
  brush.fillStyle = color("--doubt");
  if (place?.gold?.length) band(place.gold, top, height);
  brush.fillStyle = color("--accent");
  bright.forEach((share, k) =>
    brush.fillRect(k * step, height - share * (height - top), Math.ceil(step), share * (height - top)));
}

/* ---- pointing at the canvas, and playing ---- */

function cellAt(event) {
  const r = $("picture").getBoundingClientRect(), { rows, columns } = view.canvas;
  const clamp = (x, count) => Math.max(0, Math.min(Math.floor(x * count), count - 1));
  return clamp((event.clientY - r.top) / r.height, rows) * columns + clamp((event.clientX - r.left) / r.width, columns);
}

function playFrom(index) {
  const half = median(view.weights[index]);
  if (half === null) return;
  $("audio").currentTime = Math.max(0, half * view.canvas.seconds / view.canvas.columns - 0.15);
  $("audio").play();
}

// The line of what is heard, and the words that attend to it.
function follow() {
  const canvas = view?.canvas, audio = $("audio");
  if (!canvas?.sound || view.mode !== overCanvas) return;
  const share = Math.min(audio.currentTime / (canvas.seconds || audio.duration || 1), 1);
  $("cursor").style.left = `${100 * share}%`;
  const heard = playing(view.weights, Math.min(Math.floor(share * canvas.columns), canvas.columns - 1));
  [...$("words").children].forEach((token, q) => token.classList.toggle("heard", heard[q] && !audio.paused));
  if (!audio.paused) requestAnimationFrame(follow);
}

function prepareCanvas() {
  const picture = $("picture"), audio = $("audio"), points = () => view.layer.kind === "encoder";
  picture.onpointermove = picture.onpointerdown = (event) => {
    if (points()) view.mode.highlight("query", 1 + cellAt(event));
  };
  picture.onpointerleave = ({ pointerType }) => {
    if (points() && pointerType === "mouse") view.mode.highlight("query", 0);
  };
  picture.onclick = (event) => {
    if (!view.canvas.sound) return;
    const r = picture.getBoundingClientRect();
    audio.currentTime = (event.clientX - r.left) / r.width * (view.canvas.seconds || audio.duration);
    audio.play();
  };
  picture.onkeydown = (event) => {
    const { rows, columns } = view.canvas, cell = (state.word || 1) - 1;
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step || !points()) return;
    event.preventDefault();
    const clamp = (x, count) => Math.max(0, Math.min(x, count - 1));
    const row = clamp(Math.floor(cell / columns) + step[0], rows), column = clamp(cell % columns + step[1], columns);
    view.mode.highlight("query", 1 + row * columns + column);
  };
  audio.onplay = audio.onpause = audio.onseeked = audio.ontimeupdate = follow;
}
