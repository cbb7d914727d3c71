// SPDX-License-Identifier: Apache-2.0
// The worker that runs the program. `startShardwright` is the compiled program's, which the bundle puts before this.
//
// Messages in:  {start: {module, data}}     a WebAssembly.Module and the shipped files, by path
//               {run: {id, words, files, mounts, outputs}}
// Messages out: {ready}, {failed: sentence}, {id, progress: line}, {id, answer: {code, stdout, messages, outputs, ms}}
let program = null;
let running = null;

// The folder of what the user dropped: relative paths of a command line mean files in it.
const HOME = '/home/page';
const MOUNTS = HOME + '/given';

function onMessage(text, progress) {
  if (!running) return;
  if (progress) {
    const line = text.trim();
    if (line) postMessage({id: running.id, progress: line});
  } else {
    running.messages.push(text);
  }
}

function putTree(fs, root, files) {
  for (const [path, text] of Object.entries(files)) {
    const full = root + '/' + path;
    const folder = full.slice(0, full.lastIndexOf('/'));
    fs.mkdirTree(folder);
    fs.writeFile(full, text);
  }
}

async function start({module, data}) {
  program = await startShardwright({
    onMessage,
    print: () => {},
    printErr: (text) => onMessage(text, false),
    prepareFiles: (fs) => {
      putTree(fs, '/data', data);
      fs.mkdirTree(MOUNTS);
      fs.chdir(HOME);
    },
    instantiateWasm: (imports, done) => {
      WebAssembly.instantiate(module, imports).then((instance) => done(instance, module));
      return {};
    },
  });
  postMessage({ready: true});
}

function clearHome(fs) {
  for (const name of fs.readdir(HOME)) {
    if (name !== '.' && name !== '..' && HOME + '/' + name !== MOUNTS) fs.unlink(HOME + '/' + name);
  }
}

// Files of any size are read where they lie: a trace of a gigabyte is never copied into memory.
function mount(fs, blobs) {
  if (!blobs.length) return () => {};
  fs.mount(program.WORKERFS, {blobs}, MOUNTS);
  return () => fs.unmount(MOUNTS);
}

function callProgram(words) {
  const packed = new TextEncoder().encode(words.map((word) => word + '\0').join('') + '\0');
  return program.ccall('shardwright_run', 'number', ['number', 'array'], [words.length, packed]);
}

function run({id, words, files, mounts, outputs}) {
  const fs = program.FS;
  running = {id, messages: []};
  putTree(fs, HOME, files);
  const unmount = mount(fs, mounts);
  const begin = performance.now();
  let code;
  try {
    code = callProgram(words);
  } finally {
    unmount();
  }
  const ms = performance.now() - begin;
  const answer = {code, stdout: program.ccall('shardwright_results', 'string', [], []), messages: running.messages, outputs: {}, ms};
  for (const path of outputs) {
    if (fs.analyzePath(path).exists) answer.outputs[path] = fs.readFile(path, {encoding: 'utf8'});
  }
  clearHome(fs);
  running = null;
  postMessage({id, answer});
}

onmessage = async ({data}) => {
  try {
    if (data.start) await start(data.start);
    if (data.run) run(data.run);
  } catch (error) {
    // A trap of the machine (memory at its end, a stack too deep) leaves it in no state to go on.
    postMessage({failed: String(error && error.message ? error.message : error), id: data.run ? data.run.id : null});
  }
};
