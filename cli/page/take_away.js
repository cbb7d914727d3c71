// SPDX-License-Identifier: Apache-2.0
// What the user takes along: the command line, the link, plan.json, the report, settings for a trainer, the kit of a job.
import {catalogue, flagOf, wordsFor} from './catalogue.js';
import {documentOf, sentenceOf} from './engine.js';
import {commandLine, linkOf} from './link.js';
import {files, state} from './store.js';
import {html} from './svg.js';

const LARGEST_IN_LINK = 40000;
const KIT = 'kit';
const SNAPSHOT = 'memory-snapshot';

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
async function packed(texts) {
  const pieces = [];
  for (const [path, text] of Object.entries(texts)) {
    const bytes = new TextEncoder().encode(text);
    pieces.push(header(path, bytes.length, text.startsWith('#!'), Math.floor(Date.now() / 1000)), bytes, new Uint8Array(-bytes.length & (BLOCK - 1)));
  }
  pieces.push(new Uint8Array(2 * BLOCK));
  return new Response(new Blob(pieces).stream().pipeThrough(new CompressionStream('gzip'))).blob();
}

export function download(name, content, type = 'application/json') {
  const url = URL.createObjectURL(new Blob([content], {type}));
  const link = html('a', {href: url, download: name});
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** The files that the present flags name, small enough to travel in a link. */
function travelling() {
  const named = new Set([...state.flags.values(), ...(state.beside ? state.beside.values() : [])]);
  return [...files].filter(([name, text]) => named.has(`./${name}`) && text.length < LARGEST_IN_LINK);
}

export const presentLink = () => linkOf(state, travelling());

export class TakeAway {
  constructor(engine, plan, buy, fine, say) {
    Object.assign(this, {engine, plan, buy, fine, say});
    const button = (id, label, act) => html('button', {type: 'button', id, onclick: () => this.trying(act)}, label);
    this.line = html('code', {id: 'command-line', tabindex: 0});
    const formats = (flagOf('export', 'format') || {choices: []}).choices;
    this.trainer = html('select', {'aria-label': 'Trainer'}, formats.map((name) => html('option', {value: name}, name)));
    const planFile = button('download-plan', 'plan.json', () => this.planFile());
    const forTrainers = html('p', {class: 'tools'}, this.trainer, button('download-settings', 'Settings for this trainer', () => this.settings()),
      catalogue.verbs.kit ? button('download-kit', 'Everything to launch it', () => this.kit()) : null);
    this.ofOnePlan = [planFile, ...(formats.length ? [forTrainers] : [])];
    this.element = html('section', {id: 'take-away'}, html('h2', {}, 'Take it along'),
      html('p', {}, this.line), html('p', {class: 'tools'},
        button('copy-command', 'Copy the command line', () => this.copy(this.line.textContent, 'command line')),
        button('copy-link', 'Copy a link to this page’s answer', async () => this.copy(location.href.split('#')[0] + (await presentLink()), 'link')),
        planFile, button('download-report', 'Report', () => this.report()),
        button('download-json', 'Answer as JSON', () => this.json()), html('button', {type: 'button', onclick: () => print()}, 'Print')),
      formats.length ? forTrainers : null);
  }

  async trying(act) {
    try {
      await act();
    } catch (error) {
      this.say(error.message, true);
    }
  }

  words() {
    if (state.view === 'tune') return this.fine.words();
    return state.view === 'buy' ? this.buy.words() : this.plan.words().filter((word) => word !== '--json');
  }

  refresh() {
    this.line.textContent = commandLine(this.words());
    for (const one of this.ofOnePlan) one.hidden = state.view !== 'plan';
  }

  async copy(text, what) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = html('textarea', {class: 'hidden'}, text);
      document.body.append(area);
      area.select();
      document.execCommand('copy');
      area.remove();
    }
    this.say(`The ${what} is copied.`);
  }

  /** Runs a verb on the present plan and returns the file that it wrote. */
  async written(words, name) {
    const answer = await this.engine.ask([...words, '--out', name], {outputs: [name]});
    if (answer.code || !answer.outputs[name]) throw new Error(sentenceOf(answer));
    return answer.outputs[name];
  }

  /** The program's own plan file: `tune` with nothing left to choose. */
  async planFile() {
    const flags = new Map(state.flags);
    const {plan} = this.plan.answer.inputs;
    for (const [key, value] of Object.entries(plan)) {
      const name = key.replaceAll('_', '-');
      if (flagOf('tune', name) && value !== null && !(name === 'shard-group' && value === 0)) flags.set(name, String(value));
    }
    download('plan.json', await this.written(wordsFor('tune', flags, (name) => Boolean(flagOf('predict', name)) && name !== 'plan'), 'plan.json'));
  }

  async report() {
    if (state.view === 'buy') {
      if (!this.buy.page) throw new Error('There is nothing to take yet: find GPUs first.');
      download('size.html', this.buy.page, 'text/html');
      return;
    }
    download('report.html', await this.written(wordsFor('report', state.flags, this.ofPlan('report')), 'report.html'), 'text/html');
  }

  async settings() {
    const words = [...wordsFor('export', state.flags, this.ofPlan('export')), '--format', this.trainer.value];
    const name = this.trainer.value === SNAPSHOT ? `${SNAPSHOT}.pickle` : `${this.trainer.value}.txt`;
    download(name, await this.written(words, name), 'application/octet-stream');
  }

  /** The folder that `kit` writes, with scripts for Slurm, SkyPilot and Kubernetes, as an archive. */
  async kit() {
    const answer = await this.engine.ask([...wordsFor('kit', state.flags, this.ofPlan('kit')), '--format', this.trainer.value, '--out', KIT], {outputs: [KIT]});
    if (answer.code) throw new Error(sentenceOf(answer));
    download(`${KIT}.tar.gz`, await packed(answer.outputs), 'application/gzip');
    const lost = answer.messages.filter((text) => !text.startsWith('error: '));
    this.say(`${Object.keys(answer.outputs).length} files are in ${KIT}.tar.gz. ${lost.join(' ')}`);
  }

  ofPlan(verb) {
    const left = ['out', 'json', 'format', 'trace', 'measured', 'tuning', 'plan'];
    return (name) => !left.includes(name) && Boolean(flagOf(verb, name)) && catalogue.flags.predict.some((flag) => flag.name === name);
  }

  async json() {
    if (state.view === 'buy') {
      if (!this.buy.text) throw new Error('There is nothing to take yet: find GPUs first.');
      download('sizing.json', this.buy.text);
      return;
    }
    if (state.view === 'tune') {
      download('tuning.json', (await this.engine.search([...this.fine.words(), '--json'])).stdout);
      return;
    }
    const answer = await this.engine.ask(this.plan.words());
    documentOf(answer);
    download('prediction.json', answer.stdout);
  }
}
