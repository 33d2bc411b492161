/** Opens a graph with ONNX Runtime, in Node or in a browser, and classifies failures. */

import { DEFAULT_PROVIDER, KEEPS_ON_GPU, PACKAGE, PROVIDERS, inFolder, loadOrt } from "#platform";

import { T2RError, missing, printable, shown } from "./errors.js";
import { checkInterface } from "./interface.js";
import { readModelFile } from "./model_file.js";
import { openModule } from "./module.js";
import { readSignature, requireMemory } from "./signature.js";

/**
 * Error kinds by patterns of ONNX Runtime's messages; the first match wins.
 * @type {[import("./types.js").Kind, RegExp][]}
 */
const FAULTS = [
  ["version", /IR version|opset|official released|is under development|ONNX Runtime only/i],
  ["weights", /external data|external initializer|out of bounds|data file|TensorProtoWithExternal|get_length|file_size/i],
  ["provider", /execution provider|backend|no available|webgpu adapter|failed to get GPU/i],
];

/**
 * An opened graph.
 * @typedef {{session: any, ort: any, signature: import("./types.js").Signature, provider: string, place: Place}} Graph
 *
 * Where files are: beside a path or an address, or in memory by name.
 * @typedef {object} Place
 * @property {string} name of the graph among them; "" for the file at the path or address
 * @property {string | null} path
 * @property {(name: string) => Promise<Uint8Array>} read
 * @property {(name: string) => Promise<string>} [find] path of an existing file, if ONNX Runtime reads files itself
 */

/**
 * @param {string | URL | {graph: string, files: Record<string, Uint8Array>}} source a path, an address, or files in memory
 * @param {import("./types.js").OpenOptions} options
 * @param {string} role the role that the graph must have
 * @param {any} beside the module of ONNX Runtime that has opened other graphs of these
 * @returns {Promise<Graph>}
 */
export async function openGraph(source, options, role = "step", beside = null) {
  const { signal = null } = options, place = placeOf(source, signal, options.onProgress);
  const provider = options.provider ?? DEFAULT_PROVIDER;
  if (!PROVIDERS.includes(provider)) {
    throw new T2RError("provider", `a provider of ${PROVIDERS.join(", ")}`, shown(provider), "choose one of those");
  }
  const { threads } = options, isOwn = provider === "t2r";
  if (isOwn && (options.ort || (threads ?? 1) !== 1)) {
    throw new T2RError("provider", "one thread and no ort with the provider t2r", options.ort ? "ort" : `${threads} threads`, "leave it out");
  }
  const bytes = await place.read(place.name);
  const { metadata, weights } = readModelFile(bytes);
  const signature = readSignature(metadata, options.maxStateBytes);
  if (signature.role !== role) {
    throw new T2RError("graph", `a graph of the role ${role}`, `one of the role ${signature.role}`, "open the other file");
  }
  requireMemory(signature, signature.batch ?? 1, options.maxStateBytes);
  const ort = beside ?? options.ort ?? (isOwn ? await openModule() : await runtime(provider)); // the module reads no files, and keeps those given
  const wanted = isOwn ? weights.filter((name) => !ort.files.has(name)) : weights;
  const externalData = await Promise.all(wanted.map((name) => weightsOf(place, name, signal, isOwn)));
  const session = await create(ort, place, bytes, externalData, provider, threads, signature);
  try {
    signal?.throwIfAborted();
    checkInterface(signature, session);
  } catch (error) {
    await session.release();
    throw error;
  }
  return { session, ort, signature, provider, place };
}

async function runtime(provider) {
  try {
    const found = await loadOrt(provider);
    return found.default?.InferenceSession ? found.default : found;
  } catch (error) {
    throw new T2RError("provider", `the package ${PACKAGE}`, printable(error), `npm install ${PACKAGE}`);
  }
}

