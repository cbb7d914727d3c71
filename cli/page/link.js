// SPDX-License-Identifier: Apache-2.0
// The state of the page in its address, behind the #, which no server ever sees: #plan?model=llama-3-8b&gpus=64. A
// dropped model travels along, compressed; larger files do not.
const LONGEST = 64 * 1024;
const LONGEST_FILE = 256 * 1024;

const toText = (buffer) =>
  btoa(String.fromCharCode(...new Uint8Array(buffer))).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');

const toBytes = (text) =>
  Uint8Array.from(atob(text.replaceAll('-', '+').replaceAll('_', '/')), (letter) => letter.charCodeAt(0));

export async function deflate(text) {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream('deflate-raw'));
  return toText(await new Response(stream).arrayBuffer());
}

/** Throws for what deflate() did not write, and for what would be larger than LONGEST_FILE. */
export async function inflate(text) {
  const reader = new Blob([toBytes(text)]).stream().pipeThrough(new DecompressionStream('deflate-raw')).getReader();
  const pieces = [];
  let size = 0;
  for (;;) {
    const {done, value} = await reader.read();
    if (done) break;
    size += value.length;
    if (size > LONGEST_FILE) throw new Error('too large');
    pieces.push(value);
  }
  return new Response(new Blob(pieces)).text();
}

/** `state`: {view, flags: Map, held: Set, beside: Map or null}; `files`: [[name, text]] that shall travel along. */
export async function linkOf(state, files) {
  const query = new URLSearchParams([...state.flags]);
  if (state.held.size) query.set('hold', [...state.held].join(','));
  if (state.beside) query.set('beside', new URLSearchParams([...state.beside]).toString());
  for (const [name, text] of files) query.set(`file:${name}`, await deflate(text));
  return `#${state.view}?${query}`;
}

/** The inverse: {view, flags, held, beside, files, complaints}. Never throws: what makes no sense is a complaint. */
export async function stateOfLink(fragment, views, known) {
  const state = {view: views[0], flags: new Map(), held: new Set(), beside: null, files: new Map(), complaints: []};
  const text = fragment.replace(/^#/, '');
  if (!text) return state;
  if (text.length > LONGEST) {
    state.complaints.push(`The link is ${text.length} letters long, but at most ${LONGEST} are read; it was left out.`);
    return state;
  }
  const [view, query = ''] = text.split(/\?(.*)/s);
  if (views.includes(view)) state.view = view;
  else state.complaints.push(`The link opens '${view.slice(0, 40)}', but there is only: ${views.join(', ')}.`);
  for (const [key, value] of new URLSearchParams(query)) await take(state, key, value, known);
  for (const value of state.flags.values()) {
    const missing = value.startsWith('./') ? value.slice(2) : '';
    if (missing && !state.files.has(missing)) {
      state.complaints.push(`The link names the file ${missing}, which it does not carry whole: drop that file here, or ask for the link again.`);
    }
  }
  return state;
}

async function take(state, key, value, known) {
  if (key.startsWith('file:')) {
    const name = key.slice(5);
    try {
      state.files.set(safeName(name), await inflate(value));
    } catch {
      state.complaints.push(`The link is cut short or damaged: its file ${name.slice(0, 80)} cannot be read.`);
    }
  } else if (key === 'hold') {
    state.held = new Set(value.split(',').filter((name) => known.has(name)));
  } else if (key === 'beside') {
    state.beside = new Map([...new URLSearchParams(value)].filter(([name]) => known.has(name)));
  } else if (known.has(key)) {
    state.flags.set(key, value);
  } else {
    state.complaints.push(`The link sets '${key.slice(0, 40)}', which this page does not know; it was left out.`);
  }
}

/** A file's name as it may stand on a command line. */
export const safeName = (name) => name.replace(/[^A-Za-z0-9._-]/g, '_').replace(/^[.-]+/, '').slice(-80) || 'file';

const PLAIN = /^[A-Za-z0-9_=+,./:%@^-]+$/;

/** Words as a user would type them in a shell. */
export const commandLine = (words) =>
  ['shardwright', ...words].map((word) => (PLAIN.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(' ');

/** The inverse for what people paste: quotes and backslashes, no substitutions. Throws a sentence. */
export function wordsOf(line) {
  const words = [];
  const piece = /\s*((?:[^\s'"\\]|'[^']*'|"(?:[^"\\]|\\.)*"|\\[\s\S])+)/y;
  const text = line.trim();
  while (piece.lastIndex < text.length) {
    const begin = piece.lastIndex;
    const found = piece.exec(text);
    if (!found) throw new Error(`There is a quote without its end: ${text.slice(begin).trim().slice(0, 60)}`);
    const plain = found[1].replace(/'([^']*)'|"((?:[^"\\]|\\.)*)"|\\([\s\S])/g, (whole, single, double, letter) =>
      single ?? (double !== undefined ? double.replace(/\\(["\\$`])/g, '$1') : letter));
    if (!(found[1] === '\\\n' || plain === '\n')) words.push(plain);
  }
  return words[0] === 'shardwright' ? words.slice(1) : words;
}
