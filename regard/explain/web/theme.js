/* Light or dark: as the system has it, or as was chosen. */
import { button } from "./dom.js";

const ORDER = ["", "light", "dark"], NAMES = { "": "◐ Auto", light: "○ Light", dark: "● Dark" };

// A button that goes through them; `onchange` is called when colours are others, for a canvas does not follow them.
export function themeSwitch(onchange) {
  const root = document.documentElement;
  const remembered = () => { try { return localStorage.getItem("regard-theme") ?? ""; } catch { return ""; } };
  let theme = "";
  const element = button("", () => choose(ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length]), { class: "quiet-button" });
  function choose(next) {
    theme = ORDER.includes(next) ? next : "";
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    element.textContent = NAMES[theme];
    element.ariaLabel = `Colours: ${NAMES[theme].slice(2)}`;
    try { localStorage.setItem("regard-theme", theme); } catch { /* a page in a sandbox has no storage */ }
    onchange();
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onchange);
  choose(remembered());
  return element;
}
