// Asks the API, with the token of this tab. Addresses are relative to the page, so a path prefix is kept.

const TOKEN_KEY = `pulse-token ${location.pathname}`;

// A request that did not do: what the service said, or `status` 0 where nothing answered.
export class Failure extends Error {
  constructor(status, detail, retryAfter = 0) {
    super(detail);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

export class Api {
  #token = sessionStorage.getItem(TOKEN_KEY);
  #clockOffset = 0;
  #age = 0;

  get token() {
    return this.#token;
  }

  set token(value) {
    this.#token = value;
    if (value === null) sessionStorage.removeItem(TOKEN_KEY);
    else sessionStorage.setItem(TOKEN_KEY, value);
  }

  // The service's clock, in ms: ages stay right where the reader's own clock is off.
  now() {
    return Date.now() + this.#clockOffset;
  }

  // Seconds since the service last heard from its store, as of the last answer.
  get age() {
    return this.#age;
  }

  async json(path, signal) {
    const response = await this.open(path, { signal });
    try {
      const body = await response.json();
      const age = typeof body?.age_s === "number" ? body.age_s : Number(response.headers.get("age") ?? NaN);
      if (Number.isFinite(age)) this.#age = age;
      return body;
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Failure(0, "The answer broke off.");
    }
  }

  // Returns a response whose status is good; the caller reads its body.
  async open(path, { signal, headers = {} } = {}) {
    const authorization = this.#token ? { Authorization: `Bearer ${this.#token}` } : {};
    let response;
    try {
      response = await fetch(path, { headers: { ...authorization, ...headers }, signal, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Failure(0, "Nothing answered.");
    }
    const date = Date.parse(response.headers.get("date") ?? "");
    // The header has whole seconds; a difference under two is noise.
    if (Number.isFinite(date)) this.#clockOffset = Math.abs(date - Date.now()) < 2000 ? 0 : date - Date.now();
    if (response.ok) return response;
    throw await failureOf(response);
  }
}

async function failureOf(response) {
  let detail = "";
  try {
    detail = (await response.json()).detail;
  } catch {
    // A proxy's own page: its status says enough.
  }
  const retryAfter = Number(response.headers.get("retry-after") ?? 0);
  return new Failure(response.status, typeof detail === "string" ? detail : "", Number.isFinite(retryAfter) ? retryAfter : 0);
}

// All pages of a list: calls `take` with each body until `next` is none or `take` says that it is enough.
export async function pages(api, path, after, take, signal) {
  for (;;) {
    const query = after === null ? "" : `${path.includes("?") ? "&" : "?"}after=${encodeURIComponent(after)}`;
    const body = await api.json(path + query, signal);
    if (take(body) === false || body.next === null) return;
    after = body.next;
  }
}

export function runPath(run) {
  return `v1/runs/${encodeURIComponent(run)}`;
}
