/* A line of tokens that can be pointed at, tapped, and walked along with the arrow keys. */
import { lines, make, visible } from "./dom.js";
import { candidateTexts, named, probability } from "./places.js";

/* `on` hears of it: enter(side, index, element), leave(), and, if given, choose(side, index, element) for a click or
   Enter, reach(index) before a token that is not drawn is walked to. Only tokens of the range are drawn. */
export function tokenLine({ label, side, on }) {
  const element = make("ol", { class: "tokens", dir: "auto", role: "listbox", "aria-label": label });
  let list = [], drawn = new Map(), at = 0;

  function token(place, i) {
    const told = lines(probability(place), ...candidateTexts(place.candidates)).replaceAll("\n", ", ");
    // <bdi> keeps a mark such as <s> from setting the direction of a line of Arabic or Hebrew.
    const shown = place.plain ? [place.text] : visible(place.text, "span"); // in a label a space is a space
    const item = make("li", { class: "token", role: "option", tabindex: i === at ? 0 : -1, "aria-selected": false,
      "aria-label": told ? `${named(place)}: ${told}` : named(place), "data-index": i, "aria-posinset": i + 1,
      "aria-setsize": list.length }, make(place.mark ? "bdi" : "span", { class: place.mark ? "mark" : "" }, ...shown));
    if (place.predicted) {
      item.append(make("bdi", { class: "predicted" }, "→", ...visible(place.predicted.text, "span")));
    }
    for (const name of ["given", "boundary", "forced", "differs"]) item.classList.toggle(name, Boolean(place[name]));
    if (place.log !== undefined) {
      item.classList.add("scored");
      item.style.setProperty("--p", place.log === null ? 0 : Math.exp(place.log));
    }
    drawn.set(i, item);
    return item;
  }

  const found = (event) => event.target.closest?.(".token");
  const index = (item) => Number(item.dataset.index);
  const enter = (event) => {
    const item = found(event), clicked = event.type === "focusin" && !item?.matches(":focus-visible");
    if (item && !clicked) on.enter?.(side, index(item), item);
  };
  const leave = (event) => {
    if (!found(event)) return;
    on.leave?.();
    const focused = element.contains(document.activeElement) && document.activeElement;
    if (focused && event.type === "pointerout") on.enter?.(side, index(focused), focused);
  };
  Object.assign(element, { onpointerover: enter, onpointerout: leave });
  element.addEventListener("focusin", enter);
  element.addEventListener("focusout", leave);
  element.onclick = (event) => {
    const item = found(event);
    if (item) walk(index(item)), on.choose?.(side, index(item), item);
  };
  element.onkeydown = (event) => {
    const item = found(event);
    if (!item) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      on.choose?.(side, index(item), item);
    }
    const ahead = getComputedStyle(element).direction === "rtl" ? -1 : 1;
    const step = { ArrowRight: ahead, ArrowLeft: -ahead, ArrowDown: 1, ArrowUp: -1 }[event.key];
    const next = { Home: 0, End: list.length - 1 }[event.key] ?? (step && index(item) + step);
    if (next === undefined || !list[next]) return;
    event.preventDefault();
    walk(next);
  };

  // The tab key stops once in each line, where one last was.
  function walk(next) {
    drawn.get(at)?.setAttribute("tabindex", -1);
    at = next;
    if (!drawn.has(next)) on.reach?.(side, next);
    drawn.get(next)?.setAttribute("tabindex", 0);
    drawn.get(next)?.focus();
  }

  return {
    element,
    at: (i) => drawn.get(i),
    // Draw tokens `from` to `to` of a list, which is new unless it is the same one.
    show(places, from = 0, to = places.length) {
      if (places !== list) at = 0;
      const focused = element.contains(document.activeElement);
      list = places;
      drawn = new Map();
      element.replaceChildren(...places.slice(from, to).map((place, i) => token(place, from + i)));
      if (!drawn.has(at)) drawn.get(from)?.setAttribute("tabindex", 0);
      if (focused) drawn.get(at)?.focus({ preventScroll: true });
    },
    // Light on each token by its weight, and a frame about one; nothing given: none.
    mark(weights, here) {
      for (const [i, item] of drawn) {
        item.classList.toggle("here", i === here);
        item.classList.toggle("lit", Boolean(weights));
        if (weights) item.style.setProperty("--w", Math.sqrt(Math.min(weights(i), 1))); // pale on a whole token
      }
    },
    walk,
    focus: () => drawn.get(at)?.focus(),
  };
}
