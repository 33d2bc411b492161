/** A radix tree that finds texts at a place of another text. Its size grows with the number of texts, not of their letters. */

/** Total letters compared by the tokenizer's own loops. Tests check that twice the text is twice the work. */
export const work = { letters: 0 };

export class Trie {
  #root = { label: "", value: undefined, children: null };

  /** @param {Iterable<[string, any]>} entries non-empty texts and their values; the last of equal texts wins */
  constructor(entries) {
    for (const [text, value] of entries) this.#insert(text, value);
  }

  /** Call `visit` with the value and end of each text at this place, shortest first. */
  each(text, at, visit) {
    let node = this.#root, place = at;
    for (;;) {
      node = node.children?.get(text.charCodeAt(place));
      work.letters += node ? node.label.length : 1;
      if (!node || !text.startsWith(node.label, place)) return;
      place += node.label.length;
      if (node.value !== undefined) visit(node.value, place);
    }
  }

  /** The longest text at this place. @returns {{value: any, end: number} | null} */
  longest(text, at) {
    let found = null;
    this.each(text, at, (value, end) => (found = { value, end }));
    return found;
  }

  #insert(text, value) {
    let node = this.#root, place = 0;
    while (place < text.length) {
      const key = text.charCodeAt(place), child = node.children?.get(key);
      if (!child) {
        (node.children ??= new Map()).set(key, { label: text.slice(place), value, children: null });
        return;
      }
      const { label } = child;
      let same = 1;
      while (same < label.length && label.charCodeAt(same) === text.charCodeAt(place + same)) same++;
      if (same < label.length) split(node, key, child, same);
      node = node.children.get(key);
      place += same;
    }
    node.value = value;
  }
}

/** Insert a node between a node and its child, after `same` letters of the child's label. */
function split(node, key, child, same) {
  const { label } = child;
  node.children.set(key, { label: label.slice(0, same), value: undefined, children: new Map([[label.charCodeAt(same), child]]) });
  child.label = label.slice(same);
}
