# SPDX-License-Identifier: Apache-2.0
"""What the verbs answer: views of their JSON documents. Units are in the names: _s, _bytes, _usd; shares are fractions."""
from __future__ import annotations

from typing import Any, ClassVar, Mapping, Optional

from ._library import Answer
from ._views import View
from ._words import Words


class Plan(View):
    """The parallel layout of a step and how it runs: every knob under the name of its flag. `strategy` (str), `gpus`, `seq_len`,
    `micro_batch` (sequences of a GPU at a time), `grad_accum` (micro-batches of a step), `ckpt_layers` (layers that
    recompute), `recompute` (what they recompute), `shard_group` (GPUs that share one copy; 0: all), types, buffers;
    `tp`, `pp`, `cp`, `ep` of model-parallel plans."""

    strategy: str
    gpus: int
    shard_group: int
    seq_len: int
    micro_batch: int
    grad_accum: int
    ckpt_layers: int
    ckpt_stride: int
    recompute: str
    param_dtype: str
    reduce_dtype: str
    moment_dtype: str
    buffers: int
    prefetch: int
    attention: str
    stack: str


class TimeParts(View):
    """Where the seconds of a step go; they add up to iteration_time_s."""

    compute: float
    exposed_communication: float
    host: float
    optimizer: float
    other: float


class Memory(View):
    """Memory of the fullest GPU. `peak_allocated_bytes` and `peak_reserved_bytes` are what
    torch.cuda.max_memory_allocated and max_memory_reserved mean; `total_bytes` adds the runtime (context, NCCL,
    libraries), and `fits` compares it with `usable_bytes`. `verdict` is "fits", "tight" or "does not fit", by
    `interval_bytes` [low, high]. `breakdown_bytes` is what fills the peak."""

    fits: bool
    verdict: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    runtime_bytes: int
    total_bytes: int
    usable_bytes: int
    interval_bytes: list[int]
    peak_at: str
    breakdown_bytes: View


class Stage(View):
    """A stage of a pipeline: its number, layers, seconds and memory."""

    stage: int
    layers: Any
    time_s: View
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    fits: bool


class Inputs(View):
    """What a prediction is of: model, cluster, GPU, plan, and values set by hand."""

    _views: ClassVar[Mapping[str, type[View]]] = {"plan": Plan}
    model: str
    parameters: int
    layers: int
    cluster: str
    gpu: str
    gpus_per_node: int
    peak_flops: float
    plan: Plan
    plan_words: str
    set: list[str]


class Result(View):
    """The whole document that a verb printed with --json."""

    def __init__(self, data: dict[str, Any], text: str = "", words: Optional[Words] = None, notes: Optional[list[str]] = None) -> None:
        super().__init__(data)
        #: The document to the byte, as the program printed it.
        self.json = text
        #: What the program remarked beside it.
        self.notes = notes or []
        self._words = words

    def __getstate__(self) -> dict[str, Any]:
        return {"_data": self._data, "json": self.json, "notes": self.notes, "_words": None}


class Prediction(Result):
    """Time and memory of one plan.

    iteration_time_s: seconds of an optimizer step; iteration_time_interval_s: [low, high] that hold
    interval_level (0.9) of published runs; tokens_per_s of all GPUs and tokens_per_gpu_s; mfu and hfu as
    fractions of inputs.peak_flops; time_s: where the step goes; memory of the fullest GPU;
    communication_bytes that a GPU sends in a step; extrapolated: what lies outside all measurements, one
    sentence each; novelty: why the interval is as wide as it is, by axis (adds: half-widths of the logarithm that
    add up as squares) with the measurement that would narrow it. A plan that does not fit is predicted, too: memory.fits is False. With explain=True also
    explanation; with tokens=... whole_run; of model-parallel plans stages and pipeline.
    """

    _views: ClassVar[Mapping[str, type[View]]] = {"time_s": TimeParts, "memory": Memory, "inputs": Inputs, "stages": Stage}
    iteration_time_s: float
    iteration_time_interval_s: list[float]
    interval_level: float
    tokens_per_gpu_s: float
    tokens_per_s: float
    model_tflops_per_gpu: float
    mfu: float
    hfu: float
    time_s: TimeParts
    communication_bytes: View
    memory: Memory
    extrapolated: list[str]
    novelty: list[View]
    inputs: Inputs
    stages: list[Stage]

    def __repr__(self) -> str:
        plan, memory = self.inputs.plan, self.memory
        return (f"<Prediction of {self.inputs.model} on {plan.gpus} GPUs of {self.inputs.cluster}, {plan.strategy}: "
                f"{self.iteration_time_s:.4g} s a step, {self.tokens_per_s:,.0f} tokens/s, MFU {self.mfu:.1%}, "
                f"{memory.total_bytes / 2 ** 30:.4g} of {memory.usable_bytes / 2 ** 30:.4g} GiB, {memory.get('verdict') or memory.fits}>")

    def _repr_html_(self) -> str:
        from ._display import prediction_html
        return prediction_html(self)


