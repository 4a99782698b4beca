// Access to the server: requests, and the stream of changes.

import { query, refresh } from "./state.js";

const PAUSE_UNSEEN = 10_000;

export function address(path, parameters = {}) {
  return `api/${path}?${query(parameters)}`;
}

async function answer(response) {
  const status = `The server responded with status ${response.status}.`;
  const content = await response.json().catch(() => ({ error: status }));
  if (!response.ok) throw new Error(content.error ?? status);
  return content;
}

export async function get(path, parameters = {}, signal = undefined) {
  return answer(await fetch(address(path, parameters), { signal }));
}

// Sends a change to a run; `path` is "stop" or "notes".
export async function post(path, run, changes = {}) {
  // Get the current secret, because the server may have been restarted since the page was loaded.
  const { csrf } = await get("session");
  return answer(await fetch(address(path, { run }), { method: "POST", headers: { "X-Trajtrainer-Page": csrf }, body: JSON.stringify(changes) }));
}

// Caches the answer to a request, because it is needed on every draw. The request is sent again when its parameters change
// or the answer is stale, in the latter case at most once every `pause` milliseconds. `changed` is called when a new answer
// has arrived.
export class Answer {
  value = null;
  problem = "";
  #question = "";
  #answered = "";
  #isStale = false;
  #asked = -Infinity;
  #timer = null;
  #request = null;

  constructor(path, pause, changed = refresh) {
    Object.assign(this, { path, pause, changed });
  }

  stale() {
    this.#isStale = true;
  }

  // Returns the answer to these parameters; null until it has arrived.
  of(parameters) {
    this.latest(parameters);
    return this.#answered === this.#question ? this.value : null;
  }

  // Returns the answer to these parameters, or the answer to the previous ones until it has arrived.
  latest(parameters) {
    const question = JSON.stringify(parameters), isNew = question !== this.#question;
    const wait = isNew ? 0 : this.#asked + this.pause - performance.now();
    if (wait <= 0 && (isNew || this.#isStale)) this.#ask(question, parameters);
    else if (this.#isStale) this.#timer ??= setTimeout(() => { this.#timer = null; this.changed(); }, wait);
    return this.value;
  }

  end() {
    clearTimeout(this.#timer);
    this.#request?.abort();
  }

  async #ask(question, parameters) {
    this.end();
    this.#timer = null;
    this.#question = question;
    this.#isStale = false;
    this.#asked = performance.now();
    const { signal } = this.#request = new AbortController();
    try {
      this.value = await get(this.path, parameters, signal);
      this.#answered = question;
      this.problem = "";
    } catch (error) {
      if (signal.aborted) return;
      this.problem = error.message; // keep the last answer
    }
    this.changed();
  }
}

// Streams changes from the server while the page is visible, because a browser allows only a few connections per server.
// While the page is hidden, it polls the list of runs every ten seconds to keep the title up to date.
export class Stream {
  #source = null;
  #runs = [];
  #retry = null;
  #unseen = null;

  constructor(receivers) {
    this.receivers = receivers;
    document.addEventListener("visibilitychange", () => this.#open());
  }

  watch(runs) {
    if (this.#source && runs.join("\n") === this.#runs.join("\n")) return;
    this.#runs = runs;
    this.#open();
  }

  #open() {
    clearTimeout(this.#retry);
    clearInterval(this.#unseen);
    this.#source?.close();
    this.#source = null;
    if (document.hidden) {
      this.#unseen = setInterval(() => get("runs").then(this.receivers.runs).catch(() => {}), PAUSE_UNSEEN);
      return;
    }
    const source = this.#source = new EventSource(address("stream", { run: this.#runs }));
    source.addEventListener("open", () => this.receivers.live(true));
    source.addEventListener("runs", (event) => this.receivers.runs(JSON.parse(event.data)));
    source.addEventListener("changed", (event) => this.receivers.changed(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      this.receivers.live(false);
      // Browsers give up after some errors, so connect again.
      if (source.readyState === EventSource.CLOSED) this.#retry = setTimeout(() => this.#open(), 3000);
    });
  }
}
