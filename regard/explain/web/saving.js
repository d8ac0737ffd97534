/* What is on the screen as a file: a picture for print, pixels, the data. */
import { button, make, set } from "./dom.js";

const STYLES = ["fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray", "font-size",
  "font-family", "font-weight", "dominant-baseline", "text-anchor", "visibility"];

const UNFIT = /[\0-\x08\v\f\x0e-\x1f\ufffe\uffff]/g; // characters that XML cannot have

export function download(name, content, type) {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const address = URL.createObjectURL(blob);
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

/* A menu with what can be saved. `picture()` gives an <svg>, a <canvas> or a box of tokens with lines; `json()` gives
   data. */
export function saveMenu(name, { picture, json }) {
  const menu = make("details", { class: "menu" });
  const item = (text, save) => button(text, () => { menu.open = false; save(); });
  menu.append(make("summary", {}, "Save"), make("div", {},
    item("PNG", async () => download(`${name}.png`, await pixels(picture()))),
    item("SVG", () => download(`${name}.svg`, drawing(picture()), "image/svg+xml")),
    item("JSON", () => download(`${name}.json`, JSON.stringify(json(), (key, value) =>
      (key === "image" || key === "rollout" ? undefined : value)), "application/json"))));
  menu.onkeydown = (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    menu.firstChild.focus();
  };
  menu.addEventListener("focusout", ({ relatedTarget }) => { if (!menu.contains(relatedTarget)) menu.open = false; });
  return menu;
}

// SVG that stands by itself: what the style sheet says is written into it.
export function drawing(shown) {
  const { width, height, content } = shown instanceof HTMLCanvasElement ? ofCanvas(shown)
    : shown instanceof SVGElement ? ofSvg(shown) : ofBox(shown);
  const paper = getComputedStyle(document.body).getPropertyValue("background-color");
  const whole = make("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` },
    make("rect", { width, height, fill: paper }), ...content);
  return new XMLSerializer().serializeToString(whole).replace(UNFIT, "\ufffd");
}

async function pixels(shown) {
  if (shown instanceof HTMLCanvasElement) return new Promise((done) => shown.toBlob(done));
  const picture = new Image();
  picture.src = `data:image/svg+xml,${encodeURIComponent(drawing(shown))}`;
  await picture.decode();
  const scale = Math.min(2, 12000 / Math.max(picture.width, picture.height)); // no canvas is larger
  const canvas = Object.assign(make("canvas"), { width: picture.width * scale, height: picture.height * scale });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done));
}

function styled(element) {
  const copy = element.cloneNode(true), from = [element, ...element.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, i) => {
    const style = getComputedStyle(from[i]);
    for (const name of STYLES) if (style[name]) node.setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "tabindex", "role"]) node.removeAttribute(name);
  });
  return copy;
}

function ofSvg(svg) {
  const found = { width: Number(svg.getAttribute("width")), height: Number(svg.getAttribute("height")),
    content: [...styled(svg).children] };
  if (!svg.hasAttribute("role")) svg.remove(); // it was drawn to be saved
  return found;
}

function ofCanvas(canvas) {
  const { width, height } = canvas;
  const image = document.createElementNS("http://www.w3.org/2000/svg", "image");
  return { width, height, content: [set(image, { width, height, href: canvas.toDataURL() })] };
}

// Tokens become text, and lines stay; of small maps, each a picture. All that is drawn is there, however far the box is
// scrolled; of a long text that is what was in sight.
function ofBox(box) {
  const origin = box.getBoundingClientRect(), drawn = make("g"), from = { x: box.scrollLeft, y: box.scrollTop };
  for (const svg of box.querySelectorAll(":scope > svg")) drawn.append(...styled(svg).children);
  let top = Infinity, bottom = 0;
  for (const element of box.querySelectorAll(".token, th, caption, canvas")) {
    const r = element.getBoundingClientRect(), style = getComputedStyle(element.querySelector("span, bdi") ?? element);
    const x = r.left - origin.left + from.x, y = r.top - origin.top + from.y;
    [top, bottom] = [Math.min(top, y), Math.max(bottom, y + r.height)];
    if (element instanceof HTMLCanvasElement) {
      drawn.append(set(ofCanvas(element).content[0], { x, y, width: r.width, height: r.height,
        preserveAspectRatio: "none", "image-rendering": style.imageRendering }));
      continue;
    }
    drawn.append(make("text", { x: x + r.width / 2, y: y + r.height / 2 + 5, "text-anchor": "middle", fill: style.color,
      "font-size": style.fontSize, "font-family": style.fontFamily }, element.textContent));
  }
  top = Math.max(0, top - 4);
  set(drawn, { transform: `translate(0 ${-top})` });
  return { width: Math.ceil(box.scrollWidth), height: Math.ceil(bottom - top + 4), content: [drawn] };
}