class Comparison(Result):
    """Several strategies side by side: predictions, in the order asked for, and time_saved_by_first (fractions)."""

    _views: ClassVar[Mapping[str, type[View]]] = {"predictions": Prediction}
    _rows: ClassVar[str] = "predictions"
    predictions: list[Prediction]
    time_saved_by_first: list[float]

    def __repr__(self) -> str:
        return "<Comparison:\n " + "\n ".join(map(repr, self.predictions)) + ">"

    def _repr_html_(self) -> str:
        from ._display import prediction_html
        return prediction_html(self)


class Candidate(View):
    """A plan that a search weighed, with its prediction."""

    _views: ClassVar[Mapping[str, type[View]]] = {"plan": Plan, "prediction": Prediction}
    plan: Plan
    prediction: Prediction


class Tuning(Result):
    """The best plans for a model on a cluster.

    best: the best (plan, prediction), None where nothing fits; top: the next best; pareto: nothing is both
    faster and smaller; why: sentences; considered, pruned, simulated: how many plans; rejected: reasons with
    counts; nearest_feasible: what would fit where nothing does. plan_file: the text of the plan file of the
    best, which save() writes and which predict, export and `shardwright run` take as plan.
    """

    _views: ClassVar[Mapping[str, type[View]]] = {"best": Candidate, "top": Candidate, "pareto": Candidate}
    _rows: ClassVar[str] = "top"
    best: Optional[Candidate]
    top: list[Candidate]
    pareto: list[Candidate]
    why: list[str]
    considered: int
    pruned: int
    simulated: int
    seconds: float
    plan_file: Optional[str] = None

    def save(self, path: Any) -> None:
        """Writes the best plan, as tune(out=path) would have."""
        if self.plan_file is None:
            raise ValueError("there is no plan to write: nothing fits")
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.plan_file)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "plan_file": self.plan_file}

    def __repr__(self) -> str:
        return f"<Tuning of {self.considered:,} plans: best {self.best.prediction!r}>" if self.best else "<Tuning: nothing fits>"

    def _repr_html_(self) -> str:
        from ._display import tuning_html
        return tuning_html(self)


class Option(View):
    """A number of GPUs of a cluster for a whole run, with its plan: days and cost_usd with their intervals
    (days_interval, cost_usd_interval), gpu_hours, tokens_per_s, mfu (fraction), usd_per_gpu_hour, meets.deadline
    and meets.budget (None where none was given), step_only for a run in which nothing ever fails."""

    _views: ClassVar[Mapping[str, type[View]]] = {"plan": Plan}
    cluster: str
    gpu: str
    gpus: int
    plan: Plan
    days: float
    days_interval: list[float]
    cost_usd: Optional[float]
    gpu_hours: float
    tokens_per_s: float
    mfu: float


class Sizing(Result):
    """Which GPUs, how many, for how long, for how much.

    recommended: an Option or None; options: all that were weighed; pareto: nothing is both faster and cheaper;
    break_even: the price at which each cluster that lost would win; words: the answer in sentences; page: the
    HTML page for whoever signs.
    """

    _views: ClassVar[Mapping[str, type[View]]] = {key: Option for key in ("options", "pareto", "recommended", "cheapest", "in_the_middle", "smallest", "smallest_safe")}
    _rows: ClassVar[str] = "options"
    options: list[Option]
    pareto: list[Option]
    recommended: Optional[Option]
    break_even: list[View]
    words: list[str]
    page: Optional[str] = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "page": self.page}

    def __repr__(self) -> str:
        return f"<Sizing: {' '.join(self.words[:1])}>" if self.get("words") else "<Sizing>"

    def _repr_html_(self) -> str:
        from ._display import sizing_html
        return sizing_html(self)


class Validation(Result):
    """Predicted against published: rows (one a run, errors as fractions) and summary."""

    _rows: ClassVar[str] = "rows"
    rows: list[View]
    summary: View

    def __repr__(self) -> str:
        time = self.summary.time
        return f"<Validation of {len(self.rows)} rows: {time.n} times, mean error {time.mape:.1%}, worst {time.worst:.1%}>"


class Export(Result):
    """A trainer's settings: settings (text), format, remarks (knob, sentence, expressed), as_run (what the trainer
    makes of them, predicted)."""

    format: str
    settings: str
    remarks: list[View]

    def __str__(self) -> str:
        return self.settings


class Text(str):
    """What a verb without a JSON document printed. `notes` are its messages."""

    notes: list[str]


CLASSES: Mapping[str, type[Result]] = {
    "shardwright.prediction": Prediction, "shardwright.tuning": Tuning, "shardwright.sizing": Sizing,
    "shardwright.validation": Validation, "shardwright.export": Export}


def result_of(data: dict[str, Any], answer: Answer, words: Words, notes: list[str]) -> Result:
    """The view that the schema of a document calls for."""
    kind = Comparison if "predictions" in data else CLASSES.get(str(data.get("schema", "")).split("/")[0], Result)
    return kind(data, answer.results, words, notes)
