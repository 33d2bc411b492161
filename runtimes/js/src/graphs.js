/** A step graph and the one beside it that it names: opened together, used by one at a time, given back together. */

import { T2RError } from "./errors.js";
import { beside, openGraph } from "./session.js";
import { differs } from "./signature.js";

export class Graphs {
  #what;
  #inUse = false;
  #closed = false;

  /** Use Graphs.open. */
  constructor(what, step, other) {
    this.#what = what;
    this.step = step;
    this.other = other;
  }

  /**
   * Open the graphs and make something of them; they are given back if that fails.
   * @template T
   * @param {string} what a word for who uses them, as messages say it
   * @param {any} source as of openGraph
   * @param {import("./index.js").OpenOptions} options
   * @param {string | null} role of the other graph, which is null where the step graph names none; null: leave it alone
   * @param {(signature: import("./index.js").Signature) => void} check throws where the step graph is of another kind
   * @param {(graphs: Graphs) => T} make
   * @returns {Promise<T>}
   */
  static async open(what, source, options, role, check, make) {
    const graphs = new Graphs(what, await openGraph(source, options), null);
    try {
      const { signature, place } = graphs.step;
      check(signature);
      const name = role === null ? undefined : signature.graphs[role];
      if (name !== undefined) {
        graphs.other = await openGraph(beside(graphs.step, source, name), options, role);
        const key = differs(signature, graphs.other.signature, role);
        if (key) throw new T2RError("graph", `the ${role} graph of ${place.name || "this graph"}`, `another ${key}`, "copy all files together");
      }
      return make(graphs);
    } catch (error) {
      await graphs.#release();
      throw error;
    }
  }

  /** Do one thing while nobody else uses them. @throws {T2RError} graph: they are in use, or closed */
  async alone(work) {
    this.enter();
    try {
      return await work();
    } finally {
      this.leave();
    }
  }

  enter() {
    if (this.#closed) throw new T2RError("graph", `an open ${this.#what}`, "one that is closed", "open the graph again");
    if (this.#inUse) throw new T2RError("graph", `a ${this.#what} that nobody else uses`, "one in use", "wait for its end");
    this.#inUse = true;
  }

  leave() {
    this.#inUse = false;
  }

  /** Give back the sessions, after `work`; a second time is nothing. */
  async close(work) {
    if (this.#closed) return;
    await this.alone(async () => {
      work();
      await this.#release();
    });
    this.#closed = true;
  }

  async #release() {
    await this.step.session.release();
    await this.other?.session.release();
  }
}
