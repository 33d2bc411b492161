/** The browser's counterpart of platform_node.js: no files, and another package of ONNX Runtime. */

export const PROVIDERS = ["webgpu", "wasm", "t2r"];
export const DEFAULT_PROVIDER = "wasm";
export const PACKAGE = "onnxruntime-web";
export const KEEPS_ON_GPU = true;

/** The module of ONNX Runtime: its .wasm for WebGPU is twice as large. @param {string} provider @returns {Promise<any>} */
export function loadOrt(provider) {
  // @ts-ignore an optional peer dependency
  return provider === "webgpu" ? import("onnxruntime-web/webgpu") : import("onnxruntime-web/wasm");
}

/** The code of our own provider's module. @returns {Promise<BufferSource>} */
export async function loadModule() {
  const address = new URL("./t2r.wasm", import.meta.url), answer = await fetch(address);
  if (!answer.ok) throw new Error(`the answer ${answer.status} for ${address}`);
  return answer.arrayBuffer();
}

/** A browser has no paths. @param {any} _source @param {any} _signal @returns {null} */
export function inFolder(_source, _signal) {
  return null;
}

/**
 * The owner's side of a worker.
 * @param {Worker | undefined} given the caller's own, if a bundler does not find the script
 * @param {(message: any) => void} hear @param {(error: any) => void} lost
 * @param {number} [_megabytes] unused: a browser limits the heap itself
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

/** The worker's side: calls `hear` with each message, and returns a function that sends one. */
export function workerPort(hear) {
  self.onmessage = ({ data }) => hear(data);
  return (message) => self.postMessage(message);
}
