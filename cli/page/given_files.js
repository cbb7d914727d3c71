// SPDX-License-Identifier: Apache-2.0
// Files that the user drops or chooses: told apart by their content, never sent anywhere. A model, plan or cluster is
// kept as text; settings of another trainer become the plan; traces and logs go to `calibrate`, which reads them where
// they lie and makes a cluster of them. A trace of `run` is drawn, too.
import {Cancelled, sentenceOf} from './engine.js';
import {bytes} from './format.js';
import {safeName} from './link.js';
import {changed, files, setFlags, state} from './store.js';
import {flagsOfPlan} from './catalogue.js';
import {html} from './svg.js';
import {usualStep} from './timeline.js';

const LARGEST_TEXT = 4e6;
const LARGEST_TRACE = 4e9;
const LARGEST_DRAWN = 1e8;
const HEAD_BYTES = 65536;
// The words of a command that reads a file of each kind and says what is wrong with it.
const READS = {
  plan: ['predict', '--plan'], model: ['inspect', 'model'], cluster: ['inspect', 'cluster'],
  prices: ['predict', '--model', 'gpt2', '--cluster', 'dgx-h100', '--tokens', '1e9', '--prices'],
};

/** Counts what a compressed file becomes, so that a bomb of zeros is told before it fills the memory. */
async function unzipped(file) {
  let size = 0;
  const counter = new TransformStream({transform(piece, controller) {
    size += piece.length;
    if (size > LARGEST_TRACE) throw new Error(`${file.name} is more than ${bytes(LARGEST_TRACE)} once it is unpacked; give fewer steps.`);
    controller.enqueue(piece);
  }});
  try {
    return await new Response(file.stream().pipeThrough(new DecompressionStream('gzip')).pipeThrough(counter)).blob();
  } catch (error) {
    if (/once it is unpacked/.test(error.message)) throw error;
    throw new Error(`${file.name} is not a whole gzip file: its end is missing or it is damaged.`);
  }
}

// Settings of another trainer, beside JSON, which is told by its keys.
const SETTINGS = /\.(ya?ml|toml|py|sh)$/i;
const OF_DEEPSPEED = ['zero_optimization', 'train_micro_batch_size_per_gpu', 'train_batch_size'];

const looksLike = {
  trace: (head) => /"traceEvents"|"ph"\s*:/.test(head),
  run: (head) => /"name":"measured[:,"]/.test(head),
  log: (head) => /nccl-tests|# nThread|algbw/i.test(head),
};

