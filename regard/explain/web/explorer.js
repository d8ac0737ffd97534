/* The page that a server brings: it asks which models there are and shows its views. */
import { ask, useKey } from "./api.js";
import { compareView } from "./compare.js";
import { documentView } from "./documents.js";
import { $, announce, button, choices, field, make, refuseFile } from "./dom.js";
import { exploreView } from "./explore.js";
import { readFragment, writeFragment } from "./fragment.js";
import { redrawn } from "./prepare.js";
import { themeSwitch } from "./theme.js";

const NAMES = { explore: "Explore", compare: "Compare", document: "Document" };
let current = "explore", views = {}, ready = false;

const tabs = choices("View", (name) => open(name));
tabs.element.classList.add("switch", "tabs");

function open(name) {
  current = Object.hasOwn(views, name) ? name : "explore";
  tabs.show(Object.keys(views), current, (each) => [NAMES[each]]);
  for (const [each, view] of Object.entries(views)) view.element.hidden = each !== current;
  views[current].draw();
  remember();
}

function remember() {
  if (ready) writeFragment({ show: current === "explore" ? null : current, ...views[current].state });
}

async function share() {
  remember();
  try {
    await navigator.clipboard.writeText(location.href);
    announce("The link was copied.");
    shareButton.textContent = "Copied";
  } catch {
    shareButton.textContent = "In the address bar";
  }
  setTimeout(() => { shareButton.textContent = "Share"; }, 2000);
}
const shareButton = button("Share", share, { class: "quiet-button", title: "copy a link to what is shown" });

addEventListener("dragover", refuseFile);
addEventListener("drop", refuseFile);

async function start() {
  const answer = await ask("models"), models = answer.models ?? answer.data ?? answer;
  if (!models.length) return $("main").replaceChildren("There is no model here.");
  const explore = exploreView(models, remember);
  views = { explore, ...(models.length > 1 && { compare: compareView(models, remember) }),
    document: documentView(models, (name, text) => { open("explore"); explore.open(name, text); }, remember) };
  $("main").replaceChildren(...Object.values(views).map((view) => view.element));
  $("tools").append(tabs.element, shareButton, themeSwitch(() => views[current]?.draw()));
  const saved = readFragment("forced", "edits", "beam", "models");
  open(saved.show ?? "explore");
  ready = true;
  views[current].restore(saved);
  redrawn(() => views[current].draw(), () => views[current].reset());
}

$("main").replaceChildren(make("p", { class: "quiet" }, "Asking the server for its models …"));
start().catch(refused);

// A server may ask for a key.
function refused(error) {
  const input = make("input", { type: "password", autocomplete: "off" });
  const use = () => { useKey(input.value.trim()); start().catch(refused); };
  input.onkeydown = (event) => { if (event.key === "Enter") use(); };
  $("main").replaceChildren(make("p", { role: "alert" }, error.message));
  if (error.status !== 401) return;
  $("main").append(make("div", { class: "row" }, field("API key", input), button("Use it", use)));
  input.focus();
}
