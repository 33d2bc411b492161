/** What a browser has in the place of platform_node.js: no files, and another package of ONNX Runtime. */

export const PROVIDERS = ["webgpu", "wasm"];
export const DEFAULT_PROVIDER = "wasm";
export const PACKAGE = "onnxruntime-web";
export const KEEPS_ON_GPU = true;

/** The module of ONNX Runtime. @returns {Promise<any>} */
export function loadOrt() {
  // @ts-ignore a peer, which need not be there where types are written
  return import("onnxruntime-web/webgpu");
}

/** Everything is at an address. @returns {null} */
export function inFolder() {
  return null;
}

/**
 * A worker, seen from the thread that made it.
 * @param {Worker | undefined} given where a bundler does not find the script, the caller's own
 * @param {(message: any) => void} hear @param {(error: any) => void} lost
 * @param {number} [_megabytes] of its values, which a browser bounds itself
 */
export function connect(given, hear, lost, _megabytes) {
  const worker = given ?? new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  worker.onmessage = ({ data }) => hear(data);
  worker.onerror = (event) => {
    event.preventDefault();
    lost(new Error(event.message || "a script that did not come"));
  };
  return { post: (message) => worker.postMessage(message), end: () => worker.terminate(), hold: () => {} };
}

/** The worker's own side: calls `hear` with each message, and gives what sends one. */
export function workerPort(hear) {
  self.onmessage = ({ data }) => hear(data);
  return (message) => self.postMessage(message);
}
