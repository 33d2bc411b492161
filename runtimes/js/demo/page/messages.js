/** A worker's message handler: calls run one after the other; a stop bypasses the queue. */

import { T2RError } from "./t2r/index.js";

/** @param {Record<string, Function>} calls by name @param {() => void} stop */
export function answer(calls, stop) {
  let last = Promise.resolve();
  self.onmessage = ({ data: { id, call, args } }) => {
    if (call === "stop") {
      stop();
      return;
    }
    last = last.then(async () => {
      try {
        self.postMessage({ id, value: await calls[call](...args) });
      } catch (error) {
        const kind = error instanceof T2RError ? error.kind : /allocat/i.test(error.message) ? "memory" : "other";
        self.postMessage({ id, error: { kind, message: String(error.message ?? error) } });
      }
    });
  };
}
