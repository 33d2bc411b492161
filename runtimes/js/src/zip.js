/** Uncompressed zip archives of contract/snapshots.md: written byte-exactly, read with bounds. */

const LOCAL = 0x04034b50, ENTRY = 0x02014b50, END = 0x06054b50, END64 = 0x06064b50, LOCATOR = 0x07064b50;
const LIMIT = 2 ** 31 - 1; // largest value of a 32-bit field
const FULL = 0xffffffff;
const MAX_MEMBERS = 1 << 16;
const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let bit = 0; bit < 8; bit++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n >>> 0;
});

export function crc32(bytes) {
  let crc = FULL;
  for (let i = 0; i < bytes.length; i++) crc = TABLE[(crc ^ bytes[i]) & 255] ^ (crc >>> 8);
  return (crc ^ FULL) >>> 0;
}

/** Consecutive little-endian numbers. */
class Record {
  bytes = [];
  add(bits, ...values) {
    for (const value of values) {
      for (let shift = 0, rest = value; shift < bits; shift += 8, rest = Math.floor(rest / 256)) this.bytes.push(rest % 256);
    }
    return this;
  }
  text(bytes) {
    this.bytes.push(...bytes);
    return this;
  }
  done() {
    return Uint8Array.from(this.bytes);
  }
}

/**
 * @param {[string, Uint8Array][]} members
 * @returns {Uint8Array} an archive of them, in this order
 */
export function writeZip(members) {
  const parts = [], entries = [];
  let at = 0;
  for (const [member, content] of members) {
    const name = encoder.encode(member), flags = name.every((byte) => byte < 128) ? 0 : 2048;
    const crc = crc32(content), size = content.length;
    const header = new Record().add(32, LOCAL).add(16, 45, flags, 0, 0, 33).add(32, crc, FULL, FULL).add(16, name.length, 20);
    header.text(name).add(16, 1, 16).add(64, size, size);
    entries.push(entryOf(name, flags, crc, size, at));
    parts.push(header.done(), content);
    at += header.bytes.length + size;
  }
  const bytes = entries.reduce((all, entry) => all + entry.length, 0);
  return join([...parts, ...entries, ...endOf(entries.length, bytes, at)]);
}

function entryOf(name, flags, crc, size, at) {
  const large = [...(size > LIMIT ? [size, size] : []), ...(at > LIMIT ? [at] : [])];
  const extra = large.length ? new Record().add(16, 1, 8 * large.length).add(64, ...large).done() : new Uint8Array();
  const shown = size > LIMIT ? FULL : size;
  const entry = new Record().add(32, ENTRY).add(16, 0x032d, 45, flags, 0, 0, 33).add(32, crc, shown, shown);
  entry.add(16, name.length, extra.length, 0, 0, 0).add(32, 0x01800000, at > LIMIT ? FULL : at);
  return entry.text(name).text(extra).done();
}

function endOf(count, bytes, at) {
  const parts = [];
  if (count >= 0xffff || bytes > LIMIT || at > LIMIT) {
    const end = new Record().add(32, END64).add(64, 44).add(16, 45, 45).add(32, 0, 0).add(64, count, count, bytes, at);
    parts.push(end.done(), new Record().add(32, LOCATOR, 0).add(64, at + bytes).add(32, 1).done());
  }
  const few = Math.min(count, 0xffff);
  const end = new Record().add(32, END).add(16, 0, 0, few, few);
  return [...parts, end.add(32, Math.min(bytes, FULL), Math.min(at, FULL)).add(16, 0).done()];
}

export function join(parts) {
  const whole = new Uint8Array(parts.reduce((all, part) => all + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/**
 * @param {Uint8Array} bytes
 * @returns {Map<string, {content: Uint8Array, crc: number}>} the members, views of `bytes`; nothing is unpacked
 * @throws {Error} not an archive, or a member that is compressed, has two sizes, is out of bounds or overlaps another
 */
export function readZip(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const { count, start, size } = directory(view);
  const members = new Map(), taken = [];
  let at = start;
  for (let n = 0; n < count; n++) {
    require(at + 46 <= start + size && view.getUint32(at, true) === ENTRY, "an entry of the directory is damaged");
    const [nameLength, extraLength, commentLength] = [28, 30, 32].map((place) => view.getUint16(at + place, true));
    const next = at + 46 + nameLength + extraLength + commentLength;
    require(next <= start + size, "an entry of the directory is cut off");
    const name = decoder.decode(bytes.subarray(at + 46, at + 46 + nameLength));
    const extra = { at: at + 46 + nameLength, length: extraLength };
    const [full, packed, offset] = wide(view, extra, [24, 20, 42].map((place) => view.getUint32(at + place, true)));
    require(view.getUint16(at + 10, true) === 0 && full === packed, `${name} is compressed`);
    require(!(view.getUint16(at + 8, true) & 1), `${name} is encrypted`);
    require(!members.has(name), `${name} twice`);
    require(offset + 30 <= start && view.getUint32(offset, true) === LOCAL, `${name} lies outside of the file`);
    const content = offset + 30 + view.getUint16(offset + 26, true) + view.getUint16(offset + 28, true);
    require(content + full <= start, `${name} lies outside of the file`);
    taken.push([offset, content + full]);
    members.set(name, { content: bytes.subarray(content, content + full), crc: view.getUint32(at + 16, true) });
    at = next;
  }
  taken.sort((a, b) => a[0] - b[0]);
  require(taken.every(([from], n) => n === 0 || from >= taken[n - 1][1]), "members lie over one another");
  return members;
}

/** Locates the directory by the last end-of-directory record of the file. */
function directory(view) {
  const lowest = Math.max(0, view.byteLength - 22 - 0xffff);
  let end = view.byteLength - 22;
  while (end >= lowest && view.getUint32(end, true) !== END) end--;
  require(end >= lowest, "no end of a zip archive");
  let count = view.getUint16(end + 10, true), size = view.getUint32(end + 12, true), start = view.getUint32(end + 16, true);
  let last = end;
  if (end >= 20 && view.getUint32(end - 20, true) === LOCATOR) {
    last = long(view, end - 12);
    require(last + 56 <= end - 20 && view.getUint32(last, true) === END64, "a damaged end of a zip64 archive");
    [count, size, start] = [long(view, last + 32), long(view, last + 40), long(view, last + 48)];
  }
  require(count <= MAX_MEMBERS && start + size <= last, "a directory outside of the file");
  return { count, start, size };
}

/** Size, packed size and offset; those of FULL are read from the extra field. */
function wide(view, extra, numbers) {
  for (let at = extra.at; at + 4 <= extra.at + extra.length; ) {
    const length = view.getUint16(at + 2, true);
    require(at + 4 + length <= extra.at + extra.length, "an extra field that is cut off");
    if (view.getUint16(at, true) === 1) {
      let place = at + 4;
      return numbers.map((number) => {
        if (number !== FULL) return number;
        require(place + 8 <= at + 4 + length, "an extra field that is cut off");
        return long(view, (place += 8) - 8);
      });
    }
    at += 4 + length;
  }
  return numbers;
}

function long(view, at) {
  return Number(view.getBigUint64(at, true));
}

function require(good, problem) {
  if (!good) throw new Error(problem);
}
