/* Attention over what can be drawn on: a picture, the spectrogram of a sound, a strip of frames. */
import { clamp, color, lines, make, percent, radio, readable, set } from "./dom.js";
import { frameCount, frameTotals, median, playing, shares, sum, veil } from "./numbers.js";
import { attends, probability } from "./places.js";
import { tokenLine } from "./tokens.js";

const CURVE = 0.26; // the share of a sound's screen that is below its spectrogram, for attention over time
const AS_IT_IS = { picture: "The picture as it is.", sound: "The sound as it is.", frames: "The frames as they are." };
const HOW = {
  picture: "Bright is where the model attends, on a scale of its own for each word.",
  sound: "Below the spectrogram is when the model attends, on a scale of its own for each word.",
  frames: "Bright is where the model attends, on a scale of its own for each word; the frame it attends to most is " +
    "shown large.",
  words: " Point at a word, tap it, or walk there with the arrow keys; Escape shows ",
  whole: { picture: "the whole picture.", sound: "the sound as it is.", frames: "all frames as they are." },
  encoder: " Point at a cell, or walk there with the arrow keys, to see what it attends to; Escape goes back.",
  gold: { picture: " Outlined is the thing that a word names.", frames: " Outlined is the thing that a word names.",
    sound: " Dashed lines and bands are when a word is spoken." },
  play: " Click into the spectrogram to play from there; Enter on a word plays what it attends to. Words are marked " +
    "while what they attend to is heard.",
};

