/* The source as it was given and the target with the probability of each token. */
import { lines, make, number, percent } from "./dom.js";
import { sum } from "./numbers.js";
import { candidateTexts, named, places, probability, text } from "./places.js";
import { hideTip, showTip } from "./tip.js";
import { tokenLine } from "./tokens.js";

// The source of an explanation, as it was given; of several each in turn.
export function given(x) {
  if (x.image) return [x.image.cloneNode()];
  if (!x.by_source) return [text(x.source, x.source_word, x.candidates && x.places)];
  return x.parts.flatMap(({ name, start, end }) => {
    const drawn = x.by_source.find((each) => each.name === name);
    return [drawn ? drawn.image.cloneNode() : text(x.source.slice(start, end), x.source_word.slice(start, end)), " "];
  });
}

/* `on` hears of it: pointed(index or null), and choose(index) where there are alternatives to ask for. */
export function outputPanel(on = {}) {
  const source = make("p", { class: "source", dir: "auto" }), total = make("p", { class: "quiet" });
  const candidates = make("ol", { class: "quiet candidates", "aria-label": "candidates for each blank" });
  const names = [make("span", { class: "quiet" }), make("span", { class: "quiet" })];
  let list = [];
  const target = tokenLine({ label: "target with probabilities", side: "target", on: {
    enter(_, index, token) {
      on.pointed?.(index);
      const place = list[index], details = lines(probability(place), ...candidateTexts(place.candidates));
      if (details) showTip(token, named(place), details);
    },
    leave() { hideTip(); on.pointed?.(null); },
    choose: (_, index, token) => on.choose?.(index, token),
  } });
  target.element.classList.add("written");
  const drawn = make("div");
  const texts = make("div", { class: "texts" }, names[0], source, names[1], target.element);
  const element = make("div", {}, drawn, texts, candidates, total);

  function show(x, unit, { forced = 0, sourceShown = true, differs = () => false, hint = "" } = {}) {
    const whole = x.places?.[0] === -1; // a label or a number
    const alt = `the picture that the model wrote for ${text(x.source, x.source_word)}`;
    drawn.replaceChildren(...(x.drawn ? [make("img", { class: "drawn", src: x.drawn, alt })] : []));
    source.replaceChildren(...given(x));
    names[0].hidden = names[1].hidden = source.hidden = !sourceShown;
    texts.classList.toggle("alone", !sourceShown);
    const logs = x.log_probs.includes(null) ? -Infinity : sum(x.log_probs);
    total.textContent = x.log_probs.length === 0 ? "" : whole ? `${probability({ log: x.log_probs[0] })}.` :
      "The bar under a token is its probability. " +
      `All together: log p ${number(logs)}, or ${percent(Math.exp(logs / x.log_probs.length))} a piece.` + hint;
    const titles = x.candidates ? ["Text", "Filled in"] : x.places ? [x.canvas || x.by_source ? "Source" : "Text", "Predicted"]
      : x.given ? ["Given", "Written"] : ["Source", "Target"];
    names.forEach((name, i) => { name.textContent = titles[i]; });
    candidates.replaceChildren(...(x.candidates ?? []).map((list, i) => make("li", {},
      `${x.source[x.places[i]]}: ${candidateTexts(list).join(", ")}`)));
    candidates.hidden = !x.candidates;
    list = places(x.target, x.target_word, x.log_probs, unit, { candidates: x.candidates });
    for (const place of list) {
      place.forced = place.members.some((i) => i < forced);
      place.differs = place.members.some(differs);
    }
    if (whole) list[0].plain = true;
    target.show(list);
  }

  const mark = (index) => target.mark(null, index ?? undefined);
  return { element, show, mark, walk: target.walk, place: (index) => list[index] };
}
