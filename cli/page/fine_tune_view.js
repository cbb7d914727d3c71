// SPDX-License-Identifier: Apache-2.0
// "Fine-tune": one model on the cards that somebody has. `tune` for every weight, for LoRA and for QLoRA, side by side.
import {OF_THE_MACHINE, clusterOf, flagsOfPlan, wordsFor} from './catalogue.js';
import {clusterChooser, modelChooser, slider} from './controls.js';
import {documentOf} from './engine.js';
import {gib, grouped, usd} from './format.js';
import {Progress} from './search.js';
import {changed, setFlags, state} from './store.js';
import {html, table} from './svg.js';

const TASKS = {sft: 'every weight', lora: 'LoRA', qlora: 'QLoRA'};
const TAKEN = [...OF_THE_MACHINE, 'model', 'gpus', 'seq-len'];
const COUNTS = [1, 2, 4, 8, 16, 32, 64];
const LENGTHS = [512, 1024, 2048, 4096, 8192, 16384, 32768];
const BILLION = 1e9;

export class FineTuneView {
  constructor(engine) {
    this.engine = engine;
    this.progress = new Progress(engine);
    this.controls = [modelChooser(), clusterChooser(), slider('gpus', 'GPUs', () => COUNTS, (plan) => plan.gpus, false),
      slider('seq-len', 'Tokens of a sequence', () => LENGTHS, (plan) => plan.seq_len, false)];
    this.go = html('button', {type: 'submit', class: 'main', id: 'find-ways'}, 'What can I train?');
    this.inputs = html('form', {class: 'inputs', 'aria-label': 'The cards', onsubmit: (event) => {
      event.preventDefault();
      this.start();
    }}, this.controls.map((control) => control.element), this.go);
    this.found = html('div', {}, html('p', {class: 'answer'}, 'Say which model and which cards; “What can I train?” tries every weight, LoRA and QLoRA.'));
    this.trouble = html('p', {class: 'trouble', role: 'alert', hidden: true});
    this.answers = html('div', {}, this.trouble, this.progress.element, this.found);
  }

  refreshInputs() {
    for (const control of this.controls) control.refresh();
  }

  words(task = 'lora') {
    return [...wordsFor('tune', state.flags, (name) => TAKEN.includes(name)), '--task', task];
  }

  async start() {
    this.trouble.hidden = true;
    this.go.disabled = true;
    try {
      const tunings = [];
      for (const task of Object.keys(TASKS)) {
        const answer = await this.progress.during((onProgress) => this.engine.search([...this.words(task), '--json'], {onProgress}));
        if (!answer) break;
        tunings.push({task, tuning: documentOf(answer)});
      }
      if (tunings.length) this.show(tunings);
    } catch (error) {
      this.trouble.textContent = error.message;
      this.trouble.hidden = false;
    }
    this.go.disabled = false;
  }

  show(tunings) {
    const fits = tunings.find(({tuning}) => tuning.best);
    const first = fits || tunings[tunings.length - 1];
    const told = tunings[0].tuning.best ? first.tuning.lead : tunings[0].tuning.lead || first.tuning.lead;
    this.found.replaceChildren(html('p', {class: 'answer', role: 'status'}, told),
      table(['what is trained', 'plan', 'memory', 'tokens a second', 'USD a billion tokens', ''], tunings.map(({task, tuning}) => this.line(TASKS[task], tuning)),
        'What fits on these cards'),
      html('p', {class: 'note'}, 'Rates count padding: pack short examples into whole sequences (packing of TRL, sample_packing of axolotl).'));
    changed('fine');
  }

  line(name, {best}) {
    if (!best) return [name, 'does not fit', '', '', '', ''];
    const {plan, prediction} = best;
    const {usd_per_gpu_hour: price} = clusterOf(state.flags.get('cluster')) || {};
    const cost = price ? usd((BILLION / prediction.tokens_per_gpu_s / 3600) * price) : 'no price';
    return [name, prediction.inputs.plan_words, gib(prediction.memory.total_bytes), grouped(prediction.tokens_per_s), cost,
      html('button', {type: 'button', class: 'small', onclick: () => this.look(plan)}, 'see the plan')];
  }

  look(plan) {
    setFlags(flagsOfPlan(plan));
    state.view = 'plan';
    changed('view');
    document.getElementById('headline').scrollIntoView();
  }
}
