/** The page's side: requests to a worker, and one operation at a time. */

import { sentence } from "./sentences.js";

/**
 * Returns a function that runs one operation at a time. An operation with a button can be stopped: its button is Stop while it
 * runs, and Escape and another operation end it too. One without is never interrupted. Errors appear in the page's `trouble`, as
 * a sentence. Buttons are dimmed by `aria-disabled` and keep the focus, so that keyboard users are not thrown back to the top.
 * @param {(fixed: boolean) => void} show called before and after an operation: whether one runs that cannot be stopped
 * @param {() => void} stop
 * @returns {(work: () => Promise<void>, button?: HTMLElement | null) => Promise<void>}
 */
export function oneAtATime(show, stop) {
  const trouble = document.getElementById("trouble");
  let running = null, stops = null;
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") stop();
  });
  return async (work, button = null) => {
    while (running) {
      if (!stops) return;
      stop();
      await running;
    }
    const word = button?.textContent;
    stops = button;
    document.body.dataset.busy = "yes";
    trouble.textContent = "";
    show(!button);
    if (button) [button.textContent, button.dataset.stops] = ["Stop", "yes"];
    running = work().catch((error) => {
      trouble.textContent = sentence(error);
      trouble.title = error.message;
    });
    await running;
    running = null;
    if (button) {
      button.textContent = word;
      delete button.dataset.stops;
    }
    delete document.body.dataset.busy;
    show(false);
  };
}

/** Dim these buttons, or not. */
export function dim(ids, off) {
  for (const id of ids) document.getElementById(id).setAttribute("aria-disabled", String(off));
}

/** Call `work` when the button is pressed, unless it is dimmed; or `stop` while it is Stop. The second press of a double click is none. */
export function pressed(button, work, stop) {
  button.addEventListener("click", ({ detail }) => {
    if (button.getAttribute("aria-disabled") === "true") return;
    if (!button.dataset.stops) work();
    else if (detail < 2) stop();
  });
}

/** A worker: `ask` it and wait, or `tell` it without waiting. */
export class Asker {
  #worker;
  #waiting = new Map();
  #count = 0;
  #broken = null;

  /** @param {URL} address @param {(data: object) => void} onEvent receives its unsolicited messages */
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
      // an error without a message: a script of the worker did not load
      const kind = event.message ? "other" : "script";
      this.#broken = Object.assign(new Error(event.message ?? "a script of the worker did not come"), { kind });
      for (const { reject } of this.#waiting.values()) reject(this.#broken);
      this.#waiting.clear();
    };
  }

  ask(call, ...args) {
    if (this.#broken) return Promise.reject(this.#broken);
    return new Promise((resolve, reject) => {
      this.#waiting.set(++this.#count, { resolve, reject });
      this.#worker.postMessage({ id: this.#count, call, args });
    });
  }

  tell(call) {
    this.#worker.postMessage({ call });
  }
}
