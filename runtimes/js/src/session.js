/** Opening a graph with ONNX Runtime, in Node or in a browser, and what can be wrong with it. */

import { T2RError, printable, shown } from "./errors.js";
import { checkInterface } from "./interface.js";
import { readModelFile } from "./model_file.js";
import { readSignature, requireMemory } from "./signature.js";

const isNode = typeof process === "object" && !!process.versions?.node;
const PROVIDERS = isNode ? ["cpu", "webgpu"] : ["webgpu", "wasm"];
const DEFAULT = isNode ? "cpu" : "wasm";
// what ONNX Runtime says of a file, in the order in which it is looked through
const FAULTS = [
  ["version", /IR version|opset|official released|is under development|ONNX Runtime only/i],
  ["weights", /external data|external initializer|out of bounds|data file|TensorProtoWithExternal|get_length|file_size/i],
  ["provider", /execution provider|backend|no available|webgpu adapter|failed to get GPU/i],
];

/**
 * An opened graph.
 * @typedef {{session: any, ort: any, signature: import("./index.js").Signature, provider: string, place: Place}} Graph
 *
 * Where files are: beside a path or an address, or in memory by their names.
 * @typedef {{name: string, path: string | null, read: (name: string) => Promise<Uint8Array>}} Place
 */

/**
 * @param {string | URL | {graph: string, files: Record<string, Uint8Array>}} source a path, an address, or files in memory
 * @param {import("./index.js").OpenOptions} options
 * @param {string} role the role that the graph must have
 * @returns {Promise<Graph>}
 */
export async function openGraph(source, options, role = "step") {
  const place = placeOf(source, options.onProgress);
  const provider = options.provider ?? DEFAULT;
  if (!PROVIDERS.includes(provider)) {
    throw new T2RError("provider", `a provider of ${PROVIDERS.join(", ")}`, shown(provider), "choose one of those");
  }
  const { threads } = options;
  const bytes = await place.read(place.name);
  const { metadata, weights } = readModelFile(bytes);
  const signature = readSignature(metadata, options.maxStateBytes);
  if (signature.role !== role) {
    throw new T2RError("graph", `a graph of the role ${role}`, `one of the role ${signature.role}`, "open the other file");
  }
  requireMemory(signature, signature.batch ?? 1, options.maxStateBytes);
  const externalData = await Promise.all(weights.map((name) => weightsOf(place, name)));
  const ort = options.ort ?? (await runtime());
  const session = await create(ort, place, bytes, externalData, provider, threads, signature);
  try {
    checkInterface(signature, session);
  } catch (error) {
    await session.release();
    throw error;
  }
  return { session, ort, signature, provider, place };
}

async function runtime() {
  try {
    const found = await (isNode ? import("onnxruntime-node") : import("onnxruntime-web/webgpu"));
    return found.default?.InferenceSession ? found.default : found;
  } catch (error) {
    const name = isNode ? "onnxruntime-node" : "onnxruntime-web";
    throw new T2RError("provider", `the package ${name}`, printable(error), `npm install ${name}`);
  }
}

async function create(ort, place, bytes, externalData, provider, threads, signature) {
  const options = { executionProviders: [provider], logSeverityLevel: 4 };
  if (threads !== undefined) Object.assign(options, { intraOpNumThreads: threads, interOpNumThreads: 1 });
  if (signature.role === "prefill" && signature.quantization === "none" && provider !== "webgpu") {
    options.extra = { session: { disable_prepacking: "1" } };
  }
  if (provider === "webgpu" && !isNode) {
    const states = signature.states.map((state) => [`present_${state.name}`, "gpu-buffer"]);
    options.preferredOutputLocation = Object.fromEntries(states);
  }
  try {
    if (place.path !== null && isNode) return await ort.InferenceSession.create(place.path, options);
    return await ort.InferenceSession.create(bytes, { ...options, externalData });
  } catch (error) {
    const [kind] = FAULTS.find(([, words]) => words.test(String(error.message ?? error))) ?? ["graph"];
    throw new T2RError(kind, "a graph that ONNX Runtime opens", printable(error), "check the file, or export the model again");
  }
}

