// SPDX-License-Identifier: Apache-2.0
// "Command line": the whole program, every verb and flag, as in a terminal. Dropped files are ./NAME; files that a verb
// writes with --out, --trace or --stack-out are offered to be saved.
import {catalogue} from './catalogue.js';
import {wordsOf} from './link.js';
import {Progress} from './search.js';
import {download} from './take_away.js';
import {files} from './store.js';
import {html} from './svg.js';

const WRITES = new Set(['--out', '--trace', '--stack-out']);

export class ConsoleView {
  constructor(engine) {
    this.engine = engine;
    this.progress = new Progress(engine);
    this.line = html('textarea', {id: 'console-line', rows: 3, spellcheck: 'false', autocapitalize: 'off', onkeydown: (event) => {
      if (event.key === 'Enter' && !event.shiftKey) {
        event.preventDefault();
        this.run();
      }
    }}, 'shardwright --help');
    this.out = html('pre', {id: 'console-out', tabindex: 0, 'aria-label': 'What the program prints'});
    this.status = html('p', {id: 'console-status', class: 'note', role: 'status'});
    this.saves = html('p', {class: 'tools'});
    this.element = html('section', {}, html('h2', {}, 'Command line'), html('label', {for: 'console-line'}, 'A command, as in a terminal'), this.line,
      html('p', {class: 'tools'}, html('button', {type: 'button', class: 'main', id: 'console-run', onclick: () => this.run()}, 'Run')),
      html('p', {class: 'note'}, `Verbs here: ${Object.keys(catalogue.verbs).join(', ')}.`), this.progress.element, this.status, this.saves, this.out);
  }

  async run() {
    this.saves.replaceChildren();
    try {
      const words = wordsOf(this.line.value);
      const outputs = words.flatMap((word, index) => (WRITES.has(words[index - 1]) ? [word] : []));
      const answer = await this.progress.during((onProgress) => this.engine.search(words, {outputs, onProgress}));
      if (!answer) {
        this.status.textContent = 'Cancelled.';
        return;
      }
      this.text = answer.stdout;
      this.out.textContent = [answer.stdout, ...answer.messages].filter(Boolean).join('\n');
      this.status.textContent = `Exit code ${answer.code}, ${(answer.ms / 1000).toFixed(2)} s.`;
      for (const [name, text] of Object.entries(answer.outputs)) {
        files.set(name.replace(/^\.\//, ''), text);
        this.saves.append(html('button', {type: 'button', onclick: () => download(name, text)}, `Save ${name}`));
      }
    } catch (error) {
      this.out.textContent = '';
      this.status.textContent = error.message;
    }
  }
}
