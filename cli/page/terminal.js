// SPDX-License-Identifier: Apache-2.0
// The terminal of the program in the page: what it writes to stderr goes to Module.onMessage, line by line. A progress
// line ends with a carriage return, which a terminal shows at once. Part of the compiled program (--pre-js).
Module['preRun'] = () => {
  let bytes = [];
  const line = (progress) => {
    Module['onMessage'](new TextDecoder().decode(new Uint8Array(bytes)), progress);
    bytes = [];
  };
  TTY.default_tty1_ops.put_char = (tty, byte) => {
    if (byte === 13) {
      if (bytes.length) line(true);
    } else if (byte === 10) {
      line(false);
    } else {
      bytes.push(byte);
    }
  };
  TTY.default_tty1_ops.flush = () => {
    if (bytes.length) line(true);
  };
  ENV.SHARDWRIGHT_DATA = '/data';
  ENV.LANG = 'C.UTF-8';
  ENV.NO_COLOR = '1';
  Module['prepareFiles'](FS);
};
