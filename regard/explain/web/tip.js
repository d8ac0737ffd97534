/* A small card beside what is pointed at. */
import { $, make } from "./dom.js";

// `live` where nothing else tells a screen reader the same.
export function showTip(element, title, details, { live = false, aside = "" } = {}) {
  const tip = $("tip"), r = element.getBoundingClientRect();
  tip.ariaLive = live ? "polite" : "off";
  tip.replaceChildren(make("b", {}, title), details.trim());
  tip.hidden = false;
  // Away from the lines: outside of a column, above the upper row, below all else.
  const above = aside === "above" && r.top > tip.offsetHeight;
  const left = aside === "left" ? r.left - tip.offsetWidth - 8 : aside === "right" ? r.right + 8 : r.left;
  const top = aside === "left" || aside === "right" ? r.top : above ? r.top - tip.offsetHeight - 6 : r.bottom + 6;
  const edge = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = `${Math.max(8, Math.min(left, edge)) + scrollX}px`;
  tip.style.top = `${top + scrollY}px`;
}

export function hideTip() {
  $("tip").hidden = true;
}
