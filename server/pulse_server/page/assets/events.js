// Follows a stream of events over fetch: EventSource can't send the Authorization header.

import { Failure } from "./api.js";

const SILENCE_MS = 45_000; // the service sends a comment every 15 s
const LONGEST_WAIT_MS = 15_000;

// Yields {type, id, data} of a stream of server-sent events; comments are passed over.
export async function* readEvents(body, onBytes = () => {}) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = { type: "message", id: null, data: [] };
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    onBytes();
    rest += value;
    // A lone CR at the end may be the first half of a CRLF: it waits for what follows.
    const lines = rest.split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (event.data.length) yield { ...event, data: event.data.join("\n") };
        event = { type: "message", id: null, data: [] };
        continue;
      }
      const [, field, text] = /^([^:]*):? ?(.*)$/s.exec(line);
      if (field === "data") event.data.push(text);
      else if (field === "event") event.type = text;
      else if (field === "id") event.id = text;
    }
  }
}

// Calls `handlers[type](body)` for each event after the one whose id is `after`, and goes on where the stream broke off.
// `onState` hears "connecting", "live" and "waiting" (with the seconds until the next try). Throws the Failure of a
// request that would fail again (401, 403, 404); ends when `signal` aborts.
export async function follow({ api, path, after, handlers, onState, signal }) {
  let last = after;
  for (let failures = 0; !signal.aborted; ) {
    if (failures === 0) onState("connecting");
    const attempt = new AbortController();
    const stop = () => attempt.abort();
    signal.addEventListener("abort", stop);
    let watchdog = setTimeout(stop, SILENCE_MS);
    let retryAfter = 0;
    try {
      const headers = { Accept: "text/event-stream", ...(last === null ? {} : { "Last-Event-ID": String(last) }) };
      const response = await api.open(path, { signal: attempt.signal, headers });
      onState("live");
      const onBytes = () => {
        failures = 0;
        clearTimeout(watchdog);
        watchdog = setTimeout(stop, SILENCE_MS);
      };
      for await (const event of readEvents(response.body, onBytes)) {
        if (event.id !== null) last = event.id;
        const body = JSON.parse(event.data);
        // Not in this loop: a handler's own fault is reported as such, and is no broken stream.
        queueMicrotask(() => handlers[event.type]?.(body));
      }
    } catch (error) {
      if (error instanceof Failure && [401, 403, 404].includes(error.status)) throw error;
      retryAfter = error instanceof Failure ? error.retryAfter : 0;
    } finally {
      clearTimeout(watchdog);
      signal.removeEventListener("abort", stop);
      attempt.abort();
    }
    if (signal.aborted) return;
    failures += 1;
    await pause(Math.max(backOff(failures), retryAfter * 1000), onState, signal);
  }
}

// Half a second, doubled for each failure in a row, and up to half as much again so that many pages don't come at once.
function backOff(failures) {
  return Math.min(LONGEST_WAIT_MS, 500 * 2 ** (failures - 1)) * (1 + Math.random() / 2);
}

// Waits, counting down; the network's return or `signal` ends it early.
function pause(milliseconds, onState, signal) {
  return new Promise((resolve) => {
    const until = performance.now() + milliseconds;
    const tick = () => onState("waiting", Math.max(1, Math.ceil((until - performance.now()) / 1000)));
    const counter = setInterval(tick, 1000);
    const timer = setTimeout(finish, milliseconds);
    function finish() {
      clearInterval(counter);
      clearTimeout(timer);
      window.removeEventListener("online", finish);
      signal.removeEventListener("abort", finish);
      resolve();
    }
    window.addEventListener("online", finish);
    signal.addEventListener("abort", finish);
    tick();
  });
}
