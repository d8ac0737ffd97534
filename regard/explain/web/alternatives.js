/* What might have stood in a place, with probabilities; one can be chosen. */
import { button, make, percent, readable } from "./dom.js";

/* `onforce(ids)` hears how the output is to begin. */
export function alternativesPanel(onforce) {
  const columns = make("div", { class: "columns-of-choices" });
  const element = make("div", { class: "alternatives", role: "group", "aria-label": "Alternatives" }, columns);
  element.hidden = true;
  let back = null;
  element.onkeydown = (event) => {
    if (event.key === "Escape") { event.stopPropagation(); close(); }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const all = [...element.querySelectorAll("button")], next = step && all[all.indexOf(event.target) + step];
    if (next) { event.preventDefault(); next.focus(); }
  };

  function close() {
    element.hidden = true;
    back?.focus();
    back = null;
  }

  // Of the tokens `members` of an output; `token` gets the focus back.
  function show(tokens, members, token) {
    back = token;
    columns.replaceChildren(...members.filter((i) => tokens[i]).map((i) => {
      const { text, id, alternatives } = tokens[i];
      const list = alternatives.some((each) => each.id === id) ? alternatives : [...alternatives, tokens[i]];
      return make("div", {}, make("h3", {}, "Instead of ", make("bdi", {}, readable(text))), make("ul", {}, ...list.map((each) => {
        const share = each.log_prob === null ? 0 : Math.exp(each.log_prob);
        const choose = button(make("bdi", {}, readable(each.text)), () => {
          element.hidden = true;
          onforce([...tokens.slice(0, i).map((token) => token.id), each.id]);
        }, { class: "alternative", "aria-current": each.id === id });
        choose.append(make("span", { class: "quiet" }, percent(share)));
        choose.style.setProperty("--p", share);
        return make("li", {}, choose);
      })));
    }));
    element.hidden = !columns.children.length;
    element.querySelector("[aria-current=true]")?.focus();
  }

  return { element, show, close };
}
