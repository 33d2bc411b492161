/** A page's side: a worker that is asked, the list of files, and what a person can do about an error. */

export const WAYS = {
  webgpu: "on the GPU (WebGPU)", threads: "on the CPU (WebAssembly, several threads)", wasm: "on the CPU (WebAssembly, one thread)",
};
const SENTENCES = {
  file: "The model could not be fetched. Check the connection, and load the page again.",
  graph: "The model's file is damaged or incomplete. Load the page again; if that does not help, tell whoever runs this page.",
  metadata: "The model's file is damaged or of another kind. Tell whoever runs this page.",
  version: "The model was made for another version of this page. Tell whoever runs this page.",
  weights: "A file of the model's weights is missing. Tell whoever runs this page.",
  provider: "This browser cannot run the model. A newer one can.",
  snapshot: "This file is no state of this model, or it is damaged. Nothing has changed.",
  position: "The text is as long as this model can take. Begin another, or a shorter one.",
  sampling: "One of the numbers is out of its range. Correct it, and try again.",
};

/**
 * What does one thing at a time: a second is passed over. What goes wrong is said in the page's `trouble`, in a sentence.
 * @param {(busy: boolean, stoppable: boolean) => void} show called before it and after it
 * @returns {(work: () => Promise<void>, stoppable?: boolean) => Promise<void>}
 */
export function oneAtATime(show) {
  const trouble = document.getElementById("trouble");
  let busy = false;
  return async (work, stoppable = false) => {
    if (busy) return;
    busy = true;
    show(true, stoppable);
    trouble.textContent = "";
    try {
      await work();
    } catch (error) {
      trouble.textContent = sentence(error);
      trouble.title = error.message;
    } finally {
      busy = false;
      show(false, stoppable);
    }
  };
}

/** What went wrong, for a person. */
function sentence(error) {
  return SENTENCES[error.kind] ?? `Something went wrong: ${error.message}`;
}

/** A worker: `ask` it and wait, or `tell` it. */
export class Asker {
  #worker;
  #waiting = new Map();
  #count = 0;

  /** @param {URL} address @param {(data: object) => void} onEvent what it says of its own accord */
  constructor(address, onEvent = () => {}) {
    this.#worker = new Worker(address, { type: "module" });
    this.#worker.onmessage = ({ data }) => {
      if (data.event) return onEvent(data);
      const { resolve, reject } = this.#waiting.get(data.id);
      this.#waiting.delete(data.id);
      if (data.error) reject(Object.assign(new Error(data.error.message), data.error));
      else resolve(data.value);
    };
    this.#worker.onerror = (event) => {
      event.preventDefault();
      const error = Object.assign(new Error(event.message ?? "the worker ended"), { kind: "provider" });
      for (const { reject } of this.#waiting.values()) reject(error);
      this.#waiting.clear();
    };
  }

  ask(call, ...args) {
    return new Promise((resolve, reject) => {
      this.#waiting.set(++this.#count, { resolve, reject });
      this.#worker.postMessage({ id: this.#count, call, args });
    });
  }

  tell(call) {
    this.#worker.postMessage({ call });
  }
}

/** files.json, and how large the model is. */
export async function listed() {
  const answer = await fetch("files.json", { cache: "no-store" }).catch((error) => {
    throw Object.assign(error, { kind: "file" });
  });
  if (!answer.ok) throw Object.assign(new Error(`the answer ${answer.status}`), { kind: "file" });
  const list = await answer.json();
  const ofModel = list.files.filter(({ name }) => isOfModel(list, name));
  return { ...list, modelBytes: ofModel.reduce((all, file) => all + file.size, 0) };
}

/** How much of the model has come, in tenths, while `status` does not say where it runs: the service worker tells. */
export function showDownload(list, status) {
  const come = new Map(), total = list.modelBytes;
  let tenths = 0;
  navigator.serviceWorker?.addEventListener("message", ({ data: { name, bytes } }) => {
    if (!isOfModel(list, name) || status.dataset.way) return;
    come.set(name, bytes);
    const sum = [...come.values()].reduce((all, one) => all + one, 0), now = Math.floor((10 * sum) / total);
    if (now !== tenths) status.textContent = `Loading … ${(sum / 1e6).toFixed(1)} of ${(total / 1e6).toFixed(1)} MB`;
    tenths = now;
  });
}

function isOfModel({ graph }, name) {
  return name === graph || name.startsWith(`${graph}.`);
}

const RELOADED = "t2r-reloaded"; // in the tab's storage: it is done once, whatever comes of it

/**
 * Files are kept for later by a service worker; its answers also carry the headers that threads need. The first visit, and a
 * reload that passes the service worker by, are without them: the page is loaded once more, and runs in one thread if that does
 * not help.
 */
export async function keepFiles() {
  if (!("serviceWorker" in navigator) || !window.isSecureContext) return;
  const had = navigator.serviceWorker.controller;
  await navigator.serviceWorker.register("sw.js");
  await navigator.serviceWorker.ready;
  if (window.crossOriginIsolated) sessionStorage.removeItem(RELOADED);
  else if (!had && !sessionStorage.getItem(RELOADED)) {
    sessionStorage.setItem(RELOADED, "yes");
    location.reload();
    await new Promise(() => {});
  }
}
