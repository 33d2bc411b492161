/** Inputs and outputs that a graph's metadata requires, and the feeds of generation graphs: CONTRACT.md. */

import { T2RError, printable } from "./errors.js";

const FORMS = { encoder: encoderForms, generate: generationForms };
const WHOLE = ["int64", []], REAL = ["float64", []], LIST = ["int64", ["N"]];

/** Refuse a graph whose inputs and outputs do not match its metadata exactly. */
export function checkInterface(signature, session) {
  const { inputs, outputs } = (FORMS[signature.role] ?? stepForms)(signature);
  const problems = [
    ...compared(inputs, session.inputNames, session.inputMetadata, "input", signature.batch),
    ...compared(outputs, session.outputNames, session.outputMetadata, "output", signature.batch),
  ];
  if (problems.length) {
    const expected = "the inputs and outputs that the graph's metadata lists";
    throw new T2RError("interface", expected, printable(problems.join("; ")), "export the model again");
  }
}

/**
 * Feeds of a generation graph beside the states.
 * @param {any} ort
 * @param {number} token the newest, not yet read
 * @param {import("./sampler.js").Sampler} sampler
 * @param {number} maxTokens @param {Iterable<number>} stop @param {Iterable<number>} occurred tokens read before, for penalties
 */
export function generationFeeds(ort, token, { options, seed, draws }, maxTokens, stop, occurred) {
  return {
    input_ids: list(ort, [token]),
    stop_tokens: list(ort, stop),
    occurred: list(ort, occurred),
    ...wholes(ort, { max_tokens: maxTokens, top_k: options.topK, no_repeat_ngram: options.noRepeatNgram, seed, drawn: draws }),
    ...reals(ort, {
      temperature: options.temperature, top_p: options.topP, min_p: options.minP, repetition_penalty: options.repetitionPenalty,
    }),
  };
}

function list(ort, numbers) {
  const array = BigInt64Array.from([...numbers], BigInt);
  return new ort.Tensor("int64", array, [array.length]);
}

function wholes(ort, numbers) {
  const made = ([name, number]) => [name, new ort.Tensor("int64", BigInt64Array.of(BigInt(number)), [])];
  return Object.fromEntries(Object.entries(numbers).map(made));
}

function reals(ort, numbers) {
  const made = ([name, number]) => [name, new ort.Tensor("float64", Float64Array.of(number), [])];
  return Object.fromEntries(Object.entries(numbers).map(made));
}

/** Inputs and outputs of a step or prefill graph: name → [dtype, shape]. */
function stepForms({ role, vocabSize, inputSize: size, hiddenSize: hidden, topK, states, sourceStates: source }) {
  const read = role === "step" ? ["B"] : ["B", "N"], outputs = { logits: ["float32", ["B", vocabSize]] };
  const inputs = size === null ? { input_ids: ["int64", read] } : { inputs_embeds: ["float32", [...read, size]] };
  if (hidden !== null) outputs.hidden = ["float32", ["B", hidden]]; // unused here
  addStates(inputs, outputs, states, source);
  if (topK !== null) Object.assign(outputs, { top_logits: ["float32", ["B", topK]], top_tokens: ["int64", ["B", topK]] });
  if (topK !== null && source) outputs.log_sum = ["float32", ["B"]];
  return { inputs, outputs };
}

function addStates(inputs, outputs, states, source) {
  for (const { name, dtype, shape } of states) inputs[`past_${name}`] = outputs[`present_${name}`] = [dtype, shape];
  for (const { name, dtype, shape } of source ?? []) inputs[name] = [dtype, shape];
}

function generationForms({ states, sourceStates: source }) {
  const inputs = {
    input_ids: ["int64", [1]], stop_tokens: LIST, occurred: LIST,
    max_tokens: WHOLE, top_k: WHOLE, no_repeat_ngram: WHOLE, seed: WHOLE, drawn: WHOLE,
    temperature: REAL, top_p: REAL, min_p: REAL, repetition_penalty: REAL,
  };
  const outputs = { tokens: LIST }, single = (state) => ({ ...state, shape: state.shape.map((d) => (d === "B" ? 1 : d)) });
  addStates(inputs, outputs, states.map(single), source?.map(single));
  return { inputs, outputs };
}

function encoderForms({ states, sourceStates: source, startStates: started, sourceLength: length }) {
  const outputs = Object.fromEntries(source.map(({ name, dtype, shape }) => [name, [dtype, shape]]));
  for (const { name, dtype, shape } of states) if (started.includes(name)) outputs[`present_${name}`] = [dtype, shape];
  return { inputs: { source_ids: ["int64", ["B", length ?? "M"]], source_lengths: ["int64", ["B"]] }, outputs };
}

function compared(wanted, names, metadata, what, batch) {
  const problems = Object.keys(wanted).filter((name) => !names.includes(name)).map((name) => `missing ${what} ${name}`);
  names.forEach((name, n) => {
    if (!Object.hasOwn(wanted, name)) return problems.push(`unexpected ${what} ${name}`);
    const form = metadata?.[n];
    if (!form) return; // an ONNX Runtime without this metadata
    const [dtype, shape] = wanted[name];
    const fits = (want, have) => (want === "B" && batch !== null ? batch === have
      : typeof want === "number" ? want === have : typeof have !== "number" || have < 0);
    if (form.type !== dtype || form.shape?.length !== shape.length || !shape.every((want, i) => fits(want, form.shape[i]))) {
      problems.push(`${name} ${form.type} (${form.shape}) for ${dtype} (${shape})`);
    }
  });
  return problems;
}
