/** Ways to run a model in this browser, the fastest first: in our own provider's module, or in ONNX Runtime. */

import { T2RError } from "./t2r/index.js";

const WEBGPU = "./vendor/ort.webgpu.bundle.min.mjs", WASM = "./vendor/ort.wasm.bundle.min.mjs";
const MODULE = "./vendor/ort-wasm-simd-threaded.wasm"; // that WASM loads, by itself
const THREADS = 4; // maximum: a small model gains nothing from more

/**
 * Open a model in our own provider, which is small and has no kernels for int8; else on WebGPU if there is an adapter, else in threads,
 * else in one thread.
 * @param {string | undefined} wanted only this way
 * @param {string} quantization of the model
 * @param {(options: object) => Promise<void>} open with options of Decoder.open
 * @returns the way, its threads, and failed attempts
 */
export async function fastest(wanted, quantization, open) {
  const tried = [];
  for (const way of wanted ? [wanted] : await ways(quantization)) {
    try {
      const options = await withOrt(way);
      await open(options);
      return { way, threads: options.ort?.env.wasm.numThreads ?? 1, tried };
    } catch (error) {
      if (error.kind !== "provider" && way !== "webgpu") throw error;
      tried.push(`${way}: ${error.message}`);
    }
  }
  if (!(await hasModule())) throw new T2RError("script", "ONNX Runtime's .wasm", tried.join("; "), "load the page again");
  throw new T2RError("provider", "a browser with WebGPU or WebAssembly", tried.join("; ") || "none", "take a newer browser");
}

/** Whether the host has ONNX Runtime's module: if it does not, it is not the browser that cannot run it. */
async function hasModule() {
  try {
    const answer = await fetch(new URL(MODULE, import.meta.url));
    return answer.ok && String(new Uint8Array(await answer.arrayBuffer()).subarray(0, 4)) === "0,97,115,109"; // \0asm
  } catch {
    return false;
  }
}

async function ways(quantization) {
  const found = quantization?.startsWith("int8") ? [] : ["t2r"];
  try {
    if (await navigator.gpu?.requestAdapter()) found.push("webgpu");
  } catch {
    // a browser with the interface but no driver
  }
  return [...found, ...(self.crossOriginIsolated ? ["threads"] : []), "wasm"];
}

/** Options of Decoder.open for a way. @throws {T2RError} provider, script */
export async function withOrt(way) {
  if (typeof WebAssembly === "undefined") throw new T2RError("provider", "WebAssembly", "a browser without", "take a newer browser");
  if (way === "t2r") return { provider: way };
  const ort = await import(way === "webgpu" ? WEBGPU : WASM).catch((error) => {
    throw new T2RError("script", "ONNX Runtime", String(error.message ?? error), "load the page again");
  });
  ort.env.wasm.numThreads = way === "threads" ? Math.min(THREADS, navigator.hardwareConcurrency || 1) : 1;
  ort.env.wasm.wasmPaths = new URL("./vendor/", import.meta.url).href;
  ort.env.logLevel = "fatal";
  return { ort, provider: way === "webgpu" ? "webgpu" : "wasm" };
}
