/* Elements, and how numbers and tokens are written. */

const SVG = ["svg", "g", "rect", "path", "text", "tspan", "circle"];

export const $ = (id) => document.getElementById(id);

export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// Children that are strings become text: no token is ever read as HTML.
export function make(tag, attributes = {}, ...children) {
  const svg = SVG.includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return set(element, attributes);
}

export function button(text, onclick, attributes = {}) {
  const element = make("button", { type: "button", ...attributes }, text);
  element.onclick = onclick;
  return element;
}

// One of several: a radio button that is not drawn, so that arrow keys work by themselves.
export function radio(name, value, chosen, ...content) {
  const input = make("input", { type: "radio", name, value });
  input.checked = value === chosen;
  return make("label", { class: "choice" }, input, ...content);
}

let groups = 0;

// Several radio buttons under a legend. `onchange` hears which one was chosen, as it was given.
export function choices(legend, onchange) {
  const name = `choice-${groups++}`, row = make("div", { class: "row" });
  const element = make("fieldset", {}, make("legend", {}, legend), row);
  let values = [];
  element.onchange = ({ target }) => {
    if (target.name !== name) return;
    onchange(values[Number(target.value)]);
    row.querySelector(":checked")?.focus({ preventScroll: true }); // the buttons may have been drawn anew
  };
  const show = (list, chosen, draw = (value) => [String(value)]) => {
    values = list;
    row.replaceChildren(...list.map((value, i) => radio(name, i, list.indexOf(chosen), ...draw(value, i))));
  };
  return { element, row, show };
}

export const percent = (x) => (x >= 0.0995 || x < 0.0005 ? Math.round(100 * x) : (100 * x).toFixed(1)) + "%";
export const number = (x) => (x === -Infinity ? "−∞" : x.toFixed(2).replace("-", "−"));
export const counted = (count, name) => `${count} ${name}${count === 1 ? "" : "s"}`;
export const readable = (text) => text.replaceAll("▁", " ").trim() || "␣";
export const lines = (...parts) => parts.filter(Boolean).join("\n");

// Spaces, and SentencePiece's mark for them, are to be seen but faintly; a control character as its escape.
export function visible(text, tag) {
  const printed = text.replace(/[\0-\x1f]/g, (c) => JSON.stringify(c).slice(1, -1));
  return printed.split(/([▁\s]+)/).filter(Boolean)
    .map((part) => (/[▁\s]/.test(part) ? make(tag, { class: "faint" }, "␣".repeat(part.length)) : part));
}

// A colour of the palette as a canvas takes it.
export function color(name) {
  const probe = make("i", { hidden: "" });
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

// The head of a table; the last column may have a name that only a screen reader tells.
export function tableHead(names, unseen) {
  const last = unseen ? make("th", { scope: "col" }, make("span", { class: "unseen" }, unseen)) : null;
  return make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)), last));
}

// A picture that a model wrote, small.
export const picture = (src) => make("img", { src, alt: "a picture that the model wrote" });

// A control with its name before it.
export const field = (name, control) =>
  make("label", { class: "inline" }, make("span", { class: "quiet" }, name), control);

// A part of the page under a heading, with a tool beside that; `name` is what a screen reader calls it.
export const section = (name, heading, tool, ...content) => make("section", { "aria-label": name },
  make("header", {}, make("h2", {}, heading), tool), ...content);

export const clamp = (x, count) => Math.max(0, Math.min(x, count - 1));

// Says something to a screen reader, once.
export function announce(text) {
  $("live").textContent = text;
}

// A file that is dropped beside the place for it would be opened instead of the page.
export function refuseFile(event) {
  if (event.defaultPrevented || !event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  event.dataTransfer.dropEffect = "none";
}
