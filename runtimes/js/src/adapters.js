/** Low-rank adapters, which a graph holds beside its weights: contract/adapters.md. The state `adapter` chooses one for each row. */

import { isList } from "./arguments.js";
import { T2RError, printable, shown } from "./errors.js";

const MOST = 1024;
const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;
export const ADAPTER = "adapter"; // the state's name

/** Whether these are names of adapters, of a graph with these states. */
export function areAdapters(names, states) {
  const fit = ({ name, dtype, shape, initial }) => name === ADAPTER && dtype === "int32" && String(shape) === "B" && initial === 0;
  return Array.isArray(names) && names.length > 0 && names.length <= MOST && names.every((name) => typeof name === "string" && NAME.test(name)) &&
    new Set(names).size === names.length && states.some(fit);
}

/**
 * The state `adapter` of named adapters: one of each row, or of all.
 * @param {{ signature: import("./types.js").Signature, batch: number }} at
 * @throws {T2RError} argument: an unknown name, or not one for each sequence
 */
export function adapterState({ signature: { adapters }, batch }, names) {
  const each = isList(names) ? names : names === null || typeof names === "string" ? new Array(batch).fill(names) : null;
  if (each?.length !== batch) throw refused(`a name of an adapter, or ${batch} in an array, one per sequence`, shown(names), "pass one for each");
  const known = adapters ?? [], numbers = Int32Array.from(each, (name) => (name === null ? 0 : known.indexOf(name) + 1));
  const wrong = each.findIndex((name, row) => name !== null && numbers[row] === 0);
  if (wrong >= 0) {
    const [expected, what] = known.length
      ? [`an adapter of this graph: ${known.join(", ")}`, "use one of those"]
      : ["a graph with adapters", "export it with --adapter NAME=PATH"];
    throw refused(printable(expected, 400), shown(each[wrong]), what);
  }
  return { dtype: "int32", dims: [batch], bytes: new Uint8Array(numbers.buffer) };
}

/** Refuse numbers that no adapter of the graph has. @throws {T2RError} snapshot */
export function checkAdapters({ adapters }, states) {
  if (!adapters) return;
  const wrong = new Int32Array(states.get(ADAPTER).bytes.slice().buffer).find((number) => number < 0 || number > adapters.length);
  if (wrong !== undefined) {
    throw new T2RError("snapshot", `numbers of adapters in 0 … ${adapters.length}`, `${wrong}`, "take the states from this graph");
  }
}

function refused(expected, received, what) {
  return new T2RError("argument", expected, received, what);
}
