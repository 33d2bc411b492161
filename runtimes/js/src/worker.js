/** The script of workers: serves the calls of one WorkerDecoder, or renders one chat template. */

import { workerPort } from "#platform";

import { Decoder } from "./decoder.js";
import { T2RError } from "./errors.js";

const acknowledged = new Map(); // call → resolver of the owner's answer to a token
const aborts = new Map(); // call → what aborts it
let decoder = null;

const post = workerPort(async ({ id, call, args, abortable, answer, abort }) => {
  if (answer !== undefined) return acknowledged.get(id)?.(answer);
  if (abort) return aborts.get(id)?.abort();
  const made = new AbortController(), signal = abortable ? made.signal : null;
  if (abortable) aborts.set(id, made);
  try {
    const value = await CALLS[call]({ id, signal }, ...args);
    post({ id, value, now: now() });
  } catch (error) {
    if (signal?.aborted && error === signal.reason) return post({ id, aborted: true, now: now() });
    const { message, stack } = error;
    post({ id, error: { kind: error instanceof T2RError ? error.kind : null, message: String(message ?? error), stack }, now: now() });
  } finally {
    aborts.delete(id);
  }
});

const CALLS = {
  async render(_, template, names, limit) {
    const { Template } = await jinja();
    const text = new Template(template).render(names);
    if (text.length > limit) throw new Error(`the rendered text has more than ${limit} characters`);
    return text;
  },
  async open({ id }, source, { ort, progress, ...options }) {
    if (progress) options.onProgress = (news) => post({ id, progress: news });
    if (ort) options.ort = await moduleAt(ort);
    decoder = await Decoder.open(source, options);
    const { signature, provider } = decoder;
    return { signature, provider };
  },
  generate({ id, signal }, prompt, maxTokens, options, watched) {
    if (!watched) return decoder.generate(prompt, maxTokens, options, { signal });
    const onToken = async (token) => {
      post({ id, token });
      const answer = await new Promise((resolve) => acknowledged.set(id, resolve));
      acknowledged.delete(id);
      return answer;
    };
    return decoder.generate(prompt, maxTokens, options, { onToken, signal });
  },
  ...Object.fromEntries(["reset", "adapt", "step", "state", "setState", "reorder", "saveState", "close"].map(
    (name) => [name, (_, ...args) => decoder[name](...args)])),
  ...Object.fromEntries(["draft", "prefill", "readVectors", "topK", "loadState"].map(
    (name) => [name, ({ signal }, given) => decoder[name](given, { signal })])),
};

async function jinja() {
  try {
    // @ts-ignore an optional peer dependency
    return await import("@huggingface/jinja");
  } catch (error) {
    throw new T2RError("tokenizer", "the package @huggingface/jinja", String(error.message ?? error), "npm install @huggingface/jinja");
  }
}

async function moduleAt(address) {
  try {
    const found = await import(/* webpackIgnore: true */ /* @vite-ignore */ address);
    return found.default?.InferenceSession ? found.default : found;
  } catch (error) {
    throw new T2RError("provider", `ONNX Runtime at ${address}`, String(error.message ?? error), "check the address");
  }
}

function now() {
  return decoder && { batch: decoder.batch, position: decoder.position, stateBytes: decoder.stateBytes };
}
