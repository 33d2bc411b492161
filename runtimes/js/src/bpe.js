/** Byte-pair encoding: the library's, whose merges are found by ids; it writes each pair as JSON, also of 500,000 merges. */

// @ts-expect-error its types lack this export
import { BPE } from "@huggingface/tokenizers";

export class PairEncoding extends BPE {
  #ranks;

  /**
   * @param {object} model of a tokenizer.json, whose `merges` are ranks: Map of left ids to Maps of right ids to places in its list
   * @param {Map<string, number>} pieces
   */
  constructor(model, pieces) {
    super({ ...model, vocab: {}, merges: [] });
    this.tokens_to_ids = pieces;
    this.unk_token_id = pieces.get(model.unk_token); // its runs are fused
    this.#ranks = model.merges;
  }

  /** Called by the library: queues a node if a merge joins it with the next one. */
  add_node(queue, node) {
    const rank = this.#ranks.get(this.tokens_to_ids.get(node.token))?.get(this.tokens_to_ids.get(node.next.token));
    if (rank === undefined) return;
    node.score = rank + node.bias;
    queue.push(node);
  }
}
