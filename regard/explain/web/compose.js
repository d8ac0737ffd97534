/* What a model is given: a text that is typed, a picture that is dropped, a sentence that is spoken. */
import { button, make } from "./dom.js";
import { base64, record, toWav } from "./sound.js";

const LARGEST = 1024; // pixels of a picture's longer side that are sent
const NAMES = { text: "Text", image: "Picture", audio: "Recording", video: "Clip" };

/* A field for each source of a model. `onrun` is called when the input is to be used; `get` gives it as the API takes
   it, or null where something is missing. */
export function composer(onrun) {
  const element = make("div", { class: "compose" });
  let parts = [], kinds = "";

  function show(sources) {
    const wanted = sources.length ? sources : ["text"];
    if (wanted.join() === kinds) return;
    kinds = wanted.join();
    for (const part of parts) part.close?.();
    parts = wanted.map((kind, i) => FIELDS[kind](wanted.length > 1 ? `${NAMES[kind]} ${i + 1}` : NAMES[kind], onrun));
    element.replaceChildren(...parts.map((part) => part.element));
  }

  return {
    element,
    show,
    focus: () => element.querySelector("textarea, button, input")?.focus(),
    get() {
      const values = parts.map((part) => part.get());
      return values.includes(null) ? null : values.length === 1 ? values[0] : values;
    },
    set(text) {
      (parts.length > 1 ? listed(text) : [text]).forEach((one, i) => {
        if (typeof one === "string") parts[i]?.set?.(one);
      });
    },
    // Only what was typed goes into a link; of several sources it is a list.
    get text() {
      const values = parts.map((part) => (part.set ? part.get() ?? "" : null));
      return values.length === 1 ? values[0] : values.some(Boolean) ? JSON.stringify(values) : null;
    },
  };
}

function listed(text) {
  try {
    const found = JSON.parse(text);
    return Array.isArray(found) ? found : [];
  } catch {
    return []; // a link may say anything
  }
}

function textField(name, onrun) {
  const area = make("textarea", { dir: "auto", rows: 2, "aria-label": name, placeholder: "Type a sentence",
    autocapitalize: "off", spellcheck: "false" });
  area.onkeydown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    onrun();
  };
  return { element: area, get: () => (area.value.trim() ? area.value.trim().replace(/\s+/g, " ") : null),
    set: (text) => { area.value = text; } };
}

// A place to drop a file into, with a button that asks for one; `take` makes of it what is sent, and its preview. Of
// two files the later one counts, though it may be read sooner.
function fileField(name, accept, take, onrun, ...more) {
  const input = make("input", { type: "file", accept, hidden: "", "aria-label": `Choose a ${name.toLowerCase()}` });
  const shown = make("div", { class: "preview" }), told = make("p", { class: "quiet", role: "status" });
  const element = make("div", { class: "drop" }, shown, make("div", { class: "row" },
    button(`Choose a ${name.toLowerCase()}`, choose), ...more, input),
    make("p", { class: "quiet" }, "or drop it here"), told);
  let data = null, turn = 0;
  function choose() {
    input.value = ""; // the same file again is a change, too
    input.click();
  }
  function put(taken) {
    turn++;
    told.textContent = "";
    data = taken.data;
    shown.replaceChildren(taken.preview);
    onrun();
  }
  async function use(file) {
    if (!file) return;
    const own = ++turn, taken = await take(file).catch(() => null);
    if (own !== turn) return;
    if (taken) put(taken);
    else told.textContent = `${file.name} cannot be read as a ${name.toLowerCase()}.`;
  }
  input.onchange = () => use(input.files[0]);
  element.ondragover = (event) => { event.preventDefault(); element.classList.add("over-drop"); };
  element.ondragleave = () => element.classList.remove("over-drop");
  element.ondrop = (event) => {
    event.preventDefault();
    element.classList.remove("over-drop");
    use(event.dataTransfer.files[0]);
  };
  return { element, told, get: () => data && { data }, put };
}

function pictureField(name, onrun) {
  return fileField(name, "image/*", async (file) => {
    const bitmap = await createImageBitmap(file), scale = Math.min(1, LARGEST / Math.max(bitmap.width, bitmap.height));
    const canvas = Object.assign(make("canvas", { class: "picture" }),
      { width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)) });
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    const address = canvas.toDataURL("image/png");
    return { data: address.slice(address.indexOf(",") + 1),
      preview: make("img", { src: address, alt: "the picture that was chosen" }) };
  }, onrun);
}

function soundField(name, onrun) {
  const played = (bytes) => {
    const data = base64(bytes);
    return { data, preview: make("audio", { controls: "", src: `data:audio/wav;base64,${data}`,
      "aria-label": "the recording that was chosen" }) };
  };
  let stop = null, asking = false, closed = false; // what ends a recording; whether the microphone is being asked for
  async function begin() {
    if (asking) return;
    asking = true;
    try {
      stop = await record();
      if (closed) end();
    } catch {
      field.told.textContent = "The microphone cannot be used; allow it, or choose a file.";
    }
    asking = false;
  }
  function end() {
    const recording = stop().catch(() => { field.told.textContent = "Nothing was recorded."; });
    stop = null;
    return recording;
  }
  const microphone = button("Record", async () => {
    const recording = stop ? end() : begin();
    const drawn = () => {
      microphone.textContent = stop ? "Stop" : "Record";
      microphone.classList.toggle("recording", Boolean(stop));
    };
    drawn();
    const bytes = await recording;
    drawn();
    if (bytes) field.put(played(bytes));
  });
  const field = fileField(name, "audio/*", async (file) => played(await toWav(file)), onrun, microphone);
  function close() {
    closed = true;
    if (stop) end();
  }
  return { ...field, close };
}

const clipField = (name, onrun) => fileField(name, "video/*,image/gif", async (file) =>
  ({ data: base64(new Uint8Array(await file.arrayBuffer())), preview: file.name }), onrun);
const FIELDS = { text: textField, image: pictureField, audio: soundField, video: clipField };
