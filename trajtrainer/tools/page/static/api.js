// The server: requests, and the stream of what is new.

function query(parameters) {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters))
    for (const each of Array.isArray(value) ? value : [value])
      if (each !== null && each !== undefined) search.append(key, each);
  return search.toString();
}

export function address(path, parameters = {}) {
  const search = query(parameters);
  return `api/${path}${search ? `?${search}` : ""}`;
}

async function answer(response) {
  const content = await response.json().catch(() => ({ error: `The server responded with status ${response.status}.` }));
  if (!response.ok) throw new Error(content.error ?? `The server responded with status ${response.status}.`);
  return content;
}

export async function get(path, parameters = {}, signal = undefined) {
  return answer(await fetch(address(path, parameters), { signal }));
}

async function post(path, run, body = undefined) {
  // The secret may have changed: the server may have been started again since the page was loaded.
  const { csrf } = await get("session");
  const headers = { "X-Trajtrainer-Page": csrf };
  return answer(await fetch(address(path, { run }), { method: "POST", headers, body }));
}

export async function stop(run) {
  return post("stop", run);
}

export async function annotate(run, changes) {
  return post("notes", run, JSON.stringify(changes));
}

const PAUSE_UNSEEN = 10_000;

// Listens as long as the page is seen: a browser has few connections to one server. Otherwise it asks now and then, so
// that the title is up to date.
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
    this.#runs = [...runs];
    this.#open();
  }

  #open() {
    this.#close();
    clearInterval(this.#unseen);
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
      // Browsers give up after some errors; we do not.
      if (source.readyState === EventSource.CLOSED) this.#retry = setTimeout(() => this.#open(), 3000);
    });
  }

  #close() {
    clearTimeout(this.#retry);
    this.#source?.close();
    this.#source = null;
  }
}
