/* The server's own API, beside this page. */

export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let key = null; // of a server that asks for one; it is forgotten with the page

export function useKey(given) {
  key = given;
}

// A request that was given up, or a server that went away, if only in the middle of its answer.
function lost(error) {
  throw error.name === "AbortError" ? error : new Refusal(0, "The server cannot be reached.");
}

async function send(path, body, signal) {
  const headers = { ...(key && { Authorization: `Bearer ${key}` }) };
  const options = body === undefined ? { signal, headers } : { method: "POST", signal, body: JSON.stringify(body),
    headers: { ...headers, "Content-Type": "application/json" } };
  const answer = await fetch(path, options).catch(lost);
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  throw new Refusal(answer.status, told.error?.message ?? `The server says ${answer.status}.`);
}

export const ask = async (path, body, signal) => (await send(`v1/${path}`, body, signal)).json().catch(lost);

// The events of an answer that comes bit by bit (server-sent events), each as data.
export async function* events(path, body, signal) {
  const answer = await send(`v1/${path}`, { ...body, stream: true }, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read().catch(lost);
    if (done) return;
    const parts = (rest + value.replaceAll("\r\n", "\n")).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:"));
      const text = data.map((line) => line.slice(5)).join("\n").trim();
      if (!text || text === "[DONE]") continue;
      const event = JSON.parse(text);
      if (event.error) throw new Refusal(event.error.status ?? 500, event.error.message ?? String(event.error));
      yield event;
    }
  }
}

// Only the last of several requests counts: the one before is given up when another begins.
export function latest() {
  let controller = null;
  return {
    begin() {
      controller?.abort();
      controller = new AbortController();
      return controller.signal;
    },
    stop() { controller?.abort(); },
  };
}
