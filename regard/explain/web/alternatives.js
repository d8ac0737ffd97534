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
      const choose = (each) => {
        element.hidden = true;
        onforce([...tokens.slice(0, i).map((token) => token.id), each.id]);
      };
      return make("div", {}, make("h3", {}, "Instead of ", make("bdi", {}, readable(text))),
        make("ul", {}, ...list.map((each) => make("li", {}, alternative(each, each.id === id, () => choose(each))))));
    }));
    element.hidden = !columns.children.length;
    element.querySelector("[aria-current=true]")?.focus();
  }

  return { element, show, close };
}

function alternative({ text, log_prob }, current, onclick) {
  const share = log_prob === null ? 0 : Math.exp(log_prob);
  const found = button(make("bdi", {}, readable(text)), onclick, { class: "alternative", "aria-current": current });
  found.append(make("span", { class: "quiet" }, percent(share)));
  found.style.setProperty("--p", share);
  return found;
}
