/* What both pages do with an explanation and with the window. */
import { make } from "./dom.js";

// A canvas can only be painted with a picture that has been read.
export async function prepare(x) {
  await Promise.all((x.by_source ?? []).map(prepare));
  if (!x.canvas) return;
  x.image = make("img", { src: x.canvas.pixels, alt: `the ${x.canvas.kind}` });
  await x.image.decode();
}

// Draw again when the width changes (the height does not matter, and on a phone it changes at every scroll); Escape
// takes back what is pointed at.
export function redrawn(draw, reset) {
  let width = innerWidth;
  addEventListener("resize", () => {
    if (width !== innerWidth) draw();
    width = innerWidth;
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") reset(); });
}