async function create(ort, place, bytes, externalData, provider, threads, signature) {
  const options = { executionProviders: [provider], logSeverityLevel: 4 };
  if (threads !== undefined) Object.assign(options, { intraOpNumThreads: threads, interOpNumThreads: 1 });
  if (signature.role === "prefill" && signature.quantization === "none" && provider !== "webgpu") {
    options.extra = { session: { disable_prepacking: "1" } };
  }
  if (provider === "webgpu" && KEEPS_ON_GPU) {
    const states = signature.states.map((state) => [`present_${state.name}`, "gpu-buffer"]);
    options.preferredOutputLocation = Object.fromEntries(states);
  }
  try {
    if (place.path !== null && provider !== "t2r") return await ort.InferenceSession.create(place.path, options);
    return await ort.InferenceSession.create(bytes, { ...options, externalData });
  } catch (error) {
    if (error instanceof T2RError) throw error;
    const [kind] = FAULTS.find(([, words]) => words.test(String(error.message ?? error))) ?? ["graph"];
    throw new T2RError(kind, "a graph that ONNX Runtime opens", printable(error), "check the file, or export the model again");
  }
}

/** The bytes of a file at a path or an address. */
export function readFile(source, signal) {
  return placeOf(source, signal).read("");
}

/** Where a source's files are; `signal` ends reading, downloads report to `onProgress`. @returns {Place} */
function placeOf(source, signal, onProgress = undefined) {
  if (source && typeof source === "object" && "files" in source) {
    const { graph, files } = source;
    if (typeof files !== "object" || files === null || typeof graph !== "string") {
      throw new T2RError("file", "files by their names, and the name of the graph", `${shown(files)} and ${shown(graph)}`, "pass both");
    }
    const read = async (name) => {
      if (!Object.hasOwn(files, name)) throw missing(name, "nothing of that name");
      if (!(files[name] instanceof Uint8Array)) throw missing(name, shown(files[name]));
      return files[name];
    };
    return { name: graph, path: null, read };
  }
  if (typeof source !== "string" && !(source instanceof URL)) {
    throw new T2RError("file", "a path, an address or files", shown(source), "pass one");
  }
  return inFolder(source, signal) ?? atAddress(source, signal, onProgress);
}

function atAddress(source, signal, onProgress) {
  let address;
  try {
    address = new URL(String(source), globalThis.location?.href);
  } catch (error) {
    throw missing(source, error);
  }
  const read = async (name) => {
    const wanted = name ? new URL(encodeURIComponent(name), address) : address;
    let answer;
    try {
      answer = await fetch(wanted, { signal });
    } catch (error) {
      signal?.throwIfAborted();
      throw missing(wanted, error);
    }
    if (!answer.ok) throw missing(wanted, `the answer ${answer.status}`);
    try {
      return new Uint8Array(await (onProgress && answer.body ? counted(answer, wanted, onProgress) : answer).arrayBuffer());
    } catch (error) {
      signal?.throwIfAborted();
      throw missing(wanted, error);
    }
  };
  return { name: "", path: null, read };
}

/** A response whose bytes are counted as they arrive. If compressed, its content-length is the compressed size. */
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

/** A file of weights: in a folder ONNX Runtime maps it itself, so it need only exist unless `isRead`. */
async function weightsOf(place, name, signal, isRead) {
  try {
    if (place.find && !isRead) return void (await place.find(name));
    return { path: name, data: await place.read(name) };
  } catch (error) {
    signal?.throwIfAborted();
    throw new T2RError("weights", `the weights ${name} beside the graph`, printable(error, 200), "copy all files together");
  }
}

/** The source of another graph file in the same folder. */
export function beside(graph, source, name) {
  if (source && typeof source === "object" && "files" in source) return { ...source, graph: name };
  if (graph.place.path !== null) return graph.place.path.replace(/[^/\\]*$/, () => name);
  return new URL(encodeURIComponent(name), new URL(String(source), globalThis.location?.href));
}
