/** Where a model can run in this browser, the fastest first, and ONNX Runtime for it. */

const WEBGPU = "./vendor/ort.webgpu.bundle.min.mjs", WASM = "./vendor/ort.wasm.bundle.min.mjs";
const THREADS = 4; // at most: a small model gains nothing from more

/** WebGPU where there is an adapter, then threads, then one thread. */
export async function ways() {
  const found = [];
  try {
    if (await navigator.gpu?.requestAdapter()) found.push("webgpu");
  } catch {
    // a browser that has the interface and no driver
  }
  return [...found, ...(self.crossOriginIsolated ? ["threads"] : []), "wasm"];
}

/** Options of Decoder.open for a way. */
export async function withOrt(way) {
  const ort = await import(way === "webgpu" ? WEBGPU : WASM);
  ort.env.wasm.numThreads = way === "threads" ? Math.min(THREADS, navigator.hardwareConcurrency || 1) : 1;
  ort.env.wasm.wasmPaths = new URL("./vendor/", import.meta.url).href;
  ort.env.logLevel = "fatal";
  return { ort, provider: way === "webgpu" ? "webgpu" : "wasm" };
}