/** {kind, text, json} of a file by what is in it: model, plan, cluster, prices, settings, trace, log. Throws a sentence. */
async function kindOf(name, blob) {
  const head = await blob.slice(0, HEAD_BYTES).text();
  if (looksLike.log(head)) return {kind: 'log'};
  if (looksLike.trace(head)) return {kind: 'trace', drawn: looksLike.run(head) && blob.size <= LARGEST_DRAWN};
  const expected = 'expected a model’s config.json, a plan, a cluster or profile, prices, settings of a trainer, a Kineto trace or an nccl-tests log';
  if (SETTINGS.test(name) && blob.size <= LARGEST_TEXT) return {kind: 'settings', text: await blob.text()};
  if (!/^\s*[[{]/.test(head)) throw new Error(`${name} is no JSON and no nccl-tests log; ${expected}.`);
  if (blob.size > LARGEST_TEXT) throw new Error(`${name} has ${bytes(blob.size)} and no traceEvents at its begin; ${expected}.`);
  const text = await blob.text();
  let json;
  try {
    json = JSON.parse(text);
  } catch (error) {
    throw new Error(`${name} is no JSON: ${error.message}.`);
  }
  const schema = String((json && json.schema) || '');
  if (schema.startsWith('shardwright.plan')) return {kind: 'plan', text, json};
  if (schema.startsWith('shardwright.cluster')) return {kind: 'cluster', text, json};
  if (schema.startsWith('shardwright.prices')) return {kind: 'prices', text, json};
  if (json && (json.model_type || json.architectures || json.hidden_size || json.n_embd)) return {kind: 'model', text, json};
  if (json && OF_DEEPSPEED.some((key) => key in json)) return {kind: 'settings', text};
  throw new Error(`${name} is JSON${schema ? ` of ${schema}` : ''}; ${expected}.`);
}

export class GivenFiles {
  constructor(engine, progress, say) {
    this.engine = engine;
    this.progress = progress;
    this.say = say;
    this.chosen = html('input', {type: 'file', id: 'file', multiple: true, class: 'hidden', onchange: () => {
      this.take([...this.chosen.files]);
      this.chosen.value = '';
    }});
    this.element = html('div', {class: 'drop'}, html('label', {for: 'file', class: 'button'}, 'Open a file'), this.chosen,
      html('small', {}, 'config.json, plan, cluster, prices, settings of a trainer (YAML, TOML, JSON, shell), trace of run or Kineto, nccl-tests log; or drop it anywhere. Nothing leaves this machine.'));
    addEventListener('dragover', (event) => event.preventDefault());
    addEventListener('drop', (event) => {
      event.preventDefault();
      this.take([...event.dataTransfer.files]);
    });
  }

  async take(given) {
    const measured = [];
    for (const file of given) {
      try {
        const packed = new Uint8Array(await file.slice(0, 2).arrayBuffer());
        const blob = packed[0] === 0x1f && packed[1] === 0x8b ? await unzipped(file) : file;
        const found = await kindOf(file.name, blob);
        if (found.text === undefined) measured.push({...found, blob, name: `${measured.length || ''}${safeName(file.name.replace(/\.gz$/, ''))}`});
        else if (found.kind === 'settings') await this.takeSettings(safeName(file.name), found.text);
        else await this.keep(safeName(file.name), found);
      } catch (error) {
        this.say(error.message, true);
      }
    }
    for (const one of measured.filter(({drawn}) => drawn)) await this.draw(one);
    if (measured.length) await this.calibrate(measured);
  }

  async draw({name, blob}) {
    try {
      state.measured = {label: `measured: ${name}`, trace: usualStep(JSON.parse(await blob.text()))};
      changed('measured');
    } catch (error) {
      this.say(`${name} cannot be drawn: ${error.message}.`, true);
    }
  }

  /** A text that the program must be able to read; what it says of one that it cannot is the sentence. */
  async keep(name, {kind, text, json}) {
    const before = files.get(name);
    files.set(name, text);
    const answer = await this.engine.ask([...READS[kind], `./${name}`, '--json']);
    if (answer.code) {
      if (before === undefined) files.delete(name);
      else files.set(name, before);
      throw new Error(sentenceOf(answer));
    }
    if (kind === 'plan') this.takePlan(json);
    else setFlags([[kind, `./${name}`]]);
    this.say(`${name} is in use as the ${kind}.`);
  }

  /** Settings of another trainer become the plan. The model, where they leave it to a script, is that of the page. */
  async takeSettings(name, text) {
    const out = 'imported-plan.json';
    const ask = (...more) => this.engine.ask(['import-config', `./${name}`, '--cluster', state.flags.get('cluster') || 'dgx-h100', '--out', out, ...more],
      {files: {[name]: text}, outputs: [out]});
    let answer = await ask();
    const model = state.flags.get('model');
    if (answer.code && model && /^--model is missing/.test(sentenceOf(answer))) answer = await ask('--model', model);
    if (answer.code) throw new Error(sentenceOf(answer));
    this.takePlan(JSON.parse(answer.outputs[out]));
    this.say(`${name} is now the plan of this page.`, false, answer.stdout);
  }

  takePlan(json) {
    setFlags([['model', json.model], ['cluster', json.cluster], ['set', (json.set || []).join(';')], ['global-batch', ''],
      ...flagsOfPlan(json.plan), ['stack', json.plan.stack]]);
  }

  async calibrate(measured) {
    const base = state.flags.get('cluster') || 'dgx-h100';
    const out = `calibrated-${safeName(base.replace(/^\.\//, '').replace(/\.json$/, '').replace(/^calibrated-/, ''))}.json`;
    const words = ['calibrate', '--base', base, '--out', out];
    for (const one of measured) words.push(one.kind === 'log' ? '--nccl-tests' : '--trace', `given/${one.name}`);
    const model = state.flags.get('model');
    if (model && measured.some((one) => one.kind === 'trace')) words.push('--model', model);
    const stack = state.flags.get('stack');
    if (stack) words.push('--stack', stack);
    try {
      const mounts = measured.map(({name, blob}) => ({name, data: blob}));
      const answer = await this.progress.during((onProgress) => this.engine.search(words, {mounts, outputs: [out], onProgress}));
      if (!answer) return;
      if (!answer.outputs[out]) {
        const sentence = sentenceOf(answer);
        throw new Error(/--base/.test(sentence) ? `${sentence}. Choose such a cluster on this page and give the file again.` : sentence);
      }
      files.set(out, answer.outputs[out]);
      setFlags([['cluster', `./${out}`]]);
      this.say(`Calibrated: ${measured.map((one) => one.name).join(', ')} on ${base}. Every answer now rests on what was measured.`, false, answer.stdout);
    } catch (error) {
      if (!(error instanceof Cancelled)) this.say(error.message, true);
    }
  }
}
