/** The race: cost of a token in this model and in a softmax model of its size, with equal time for both. */

import { amount, counted } from "./sentences.js";

const TOKENS = 2000;
const NAMES = ["ours", "peer"];

export class Race {
  #worker;
  #plots;
  #listen;

  /**
   * @param {import("./asker.js").Asker} worker
   * @param {{time: import("./plot.js").Plot, memory: import("./plot.js").Plot}} plots
   * @param {(listener: (said: object) => void) => void} listen to the worker's unsolicited messages
   */
  constructor(worker, plots, listen) {
    [this.#worker, this.#plots, this.#listen] = [worker, plots, listen];
  }

  async run(peer, way) {
    const verdict = document.getElementById("verdict");
    verdict.textContent = "They read …";
    for (const plot of Object.values(this.#plots)) {
      plot.turnTo("race");
      plot.clear();
    }
    this.#listen(({ lanes }) => this.#show(lanes));
    try {
      const { lanes, stopped } = await this.#worker.ask("race", peer, way, TOKENS);
      this.#show(lanes);
      verdict.textContent = said(lanes, stopped);
    } catch (error) {
      verdict.textContent = "";
      throw error;
    }
  }

  #show(lanes) {
    lanes.forEach(({ position, bytes, ms }, n) => {
      const name = NAMES[n], lane = document.getElementById(`${name}-lane`);
      lane.max = TOKENS;
      lane.value = position;
      document.getElementById(`${name}-said`).textContent = `${counted(position)} tokens, ${amount(bytes)}`;
      if (ms !== null) {
        this.#plots.time.add(name, position, ms);
        this.#plots.memory.add(name, position, bytes);
      }
    });
  }
}

/** The result in a sentence. */
function said([ours, peer], stopped) {
  const [first, second] = ours.position >= peer.position ? [["This model", ours], ["the softmax model", peer]] : [["The softmax model", peer], ["this model", ours]];
  if (!first[1].position) return "Stopped before it began.";
  const begun = stopped ? "Stopped. " : "";
  return `${begun}${first[0]} read ${counted(first[1].position)} tokens and holds ${amount(first[1].bytes)}. In the same time ${second[0]} read ${counted(second[1].position)}, and holds ${amount(second[1].bytes)}.`;
}
