/** Renders the messages of a chat with the template in the graph: contract/text.md. */

import { connect } from "#platform";

import { T2RError, printable, shown } from "./errors.js";

const MAX_TEMPLATE = 1 << 16; // characters
const MAX_TOKEN = 256; // characters of a special token
const MAX_OUTPUT = 1 << 16; // characters, plus four times those of the messages
const MEGABYTES = 256; // heap limit of a template's worker, in Node
export const SECONDS = 10; // including the worker's start
const TOKENS = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/** Whether this is `{template, tokens}` within the contract's bounds. @param {any} value @returns {boolean} */
export function isChatTemplate(value) {
  if (typeof value !== "object" || value === null || Object.keys(value).sort().join() !== "template,tokens") return false;
  const { template, tokens } = value, text = (one, most) => typeof one === "string" && one.length <= most;
  return text(template, MAX_TEMPLATE) && typeof tokens === "object" && tokens !== null && !Array.isArray(tokens) &&
    Object.entries(tokens).every(([name, one]) => TOKENS.includes(name) && text(one, MAX_TOKEN));
}

/**
 * Render messages as text. A template is an untrusted program: it runs in its own worker, which is terminated on timeout.
 * @param {import("./types.js").ChatTemplate} template
 * @param {readonly object[]} messages
 * @param {boolean} addGenerationPrompt
 * @param {{ worker?: any, signal?: AbortSignal | null, seconds?: number }} [limits] a worker as in WorkerOptions
 * @returns {Promise<string>}
 * @throws {T2RError} tokenizer: malformed messages, a template that refuses them or exceeds a limit, no @huggingface/jinja
 */
export async function render({ template, tokens }, messages, addGenerationPrompt, { worker, signal = null, seconds = SECONDS } = {}) {
  const said = plain(messages);
  const names = { ...tokens, messages: JSON.parse(said), add_generation_prompt: addGenerationPrompt, tools: null, documents: null };
  const { text, why } = await rendered([template, names, MAX_OUTPUT + 4 * said.length], worker, signal, seconds);
  if (text === undefined) throw refused("a chat template that accepts these messages", printable(why), "change the messages");
  return text;
}

/** The messages as JSON. */
function plain(messages) {
  if (!Array.isArray(messages)) throw refused("a list of messages", shown(messages));
  const wrong = messages.findIndex((message) => typeof message?.role !== "string");
  if (wrong >= 0) throw refused("messages with a role and a content", shown(messages[wrong]));
  try {
    return JSON.stringify(messages);
  } catch (error) {
    throw refused("messages of plain JSON data", printable(error));
  }
}

/** The worker's result: {text}, or {why} there is none. @returns {Promise<{ text?: string, why?: string }>} */
async function rendered(args, given, signal, seconds) {
  let worker = /** @type {any} */ (null), timer, abort = () => {};
  try {
    return await new Promise((resolve, reject) => {
      abort = () => reject(signal.reason);
      signal?.addEventListener("abort", abort);
      timer = setTimeout(() => resolve({ why: `rendering took longer than ${seconds} s` }), 1000 * seconds);
      const hear = ({ value, error }) => {
        if (error?.kind) reject(refused("the package @huggingface/jinja", error.message, "npm install @huggingface/jinja"));
        else resolve(error ? { why: error.message } : { text: value });
      };
      worker = connect(given, hear, (error) => resolve({ why: String(error?.message ?? error) }), MEGABYTES);
      worker.hold(true);
      worker.post({ id: 0, call: "render", args });
    });
  } finally {
    signal?.removeEventListener("abort", abort);
    clearTimeout(timer);
    worker?.end();
  }
}

function refused(expected, received, what = "correct it") {
  return new T2RError("tokenizer", expected, received, what);
}
