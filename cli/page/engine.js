// SPDX-License-Identifier: Apache-2.0
// The program from the page's side: workers with the same compiled module. One answers at once what sliders ask, newest
// question first; one finds the reasons and timelines of a plan, which no slider waits for; one searches for as long as
// it takes and can be cancelled.
export class Cancelled extends Error {}

class Desk {
  constructor(parts) {
    this.parts = parts;
    this.waiting = [];
    this.current = null;
    this.spawn();
  }

  spawn() {
    this.worker = new Worker(this.parts.workerUrl);
    this.ready = false;
    this.worker.onmessage = ({data}) => this.hear(data);
    this.worker.onerror = (event) => this.fail(event.message || 'the worker could not be started');
    this.worker.postMessage({start: {module: this.parts.module, data: this.parts.data}});
  }

  hear(data) {
    if (data.ready) {
      this.ready = true;
      this.next();
    } else if (data.failed !== undefined) {
      this.fail(data.failed);
    } else if (data.progress !== undefined) {
      if (this.current && this.current.onProgress) this.current.onProgress(data.progress);
    } else {
      const done = this.current;
      this.current = null;
      done.resolve(data.answer);
      this.next();
    }
  }

  fail(why) {
    this.worker.terminate();
    const lost = this.current;
    this.current = null;
    this.broken = this.ready ? this.broken : (this.broken || 0) + 1;
    if (lost) lost.reject(new Error(`The planner stopped (${why}); it was started again.`));
    if ((this.broken || 0) < 3) {
      this.spawn();
    } else {
      for (const job of this.waiting.splice(0)) job.reject(new Error(`The planner cannot start in this browser: ${why}.`));
    }
  }

  ask(job) {
    return new Promise((resolve, reject) => {
      // A question that nobody has begun to answer gives way to a newer one of its kind.
      if (job.key) {
        for (const old of this.waiting.filter((other) => other.key === job.key)) old.resolve(null);
        this.waiting = this.waiting.filter((other) => other.key !== job.key);
      }
      const waiting = {...job, resolve, reject};
      if (job.urgent) this.waiting.unshift(waiting);
      else this.waiting.push(waiting);
      this.next();
    });
  }

  next() {
    if (!this.ready || this.current || !this.waiting.length) return;
    this.current = this.waiting.shift();
    this.current.id = (this.count = (this.count || 0) + 1);
    const {id, words, files, mounts, outputs} = this.current;
    this.worker.postMessage({run: {id, words, files, mounts, outputs}});
  }

  cancel() {
    const lost = [this.current, ...this.waiting.splice(0)].filter(Boolean);
    this.current = null;
    for (const job of lost) job.reject(new Cancelled('cancelled'));
    if (lost.length) {
      this.worker.terminate();
      this.spawn();
    }
  }
}

/** The payload of a script element: base64 of gzip, as bytes. */
async function unpack(id) {
  const text = document.getElementById(id).textContent;
  const packed = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Response(stream).arrayBuffer();
}

export class Engine {
  /** Unpacks and compiles what the page carries. `given` maps names of the user's files to their text. */
  static async start(given) {
    const [wasm, data, worker] = await Promise.all(['packed-wasm', 'packed-data', 'packed-worker'].map(unpack));
    const engine = new Engine();
    engine.given = given;
    const parts = {
      module: await WebAssembly.compile(wasm),
      data: JSON.parse(new TextDecoder().decode(data)),
      workerUrl: URL.createObjectURL(new Blob([worker], {type: 'text/javascript'})),
    };
    engine.quick = new Desk(parts);
    engine.calm = new Desk(parts);
    engine.slow = new Desk(parts);
    return engine;
  }

  /** `files` are texts by name beside the user's; `outputs` files or folders whose texts are wanted, by path. */
  job(words, {outputs = [], mounts = [], files = {}, ...rest}) {
    return {words, outputs, mounts, files: {...Object.fromEntries(this.given), ...files}, ...rest};
  }

  /** Runs the program; null when a newer question with the same `key` came first. Rejects when it could not run. */
  ask(words, options = {}) {
    return this.quick.ask(this.job(words, options));
  }

  /** The same where it takes longer than a hand rests. */
  look(words, options = {}) {
    return this.calm.ask(this.job(words, options));
  }

  /** The same where it may take minutes; rejects with Cancelled after cancel(). */
  search(words, options = {}) {
    return this.slow.ask(this.job(words, options));
  }

  cancel() {
    this.slow.cancel();
  }
}

/** The JSON document of an answer, or an Error with the program's own sentence. Infeasible answers have both. */
export function documentOf(answer) {
  if (answer.stdout.startsWith('{')) return JSON.parse(answer.stdout);
  throw new Error(sentenceOf(answer));
}

export function sentenceOf(answer) {
  const line = answer.messages.find((text) => text.startsWith('error: '));
  return line ? line.slice(7) : answer.messages.join(' ') || `The planner ended with code ${answer.code}.`;
}
