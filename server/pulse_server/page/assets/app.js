// The page: which view is shown, the token, and what is said when a request fails.

import { Api, Failure, runPath } from "./api.js";
import { copyOf, setText } from "./dom.js";
import { ago } from "./format.js";
import { showRun } from "./run.js";
import { showRuns } from "./runs.js";

const api = new Api();
const main = document.getElementById("main");
const connection = document.getElementById("connection");
const signOut = document.getElementById("sign-out");
const who = document.getElementById("who");
const stale = document.getElementById("stale");
const STALE_SECONDS = 10;
const AWAIT_EVERY_MS = 5_000;

let current = new AbortController();
let known = false; // whether the service has said what the token allows

// What the views may change around themselves.
const frame = {
  api,
  main,
  connection(state, seconds = 0) {
    const texts = {
      idle: "",
      connecting: "Connecting…",
      live: "Live",
      waiting: `Not connected; next try in ${seconds} s`,
    };
    connection.dataset.state = state;
    setText(connection, texts[state]);
  },
  // Says how old the figures are where the service can't reach its store.
  age() {
    stale.hidden = api.age < STALE_SECONDS;
    if (!stale.hidden) {
      setText(stale, `The service can't reach its store. What you see is what it knew ${ago(api.age)}.`);
    }
  },
};

function place() {
  const run = /^#\/runs\/([^/]+)$/.exec(location.hash)?.[1];
  if (run === undefined) return null;
  try {
    return decodeURIComponent(run);
  } catch {
    return run;
  }
}

async function show({ focus = false } = {}) {
  current.abort();
  current = new AbortController();
  const { signal } = current;
  const run = place();
  document.title = run === null ? "Pulse Registry" : `${run} · Pulse Registry`;
  setText(document.getElementById("place"), run ?? "");
  frame.connection("idle");
  try {
    if (!known) await identify(signal);
    if (run === null) await showRuns(frame, signal);
    else await showRun(frame, run, signal);
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof Failure)) throw error;
    fail(error, run);
  } finally {
    if (focus && !signal.aborted) main.focus({ preventScroll: true });
  }
}

async function identify(signal) {
  const body = await api.json("v1/token", signal);
  known = true;
  signOut.hidden = api.token === null;
  who.hidden = false;
  setText(who, api.token === null ? "Open: no token needed" : body.name);
}

function fail(failure, run) {
  current.abort();
  frame.connection("idle");
  if (failure.status === 401) {
    askForToken(api.token === null ? "" : "The service does not take this token: it is wrong, or it has expired.");
    return;
  }
  const view = copyOf("failure-view");
  const [title, what, todo] = words(failure, run);
  setText(view.querySelector(".title"), title);
  setText(view.querySelector(".what"), what);
  setText(view.querySelector(".todo"), todo);
  view.querySelector(".again").addEventListener("click", () => show({ focus: true }));
  main.replaceChildren(view);
  if (failure.status === 404 && run !== null) awaitRun(run);
}

// Shows a run that is not there yet once it is, if nothing else was asked for meanwhile.
function awaitRun(run) {
  current = new AbortController();
  const { signal } = current;
  const look = async () => {
    try {
      await api.json(runPath(run), signal);
    } catch {
      return; // it is still not there, or this view is left; a service that is gone is said so when it is asked for
    }
    if (!signal.aborted) show({ focus: main.contains(document.activeElement) });
  };
  const timer = setInterval(look, AWAIT_EVERY_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
}

function words(failure, run) {
  const said = failure.detail ? `It said: ${failure.detail}` : "";
  const subject = run === null ? "any run" : `the run ${run}`;
  switch (failure.status) {
    case 0:
      return ["The service does not answer", failure.message, "Check that pulse serve is up and that you can reach it; then try again."];
    case 403:
      return ["Not allowed", `This token may not read ${subject}. ${said}`, "Ask for a token whose run patterns include it, or choose another run. To use another token, sign out."];
    case 404:
      if (run === null) return ["The service refused the request", said, "This service is an older release, which has no stream of all runs. Open a run by its address: #/runs/NAME."];
      return ["No such run", `The registry holds no run of the name ${run}.`, "Check the name for a slip. The run appears here with its first push."];
    case 429:
      return ["Too many requests", said, `Wait ${Math.max(1, failure.retryAfter)} s, then try again.`];
    case 503:
      return ["The store does not answer", `The service is up, but can't reach its bucket. ${said}`, "Check the bucket and the service's access to it (/readyz says when it is back); then try again."];
    default:
      if (failure.status < 500) return ["The service refused the request", `Status ${failure.status}. ${said}`, "Check the address in the address bar; then try again."];
      return ["The service failed", `Status ${failure.status}. ${said}`, "The service's log says more; then try again."];
  }
}

function askForToken(reason) {
  known = false;
  signOut.hidden = true;
  who.hidden = true;
  const view = copyOf("sign-in-view");
  setText(view.querySelector(".reason"), reason);
  const field = view.querySelector("#token");
  view.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    api.token = field.value.trim();
    show({ focus: true });
  });
  main.replaceChildren(view);
  field.focus();
}

signOut.addEventListener("click", () => {
  api.token = null;
  current.abort();
  frame.connection("idle");
  askForToken("You are signed out.");
});
window.addEventListener("hashchange", () => show({ focus: true }));

// Times ago run on by themselves.
setInterval(() => {
  for (const node of document.querySelectorAll("time[datetime]")) setText(node, ago((api.now() - Date.parse(node.dateTime)) / 1000));
}, 1000);

show();
