/** Ends a call of several runs by an AbortSignal, between two of them. */

/**
 * Throw the signal's reason if it is aborted. Events that wait are handled first, since one of them may abort it: a run on
 * WebAssembly handles none.
 * @param {AbortSignal} signal
 */
export async function checkpoint(signal) {
  await turn();
  signal.throwIfAborted();
}

/** Let events that wait be handled; a timer would take 4 ms. */
export function turn() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}
