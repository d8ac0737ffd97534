/* The hypotheses of beam search as a tree: a column a step, the best path marked, what was pruned faint. Only the
   columns in sight are drawn. */
import { lines, make, number, percent, readable, section, set } from "./dom.js";
import { saveMenu } from "./saving.js";
import { hideTip, showTip } from "./tip.js";

const WIDE = 118, HIGH = 30, EDGE = 12, ROOM = 76; // pixels of a step, of a row, about the tree, for a token
const SIZE = 13; // of its letters
const ENDS = { closed: "finished", best: "on the best path", pruned: "pruned", open: "kept" };

// Nodes with their place: those of a step stand in the order of their parents and then of their scores, so that no two
// lines cross; the best path runs along the top.
export function layout({ nodes }) {
  const steps = [], placed = new Map();
  for (const node of nodes) (steps[node.step] ??= []).push(node);
  for (const step of steps) {
    const above = (node) => placed.get(node.parent)?.row ?? 0, best = (node) => Number(node.state === "best");
    step?.sort((a, b) => above(a) - above(b) || best(b) - best(a) || b.score - a.score)
      .forEach((node, row) => placed.set(node.id, { node, row }));
  }
  const filled = Array.from(steps, (step) => step ?? []);
  return { placed, steps: filled, rows: Math.max(0, ...filled.map((step) => step.length)) };
}

/* `onforce(ids)` hears how the output is to begin, where a branch is chosen. */
export function treeView(onforce) {
  const svg = make("svg", { class: "map tree", tabindex: 0, role: "application" }), room = make("div", {}, svg);
  const scroll = make("div", { class: "scroll" }, room), told = make("p", { class: "quiet" });
  const paths = make("ol", { class: "unseen" });
  const save = saveMenu("beam", { picture: () => whole(), json: () => tree });
  const element = section("Beam search", "The beam as a tree", save, told, scroll, paths);
  const pen = make("canvas").getContext("2d"); // which measures tokens
  let tree = null, found = null, at = null;
  scroll.onscroll = () => requestAnimationFrame(() => draw(svg, scroll.scrollLeft, scroll.clientWidth));

  function show(given) {
    tree = given;
    element.hidden = !tree?.nodes.length;
    if (element.hidden) return;
    found = layout(tree);
    at = null;
    const width = found.steps.length * WIDE + 2 * EDGE, height = found.rows * HIGH + 2 * EDGE;
    Object.assign(room.style, { width: `${width}px`, height: `${height}px` });
    const pruned = tree.nodes.filter((node) => node.state === "pruned").length;
    told.textContent = `${tree.nodes.length} hypotheses in ${found.steps.length} steps, ${tree.width} kept in each; ` +
      `${pruned} were pruned. Arrow keys walk along the branches; choose one to go on from there.`;
    set(svg, { "aria-label": "Tree of hypotheses" });
    scroll.scrollTo(0, 0);
    draw(svg, 0, scroll.clientWidth || width);
    const best = tree.nodes.filter((node) => node.state === "best").sort((a, b) => a.step - b.step);
    paths.replaceChildren(...best.map((node) => make("li", {}, describe(node).join(": "))));
  }

  const x = (node) => EDGE + node.step * WIDE, y = (row) => EDGE + (row + 0.5) * HIGH;

  function draw(svg, from, width) {
    const first = Math.max(0, Math.floor(from / WIDE) - 1), last = Math.ceil((from + width) / WIDE) + 1;
    const edges = make("g"), nodes = make("g");
    pen.font = `${SIZE}px ${getComputedStyle(svg).fontFamily}`;
    for (const step of found.steps.slice(first, last)) {
      for (const node of step) {
        const { row } = found.placed.get(node.id), parent = found.placed.get(node.parent);
        const classes = `${node.state}${node.id === at ? " here" : ""}`;
        if (parent) {
          const [a, b, c, d] = [x(parent.node) + WIDE - 34 - from, y(parent.row), x(node) - from, y(row)];
          edges.append(make("path", { class: classes, d: `M${a} ${b}C${a + 17} ${b} ${c - 17} ${d} ${c} ${d}`,
            "stroke-width": node.state === "best" ? 3 : 1 + 2 * own(node) }));
        }
        const box = make("rect", { x: x(node) - from, y: y(row) - 12, width: WIDE - 34, height: 24, rx: 5 });
        const text = make("text", { x: x(node) - from + (WIDE - 34) / 2, y: y(row), "text-anchor": "middle" },
          short(readable(node.text)));
        const group = make("g", { class: `node ${classes}` }, box, text);
        group.onpointerenter = () => tell(node, group);
        group.onpointerleave = hideTip;
        group.onclick = () => onforce(path(node));
        nodes.append(group);
      }
    }
    set(svg, { width, height: found.rows * HIGH + 2 * EDGE }).replaceChildren(edges, nodes);
  }

  function whole() {
    const copy = make("svg", { class: "map tree" });
    element.append(copy);
    draw(copy, 0, found.steps.length * WIDE + 2 * EDGE);
    return copy;
  }

  // How probable its token is after those before; nodes have log p of all of them.
  const own = (node) => Math.exp(node.log_prob - (found.placed.get(node.parent)?.node.log_prob ?? 0));
  const describe = (node) => [readable(node.text),
    lines(found.placed.has(node.parent) && `probability ${percent(own(node))}`,
      `log p so far ${number(node.log_prob)}, score ${number(node.score)}`, ENDS[node.state])];

  function tell(node, group) {
    showTip(group, ...describe(node), { live: true });
  }

  // A token as far as there is room for it.
  function short(text) {
    const fits = (part) => pen.measureText(part).width <= ROOM, letters = [...text];
    if (fits(text)) return text;
    while (letters.length > 1 && !fits(`${letters.join("")}…`)) letters.pop();
    return `${letters.join("")}…`;
  }

  // The tokens from the root, which is a mark, to a node.
  function path(node) {
    const parent = found.placed.get(node.parent)?.node;
    return parent ? [...path(parent), node.token] : [];
  }

  svg.onblur = hideTip;
  svg.onkeydown = (event) => {
    if (event.key === "Enter" && found.placed.get(at)?.node.step) return onforce(path(found.placed.get(at).node));
    const here = found.placed.get(at), siblings = here && found.steps[here.node.step];
    const best = (list) => list.find((node) => node.state === "best") ?? list[0];
    const next = !here ? best(found.steps.find((step) => step.length)) : {
      ArrowRight: best(tree.nodes.filter((node) => node.parent === at)),
      ArrowLeft: found.placed.get(here.node.parent)?.node,
      ArrowDown: siblings[here.row + 1],
      ArrowUp: siblings[here.row - 1],
    }[event.key];
    if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
    if (!next) return;
    at = next.id;
    const left = x(next) - WIDE, right = x(next) + 2 * WIDE - scroll.clientWidth;
    scroll.scrollLeft = Math.max(Math.min(scroll.scrollLeft, left), right);
    scroll.scrollTop = Math.max(0, y(found.placed.get(at).row) - scroll.clientHeight / 2);
    draw(svg, scroll.scrollLeft, scroll.clientWidth);
    tell(next, svg.querySelector(".node.here"));
  };

  return { element, show, draw: () => { if (tree?.nodes.length && element.isConnected) show(tree); } };
}
