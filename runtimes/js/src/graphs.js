/** A step graph and the companions it names: used by one caller at a time, released together. */

import { T2RError } from "./errors.js";
import { beside, openGraph } from "./session.js";
import { differs } from "./signature.js";

export class Graphs {
  #what;
  #all; // shared by all users: companions (role → graph), whether they are in use, number of users, how they were opened
  #closed = false;

  /** Use Graphs.open, or share. */
  constructor(what, step, all) {
    this.#what = what;
    this.step = step;
    this.#all = all;
    all.users++;
  }

  /** The same graphs for another user; each user closes them. @throws {T2RError} state: they are closed */
  share() {
    this.requireOpen();
    return new Graphs(this.#what, this.step, this.#all);
  }

  /**
   * Open the graphs and pass them to `make`; they are released if that fails.
   * @template T
   * @param {string} what name of the graphs' user in messages
   * @param {any} source as of openGraph
   * @param {import("./types.js").OpenOptions} options
   * @param {string[]} roles of the companions to open, if the step graph names them
   * @param {(signature: import("./types.js").Signature) => void} check throws if the step graph is of another kind
   * @param {(graphs: Graphs) => T} make
   * @returns {Promise<T>}
   */
  static async open(what, source, options, roles, check, make) {
    const all = { others: new Map(), inUse: false, users: 0, source, options };
    const graphs = new Graphs(what, await openGraph(source, options), all);
    try {
      check(graphs.step.signature);
      for (const role of roles) if (graphs.step.signature.graphs[role] !== undefined) await graphs.openBeside(role, options.signal);
      return make(graphs);
    } catch (error) {
      await graphs.#release();
      throw error;
    }
  }

  /** The graph of a role, or null if it is not open. */
  opened(role) {
    return this.#all.others.get(role) ?? null;
  }

  /** Open the graph of a role, which the step graph names. @throws {T2RError} as openGraph; graph: of another model */
  async openBeside(role, signal = null) {
    const { signature, place } = this.step, { source } = this.#all, options = { ...this.#all.options, signal };
    const graph = await openGraph(beside(this.step, source, signature.graphs[role]), options, role, this.step.ort);
    const key = differs(signature, graph.signature, role);
    if (!key) return void this.#all.others.set(role, graph);
    await graph.session.release();
    throw new T2RError("graph", `the ${role} graph of ${place.name || "this graph"}`, `another ${key}`, "copy all files together");
  }

  /** Run `work` with exclusive use of the graphs. @throws {T2RError} state: they are in use, or closed */
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

  /** Run `work`, then release the sessions if there is no other user. Idempotent. */
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
