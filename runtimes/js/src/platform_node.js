/** Node's files and package of ONNX Runtime. `imports` in package.json gives bundlers platform_browser.js instead. */

import { readFile, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { Worker, parentPort } from "node:worker_threads";

import { missing } from "./errors.js";

export const PROVIDERS = ["cpu", "webgpu", "t2r"];
export const DEFAULT_PROVIDER = "cpu";
export const PACKAGE = "onnxruntime-node";
export const KEEPS_ON_GPU = false; // its WebGPU provider returns states to the CPU

// ONNX Runtime's packages of 1.29 and later send events to Microsoft unless this is set before they are loaded. Here, in the
// thread that starts workers: a worker's own `process.env` is a copy.
process.env.ORT_DISABLE_TELEMETRY ??= "1";

/** The module of ONNX Runtime. @param {string} _provider @returns {Promise<any>} */
export function loadOrt(_provider) {
  // @ts-ignore an optional peer dependency
  return import("onnxruntime-node");
}

/** The code of our own provider's module. @returns {Promise<BufferSource>} */
export function loadModule() {
  return readFile(new URL("./t2r.wasm", import.meta.url));
}

/**
 * A file and those beside it.
 * @param {string | URL} source a path, or an address of a file
 * @param {AbortSignal | null} [signal] ends reading
 * @returns {import("./session.js").Place | null} null if it is not a path
 */
export function inFolder(source, signal = null) {
  if (/^https?:/.test(String(source))) return null;
  const file = typeof source === "string" && !source.startsWith("file:") ? source : null;
  const place = { name: "", path: String(source), find, read };
  async function find(name) {
    try {
      place.path = file ?? fileURLToPath(source);
    } catch (error) {
      throw missing(source, error);
    }
    const wanted = name ? join(dirname(place.path), name) : place.path;
    try {
      if (!(await stat(wanted)).isFile()) throw new Error("no file");
      return wanted;
    } catch (error) {
      throw missing(wanted, error.code === "ENOENT" ? "nothing" : error);
    }
  }
  async function read(name) {
    const wanted = await find(name);
    try {
      return new Uint8Array(await readFile(wanted, { signal: signal ?? undefined }));
    } catch (error) {
      signal?.throwIfAborted();
      throw missing(wanted, error);
    }
  }
  return place;
}

/**
 * The owner's side of a worker. An idle worker does not keep the process alive.
 * @param {Worker | undefined} given the caller's own
 * @param {(message: any) => void} hear @param {(error: any) => void} lost
 * @param {number} [megabytes] heap limit
 */
export function connect(given, hear, lost, megabytes) {
  const resourceLimits = megabytes ? { maxOldGenerationSizeMb: megabytes } : {}, execArgv = []; // drops --input-type, which is invalid for files
  const worker = given ?? new Worker(new URL("./worker.js", import.meta.url), { execArgv, resourceLimits });
  worker.on("message", hear);
  worker.on("error", lost);
  worker.on("exit", (code) => lost(new Error(`an exit with ${code}`)));
  worker.unref();
  const hold = (busy) => (busy ? worker.ref() : worker.unref());
  return { post: (message) => worker.postMessage(message), end: () => void worker.terminate(), hold };
}

/** The worker's side: calls `hear` with each message, and returns a function that sends one. */
export function workerPort(hear) {
  parentPort.on("message", hear);
  return (message) => parentPort.postMessage(message);
}
