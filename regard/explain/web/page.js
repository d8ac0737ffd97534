/* A page by itself: explanations that were saved in it, and no model to ask. */
import { attentionPanel } from "./attention.js";
import { $, announce, choices, make } from "./dom.js";
import { readFragment, writeFragment } from "./fragment.js";
import { given, outputPanel } from "./output.js";
import { text } from "./places.js";
import { prepare, redrawn } from "./prepare.js";
import { themeSwitch } from "./theme.js";

const data = JSON.parse($("data").textContent);
const saved = readFragment("sentence");
let sentence = data[saved.sentence] ? saved.sentence : 0;

const attention = attentionPanel({ pointed: (index) => output.mark(index), changed: draw });
const output = outputPanel({ pointed: (index) => (index === null ? attention.leave() : attention.point(index)) });
const list = choices("Sentences", (chosen) => { sentence = data.indexOf(chosen); draw(); });

function draw() {
  const x = data[sentence];
  attention.show(x);
  output.show(x, attention.unit);
  writeFragment({ sentence: sentence || null, ...attention.chosen });
  announce(text(x.target, x.target_word));
}

function start() {
  attention.restore(saved);
  list.show(data, data[sentence], (x) => [make("span", { dir: "auto" }, ...given(x)),
    make("span", { dir: "auto", class: "quiet" }, text(x.target, x.target_word))]);
  $("nav").append(list.element);
  $("nav").hidden = data.length < 2;
  $("layout").classList.toggle("many", data.length > 1);
  $("main").replaceChildren(make("section", { "aria-label": "Text" }, output.element), attention.element);
  $("tools").append(themeSwitch(() => attention.draw()));
  draw();
  redrawn(() => attention.draw(), () => attention.reset());
}

if (data.length) Promise.all(data.map(prepare)).then(start);
else $("main").replaceChildren("There are no sentences to show.");
