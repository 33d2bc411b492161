/** Texts for users: where the model runs, amounts, and errors. */

const TELL = "tell whoever runs this page";
const OTHER_KIND = `The model's file is damaged or of another kind. Please ${TELL}.`;
const OURS = `Something went wrong inside of this page. Load it again; if that does not help, ${TELL}.`;

/** A sentence for every kind of error of the contract, and for those of a page. */
const SENTENCES = {
  list: `The list of this page's files is damaged. Load the page again; if that does not help, ${TELL}.`,
  script: "A part of this page could not be fetched. Check the connection, and load the page again.",
  file: "The model could not be fetched. Check the connection, and load the page again.",
  graph: `The model's file is damaged or incomplete. Load the page again; if that does not help, ${TELL}.`,
  metadata: OTHER_KIND,
  interface: OTHER_KIND,
  tokenizer: OTHER_KIND,
  version: `The model was made for another version of this page. Please ${TELL}.`,
  weights: "A file of the model's weights is missing. Check the connection, and load the page again.",
  provider: "This browser cannot run the model. A newer one can.",
  snapshot: "This file holds no memory of this model, or it is damaged. Nothing has changed.",
  position: "The text is as long as this model can take. Begin a new one, or a shorter one.",
  length: "This text is too long for this page. Shorten it, and try again.",
  token: "The model cannot read this text. Change it, and try again.",
  sampling: "One of the settings is out of its range. Correct it, and try again.", // one that no field checks
  memory: "This browser has no memory left for that. Close other tabs, and load the page again.",
  runtime: "The model stopped while it ran. Load the page again.",
};

/** An error as a sentence for users. */
export function sentence({ kind, words }) {
  return words ?? SENTENCES[kind] ?? OURS;
}

/** The number in a field. @throws {Error} sampling: none, or one out of its range, with words that name the field, which gets the focus */
export function numberIn(field) {
  if (field.checkValidity()) return field.valueAsNumber;
  const [first, last] = [field.min, field.max].map((text) => counted(Number(text)));
  field.closest("details").open = true;
  field.focus();
  const words = `${field.labels[0].firstChild.data.trim()} is a whole number from ${first} to ${last}. Correct it, and try again.`;
  throw Object.assign(failure("sampling", field.validationMessage), { words });
}

/** An error of a kind. */
export function failure(kind, message) {
  return Object.assign(new Error(message), { kind });
}

/** Where the model runs, and by what. */
export function whereItRuns(way, threads) {
  if (way === "webgpu") return "on the GPU (WebGPU), by ONNX Runtime";
  const by = way === "t2r" ? "our own kernels" : "ONNX Runtime";
  return `on the processor (WebAssembly, ${threads === 1 ? "one thread" : `${threads} threads`}), by ${by}`;
}

/** Bytes for display: 67.6 kB, 4.9 MB. */
export function amount(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  return bytes < 999_950 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

/** A number for display: 10,000. */
export function counted(number) {
  return number.toLocaleString("en");
}
