/** Inputs and outputs that a graph's metadata requires: CONTRACT.md. */

import { T2RError, printable } from "./errors.js";

/** Refuse a graph whose inputs and outputs do not match its metadata exactly. */
export function checkInterface(signature, session) {
  const { inputs, outputs } = (signature.role === "encoder" ? encoderForms : stepForms)(signature);
  const problems = [
    ...compared(inputs, session.inputNames, session.inputMetadata, "input", signature.batch),
    ...compared(outputs, session.outputNames, session.outputMetadata, "output", signature.batch),
  ];
  if (problems.length) {
    const expected = "the inputs and outputs that the graph's metadata lists";
    throw new T2RError("interface", expected, printable(problems.join("; ")), "export the model again");
  }
}

/** Inputs and outputs of a step, prefill or draft-check graph: name → [dtype, shape]. */
function stepForms({ role, vocabSize, inputSize: size, hiddenSize: hidden, topK, states, sourceStates: source }) {
  const read = role === "step" ? ["B"] : ["B", "N"], checks = role === "draft_check", rows = checks ? ["B", "N"] : ["B"];
  const outputs = { logits: ["float32", [...rows, vocabSize]] };
  const inputs = size === null ? { input_ids: ["int64", read] } : { inputs_embeds: ["float32", [...read, size]] };
  if (checks) inputs.keep = ["int64", ["B"]];
  if (hidden !== null) outputs.hidden = ["float32", [...rows, hidden]]; // unused here
  for (const { name, dtype, shape } of states) inputs[`past_${name}`] = outputs[`present_${name}`] = [dtype, shape];
  for (const { name, dtype, shape } of source ?? []) inputs[name] = [dtype, shape];
  if (topK !== null) Object.assign(outputs, { top_logits: ["float32", [...rows, topK]], top_tokens: ["int64", [...rows, topK]] });
  if (topK !== null && source) outputs.log_sum = ["float32", ["B"]];
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
