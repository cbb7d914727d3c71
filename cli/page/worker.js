// SPDX-License-Identifier: Apache-2.0
// The worker that runs the program. `startShardwright` is the compiled program's, which the bundle puts before this.
//
// Messages in:  {start: {module, data}}     a WebAssembly.Module and the shipped files, by path
//               {run: {id, words, files, mounts, outputs}}; an output is a file, or a folder with the files in it
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

const isFolder = (fs, path) => fs.isDir(fs.stat(path).mode);
const within = (fs, folder) => fs.readdir(folder).filter((name) => name !== '.' && name !== '..').map((name) => folder + '/' + name);

function remove(fs, path) {
  if (!isFolder(fs, path)) return fs.unlink(path);
  for (const one of within(fs, path)) remove(fs, one);
  fs.rmdir(path);
}

function clearHome(fs) {
  for (const path of within(fs, HOME)) if (path !== MOUNTS) remove(fs, path);
}

/** The texts of a file, or of all files of a folder, by path; a pickle's bytes. */
function textsOf(fs, path) {
  if (!fs.analyzePath(path).exists) return {};
  if (!isFolder(fs, path)) return {[path]: fs.readFile(path, path.endsWith('.pickle') ? {} : {encoding: 'utf8'})};
  return Object.assign({}, ...within(fs, path).map((one) => textsOf(fs, one)));
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
  for (const path of outputs) Object.assign(answer.outputs, textsOf(fs, path));
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
