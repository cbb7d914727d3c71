// SPDX-License-Identifier: Apache-2.0
// A folder as one file to download: POSIX.1-1988 tar ("ustar"), packed by the browser's own gzip.
const BLOCK = 512;

function header(path, size, runs, seconds) {
  const block = new Uint8Array(BLOCK);
  const put = (at, text) => block.set(new TextEncoder().encode(text), at);
  const octal = (value, digits) => `${value.toString(8).padStart(digits, '0')}\0`;
  put(0, path);
  put(100, octal(runs ? 0o755 : 0o644, 7));
  put(108, octal(0, 7));
  put(116, octal(0, 7));
  put(124, octal(size, 11));
  put(136, octal(seconds, 11));
  put(148, ' '.repeat(8));  // the checksum counts itself as blanks
  put(156, '0');
  put(257, 'ustar\x0000');
  put(148, `${octal(block.reduce((sum, byte) => sum + byte, 0), 6)} `);
  return block;
}

/** {path: text} as a blob of tar.gz; a script (#!) may be started. Paths have less than 100 bytes. */
export async function packed(texts) {
  const pieces = [];
  for (const [path, text] of Object.entries(texts)) {
    const bytes = new TextEncoder().encode(text);
    pieces.push(header(path, bytes.length, text.startsWith('#!'), Math.floor(Date.now() / 1000)), bytes, new Uint8Array(-bytes.length & (BLOCK - 1)));
  }
  pieces.push(new Uint8Array(2 * BLOCK));
  return new Response(new Blob(pieces).stream().pipeThrough(new CompressionStream('gzip'))).blob();
}