/** The bytes of a file at a path or an address. */
export function readFile(source) {
  return placeOf(source).read("");
}

/** Where a source's files are; what is fetched is told to `onProgress`. */
function placeOf(source, onProgress) {
  if (source && typeof source === "object" && "files" in source) {
    const { graph, files } = source;
    if (typeof files !== "object" || files === null || typeof graph !== "string") {
      throw new T2RError("file", "files by their names, and the name of the graph", `${shown(files)} and ${shown(graph)}`, "give both");
    }
    const read = async (name) => {
      if (!Object.hasOwn(files, name)) throw missing(name, "nothing of that name");
      if (!(files[name] instanceof Uint8Array)) throw missing(name, shown(files[name]));
      return files[name];
    };
    return { name: graph, path: null, read };
  }
  if (typeof source !== "string" && !(source instanceof URL)) {
    throw new T2RError("file", "a path, an address or files", shown(source), "give one");
  }
  return isNode && !/^https?:/.test(String(source)) ? inFolder(source) : atAddress(source, onProgress);
}

function inFolder(source) {
  const ready = Promise.all([import("node:fs/promises"), import("node:path"), import("node:url")]);
  const file = typeof source === "string" && !source.startsWith("file:") ? source : null;
  const place = { name: "", path: String(source) };
  const found = async (name) => {
    const [fs, path, url] = await ready;
    try {
      place.path = file ?? url.fileURLToPath(source);
    } catch (error) {
      throw missing(source, error);
    }
    const wanted = name ? path.join(path.dirname(place.path), name) : place.path;
    try {
      if (!(await fs.stat(wanted)).isFile()) throw new Error("no file");
      return [fs, wanted];
    } catch (error) {
      throw missing(wanted, error.code === "ENOENT" ? "nothing" : error);
    }
  };
  place.find = async (name) => void (await found(name));
  place.read = async (name) => {
    const [fs, wanted] = await found(name);
    try {
      return new Uint8Array(await fs.readFile(wanted));
    } catch (error) {
      throw missing(wanted, error);
    }
  };
  return place;
}

function atAddress(source, onProgress) {
  let address;
  try {
    address = new URL(String(source), isNode ? undefined : globalThis.location?.href);
  } catch (error) {
    throw missing(source, error);
  }
  const read = async (name) => {
    const wanted = name ? new URL(encodeURIComponent(name), address) : address;
    let answer;
    try {
      answer = await fetch(wanted);
    } catch (error) {
      throw missing(wanted, error);
    }
    if (!answer.ok) throw missing(wanted, `the answer ${answer.status}`);
    try {
      return new Uint8Array(await (onProgress && answer.body ? counted(answer, wanted, onProgress) : answer).arrayBuffer());
    } catch (error) {
      throw missing(wanted, error);
    }
  };
  return { name: "", path: null, read };
}

/** An answer whose bytes are counted as they come. The length that a server names is that of what it packed, if it packed. */
function counted(answer, file, onProgress) {
  const total = answer.headers.has("content-encoding") ? null : Number(answer.headers.get("content-length")) || null;
  let loaded = 0;
  const transform = (bytes, controller) => {
    loaded += bytes.length;
    onProgress({ file: String(file), loaded, total });
    controller.enqueue(bytes);
  };
  return new Response(answer.body.pipeThrough(new TransformStream({ transform })));
}

function missing(name, why) {
  return new T2RError("file", `a file at ${printable(name, 200)}`, printable(why, 100), "check the path");
}

/** A file of weights: in a folder ONNX Runtime maps it itself, and it need only be there. */
async function weightsOf(place, name) {
  try {
    if (place.find) return await place.find(name);
    return { path: name, data: await place.read(name) };
  } catch (error) {
    throw new T2RError("weights", `the weights ${name} beside the graph`, printable(error, 200), "copy all files together");
  }
}

/** The same place with another file of its folder as the graph. */
export function beside(graph, source, name) {
  if (source && typeof source === "object" && "files" in source) return { ...source, graph: name };
  if (graph.place.path !== null) return graph.place.path.replace(/[^/\\]*$/, () => name);
  return new URL(encodeURIComponent(name), new URL(String(source), globalThis.location?.href));
}
