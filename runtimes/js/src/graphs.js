/** A step graph and those beside it that it names: opened when they are wanted, used by one at a time, given back together. */

import { T2RError } from "./errors.js";
import { beside, openGraph } from "./session.js";
import { differs } from "./signature.js";

export class Graphs {
  #what;
  #source;
  #options;
  #all; // what those who share them have together: the others (role → graph), whether they are in use, and by how many
  #closed = false;

  /** Use Graphs.open, or share. */
  constructor(what, source, options, step, all = { others: new Map(), inUse: false, users: 0 }) {
    this.#what = what;
    this.#source = source;
    this.#options = options;
    this.step = step;
    this.#all = all;
    all.users++;
  }

  /** The same graphs for somebody else, to be closed by each. @throws {T2RError} state: they are closed */
  share() {
    this.requireOpen();
    return new Graphs(this.#what, this.#source, this.#options, this.step, this.#all);
  }

  /**
   * Open the graphs and make something of them; they are given back if that fails.
   * @template T
   * @param {string} what a word for who uses them, as messages say it
   * @param {any} source as of openGraph
   * @param {import("./types.js").OpenOptions} options
   * @param {string[]} roles of the others to open at once, where the step graph names them
   * @param {(signature: import("./types.js").Signature) => void} check throws where the step graph is of another kind
   * @param {(graphs: Graphs) => T} make
   * @returns {Promise<T>}
   */
  static async open(what, source, options, roles, check, make) {
    const graphs = new Graphs(what, source, options, await openGraph(source, options));
    try {
      check(graphs.step.signature);
      for (const role of roles) if (graphs.has(role)) await graphs.other(role);
      return make(graphs);
    } catch (error) {
      await graphs.#release();
      throw error;
    }
  }

  /** Whether the step graph names one of this role, which can be used here: the CPU alone runs those that choose tokens. */
  has(role) {
    const choosing = role === "generate";
    return this.step.signature.graphs[role] !== undefined && !(choosing && this.step.provider === "webgpu");
  }

  /** The graph of a role, or null where it is not open. */
  opened(role) {
    return this.#all.others.get(role) ?? null;
  }

  /** The graph of a role that there is, opened if it is not. @throws {T2RError} as openGraph; graph: of another model */
  async other(role) {
    const { others } = this.#all;
    if (!others.has(role)) others.set(role, await this.#openBeside(role));
    return others.get(role);
  }

  async #openBeside(role) {
    const { signature, place } = this.step;
    const graph = await openGraph(beside(this.step, this.#source, signature.graphs[role]), this.#options, role);
    const key = differs(signature, graph.signature, role);
    if (!key) return graph;
    await graph.session.release();
    throw new T2RError("graph", `the ${role} graph of ${place.name || "this graph"}`, `another ${key}`, "copy all files together");
  }

  /** Do one thing while nobody else uses them. @throws {T2RError} state: they are in use, or closed */
  async alone(work) {
    this.enter();
    try {
      return await work();
    } finally {
      this.leave();
    }
  }

  requireOpen() {
    if (this.#closed) throw new T2RError("state", `an open ${this.#what}`, "one that is closed", "open the graph again");
  }

  enter() {
    this.requireOpen();
    if (this.#all.inUse) throw new T2RError("state", `a ${this.#what} that nobody else uses`, "one in use", "wait for its end");
    this.#all.inUse = true;
  }

  leave() {
    this.#all.inUse = false;
  }

  /** Give back the sessions, after `work`, unless somebody else has them too; a second time is nothing. */
  async close(work) {
    if (this.#closed) return;
    await this.alone(async () => {
      work();
      if (--this.#all.users === 0) await this.#release();
    });
    this.#closed = true;
  }

  async #release() {
    for (const { session } of [this.step, ...this.#all.others.values()]) await session.release();
  }
}
