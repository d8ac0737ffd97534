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
    set(texts) { [texts].flat().forEach((text, i) => { if (typeof text === "string") parts[i]?.set?.(text); }); },
    // Only what was typed goes into a link.
    get text() {
      const values = parts.map((part) => (part.set ? part.get() ?? "" : null));
      return values.length === 1 ? values[0] : values.every((x) => x !== null) ? values : null;
    },
  };
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

// A place to drop a file into, with a button that asks for one.
function fileField(name, accept, take, onrun, ...more) {
  const input = make("input", { type: "file", accept, hidden: "", "aria-label": `Choose a ${name.toLowerCase()}` });
  const shown = make("div", { class: "preview" }), told = make("p", { class: "quiet", role: "status" });
  const element = make("div", { class: "drop" }, shown, make("div", { class: "row" },
    button(`Choose a ${name.toLowerCase()}`, () => input.click()), ...more, input),
    make("p", { class: "quiet" }, "or drop it here"), told);
  let data = null;
  const use = async (file) => {
    if (!file) return;
    told.textContent = "";
    try {
      data = await take(file, shown);
      onrun();
    } catch {
      told.textContent = `${file.name} cannot be read as a ${name.toLowerCase()}.`;
    }
  };
  input.onchange = () => use(input.files[0]);
  element.ondragover = (event) => { event.preventDefault(); element.classList.add("over-drop"); };
  element.ondragleave = () => element.classList.remove("over-drop");
  element.ondrop = (event) => {
    event.preventDefault();
    element.classList.remove("over-drop");
    use(event.dataTransfer.files[0]);
  };
  return { element, told, shown, get: () => data && { data }, put: (given) => { data = given; } };
}

function pictureField(name, onrun) {
  return fileField(name, "image/*", async (file, shown) => {
    const bitmap = await createImageBitmap(file), scale = Math.min(1, LARGEST / Math.max(bitmap.width, bitmap.height));
    const canvas = Object.assign(make("canvas", { class: "picture" }),
      { width: Math.round(bitmap.width * scale), height: Math.round(bitmap.height * scale) });
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    const address = canvas.toDataURL("image/png");
    shown.replaceChildren(make("img", { src: address, alt: "the picture that was chosen" }));
    return address.slice(address.indexOf(",") + 1);
  }, onrun);
}

function soundField(name, onrun) {
  const play = (bytes, shown) => {
    const data = base64(bytes);
    shown.replaceChildren(make("audio", { controls: "", src: `data:audio/wav;base64,${data}`,
      "aria-label": "the recording that was chosen" }));
    return data;
  };
  let stop = null;
  const microphone = button("Record", async () => {
    if (stop) {
      const end = stop;
      stop = null;
      microphone.textContent = "Record";
      microphone.classList.remove("recording");
      field.put(play(await end(), field.shown));
      onrun();
      return;
    }
    try {
      stop = await record();
      microphone.textContent = "Stop";
      microphone.classList.add("recording");
    } catch {
      field.told.textContent = "The microphone cannot be used; allow it, or choose a file.";
    }
  });
  const field = fileField(name, "audio/*", async (file, shown) => play(await toWav(file), shown), onrun, microphone);
  return field;
}

const clipField = (name, onrun) => fileField(name, "video/*,image/gif", async (file, shown) => {
  shown.replaceChildren(file.name);
  return base64(new Uint8Array(await file.arrayBuffer()));
}, onrun);
const FIELDS = { text: textField, image: pictureField, audio: soundField, video: clipField };