/* The word last pointed at stays, to compare heads by. In an encoder, a cell of the canvas can be pointed at. */
export function seenView(on) {
  const picture = make("canvas", { class: "picture main", role: "img" }), cursor = make("i", { class: "cursor" });
  const times = make("p", { class: "quiet" }), large = make("canvas", { class: "picture large", role: "img",
    "aria-label": "the frame attended to most" });
  const audio = make("audio", { controls: "", preload: "auto", "aria-label": "the sound" });
  const caption = make("figcaption", { class: "quiet" }), rows = make("div", { class: "row" });
  const layers = make("fieldset", { class: "layers" }, make("legend", {}, "Layers"), rows);
  const words = tokenLine({ label: "target, attending", side: "query",
    on: { enter: (_, index) => on.enter("query", index), choose: (_, index) => playFrom(index) } });
  words.element.classList.add("words");
  const figure = make("figure", {}, make("div", { class: "over" }, picture, cursor), times, audio, large, caption);
  const element = make("div", { class: "look" }, figure, words.element, layers);
  let view, thumbnails = [], word = null;
  rows.onchange = ({ target }) => on.layer(target.value);
  const encoder = () => view.layer.kind === "encoder";

  function draw(given, keep) {
    view = given;
    thumbnails = [];
    if (!keep) word = encoder() ? 0 : null; // what a word's number meant is another
    const { kind, sound, seconds } = view.canvas;
    words.show(encoder() ? view.query.slice(0, 1) : view.query);
    [...words.element.children].forEach((token, q) => {
      const canvas = screen(make("canvas", { "aria-hidden": true }), 192);
      paint(canvas, view.weights[q]);
      token.prepend(canvas);
    });
    layers.hidden = !encoder();
    rows.replaceChildren(...view.layers.map((layer, i) => {
      const canvas = screen(make("canvas", { "aria-hidden": true }), 192);
      thumbnails.push({ canvas, layer });
      const name = layer.name === "rollout" ? "rollout" : `layer ${i + 1}`;
      return radio("seen-layer", layer.name, view.layer.name, canvas, name);
    }));
    screen(picture, kind === "picture" ? 768 : 1536);
    element.classList.toggle("wide", kind !== "picture");
    set(picture, { tabindex: encoder() ? 0 : -1, "data-points": encoder() });
    large.hidden = kind !== "frames";
    audio.hidden = cursor.hidden = !sound;
    if (!sound) audio.pause();
    else if (audio.getAttribute("src") !== sound) audio.src = sound;
    times.textContent = kind === "sound" && seconds ? `0 to ${seconds.toFixed(2)} seconds` : "";
    highlight("query", word);
    follow();
  }

  const row = (side, index) => (side === "target" && encoder() ? 0 : index); // a label is of the whole

  function describe(index) {
    const weights = view.weights[index], canvas = view.canvas;
    const most = Math.max(...weights), best = weights.indexOf(most), at = readable(view.key[best].text);
    const seconds = (cell) => `${(cell * canvas.seconds / canvas.columns).toFixed(2)} s`;
    if (canvas.kind === "frames") {
      const totals = frameTotals(canvas, weights), frame = totals.indexOf(Math.max(...totals));
      return `most of all in frame ${frame + 1} of ${totals.length}: ${percent(totals[frame])}`;
    }
    if (canvas.kind === "picture") return `most of all at ${at} (row, column): ${percent(most)}`;
    if (!canvas.seconds) return `most of all at ${at}: ${percent(most)}`;
    const half = median(weights), gold = view.query[index].gold ?? [];
    return lines(`most of all at ${seconds(best + 0.5)}: ${percent(most)}`,
      half !== null && `half of it before ${seconds(half)}`,
      gold.length > 0 && `spoken from ${seconds(Math.min(...gold))} to ${seconds(Math.max(...gold) + 1)}`);
  }

  function highlight(side, given) {
    const index = row(side, given), place = view.query[index], weights = place && view.weights[index];
    word = place ? index : null;
    paint(picture, weights, place);
    if (view.canvas.kind === "frames") paintFrame(weights);
    for (const { canvas, weights } of view.heads) paint(canvas, place ? weights[index] : overall(weights));
    for (const { canvas, layer } of thumbnails) {
      paint(canvas, attends(layer, place ?? view.query[0], view.key), null, layer.name === "rollout");
    }
    words.mark(null, word);
    const told = place
      ? [make("b", { dir: "auto" }, readable(place.text)), lines(probability(place), describe(index))]
      : [AS_IT_IS[view.canvas.kind]];
    caption.replaceChildren(...told);
    set(picture, { "aria-label": caption.textContent });
  }

  const overall = (weights) => (encoder() ? weights[0] // of all words together
    : view.key.map((_, k) => sum(weights.map((each) => each[k]))));

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

  // Over a strip each frame has a veil of its own, so that no light falls on the next.
  function lightUp(brush, bright, width, height) {
    const { rows, columns } = view.canvas, frames = frameCount(view.canvas), across = columns / frames;
    Object.assign(brush, { imageSmoothingEnabled: true, imageSmoothingQuality: "high" });
    for (let frame = 0; frame < frames; frame++) {
      const small = make("canvas", { width: across, height: rows });
      small.getContext("2d").putImageData(new ImageData(veil(bright, view.canvas, frame), across, rows), 0, 0);
      brush.drawImage(small, frame * width / frames, 0, width / frames, height);
    }
  }

  // The frame that has most of the attention, by itself.
  function paintFrame(weights) {
    const frames = frameCount(view.canvas), totals = weights ? frameTotals(view.canvas, weights) : [1];
    const frame = totals.indexOf(Math.max(...totals)), width = picture.width / frames;
    Object.assign(large, { width: 2 * width, height: 2 * picture.height });
    large.getContext("2d").drawImage(picture, frame * width, 0, width, picture.height, 0, 0, large.width, large.height);
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

  // The spectrogram, with the borders of words where they are known, and below it attention over time. A small one is
  // the curve alone.
  function paintSound(brush, width, height, bright, place) {
    const whole = width > 1000, top = whole ? height * (1 - CURVE) : 0, step = width / view.canvas.columns;
    brush.clearRect(0, 0, width, height);
    const band = (cells, from, to) => brush.fillRect(Math.min(...cells) * step, from,
      (Math.max(...cells) + 1 - Math.min(...cells)) * step, to - from);
    if (whole) {
      brush.imageSmoothingEnabled = view.image.naturalWidth > width;
      brush.drawImage(view.image, 0, 0, width, top - 6);
      Object.assign(brush, { strokeStyle: "#fff", fillStyle: "#fff", lineWidth: 2, font: "26px system-ui" });
      brush.setLineDash([8, 6]);
      for (const spoken of view.spoken) {
        for (const edge of [Math.min(...spoken.gold), Math.max(...spoken.gold) + 1]) {
          brush.beginPath();
          brush.moveTo(edge * step, 0);
          brush.lineTo(edge * step, top - 6);
          brush.stroke();
        }
        brush.fillText(spoken.text, Math.min(...spoken.gold) * step + 6, 28);
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
    const r = picture.getBoundingClientRect(), { rows, columns } = view.canvas;
    const part = (x, count) => clamp(Math.floor(x * count), count);
    return part((event.clientY - r.top) / r.height, rows) * columns + part((event.clientX - r.left) / r.width, columns);
  }

  function playFrom(index) {
    const half = view.canvas.sound ? median(view.weights[index]) : null;
    if (half === null) return;
    playAt(Math.max(0, half * view.canvas.seconds / view.canvas.columns - 0.15));
  }

  function playAt(seconds) {
    audio.currentTime = seconds;
    audio.play().catch(() => {}); // it was paused, or its sound replaced, before it began
  }

  // The line of what is heard, and the words that attend to it.
  function follow() {
    const canvas = view?.canvas;
    if (!canvas?.sound || !element.isConnected) return;
    const share = Math.min(audio.currentTime / (canvas.seconds || audio.duration || 1), 1);
    cursor.style.left = `${100 * share}%`;
    const heard = playing(view.weights, clamp(Math.floor(share * canvas.columns), canvas.columns));
    [...words.element.children].forEach((token, q) => token.classList.toggle("heard", heard[q] && !audio.paused));
    if (!audio.paused) requestAnimationFrame(follow);
  }

  picture.onpointermove = picture.onpointerdown = (event) => {
    if (encoder()) highlight("query", 1 + cellAt(event));
  };
  picture.onpointerleave = ({ pointerType }) => { if (encoder() && pointerType === "mouse") highlight("query", 0); };
  picture.onclick = (event) => {
    if (!view.canvas.sound) return;
    const r = picture.getBoundingClientRect();
    playAt((event.clientX - r.left) / r.width * (view.canvas.seconds || audio.duration));
  };
  picture.onkeydown = (event) => {
    const { rows, columns } = view.canvas, cell = (word || 1) - 1;
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step || !encoder()) return;
    event.preventDefault();
    const y = clamp(Math.floor(cell / columns) + step[0], rows), x = clamp(cell % columns + step[1], columns);
    highlight("query", 1 + y * columns + x);
  };
  Object.assign(audio, { onplay: follow, onpause: follow, onseeked: follow, ontimeupdate: follow });

  return {
    element,
    draw,
    highlight,
    picture: () => picture,
    clear() {},
    reset: () => highlight("query", encoder() ? 0 : null),
    pause: () => audio.pause(),
    // A small canvas for a head, painted whenever another word is pointed at.
    thumbnail(given, weights) {
      const held = view;
      view = given;
      const canvas = screen(make("canvas", { "aria-hidden": true }), 128);
      view = held;
      given.heads.push({ canvas, weights });
      return canvas;
    },
    how() {
      const { kind, sound } = view.canvas;
      const moving = encoder() ? HOW.encoder : HOW.words + HOW.whole[kind];
      return HOW[kind] + moving + (view.gold ? HOW.gold[kind] : "") + (sound ? HOW.play : "");
    },
  };
}
