// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cli/run/settings.h"
#include "sim/core/plan_knobs.h"

namespace shardwright::cli {

const std::vector<SettingInfo>& setting_table() {
  static const std::vector<SettingInfo> table = [] {
    constexpr const char* kWhat = "What";
    constexpr const char* kHow = "How it is sharded (the plan's values unless given)";
    constexpr const char* kOptimizer = "How it is trained";
    constexpr const char* kCourse = "Course of the run";
    constexpr const char* kMachine = "On what";
    std::vector<SettingInfo> settings{
        {"plan", "FILE", "", "the plan that tune wrote; without one the defaults below hold",
         kWhat},
        {"model", "NAME|PATH", "", "a built-in model, or a Hugging Face config.json or folder",
         kWhat},
        {"data", "PATH", "",
         "training data: a file, folder or glob, synthetic, or several PATH[=SHARE] joined by "
         "commas: web.bin=0.7,code.bin=0.3",
         kWhat},
        {"format", "WORD", "auto",
         "auto, text (bytes), bin (llm.c), tokens (own), sft (JSON lines)", kWhat},
        {"tokenizer", "WHICH", "auto",
         "of texts: auto (the model's; bytes where it has at most 512 tokens), bytes, or a folder",
         kWhat},
        {"documents", "WORD", "joined",
         "of texts without responses: joined, or apart: attention ends with the document", kWhat},
        {"eval-data", "PATH", "", "evaluation data; without it the end of the data is held out",
         kWhat},
        {"hold-out", "SHARE", "0.05", "share of the data that is held out; 0: none", kWhat},
        {"weights", "PATH", "", "safetensors to start from; without them weights are random",
         kWhat},
        {"out", "DIR", "run", "folder of metrics, checkpoints and the final model", kWhat},
        {"overwrite", "WORD", "no", "no, or yes: begin anew where a finished run is in --out",
         kWhat},
        {"resume", "PATH|auto", "", "a checkpoint; auto: the newest whole one in --out, if any",
         kWhat},
        {"ranks", "N", "", "ranks (default: the launcher's, the plan's, or 1)", kHow},
        {"strategy", "NAME", "", "as in predict (default: yafsdp, or single on one rank)", kHow},
        {"shard-group", "N", "", "ranks that share one copy of the parameters", kHow},
        {"tp", "T", "", "tensor parallel: ranks that share every matrix", kHow},
        {"sp", "on|off", "", "sequence parallel between the matrices (default: on where tp > 1)",
         kHow},
        {"pp", "P", "", "pipeline stages", kHow},
        {"virtual-stages", "V", "", "chunks of a stage", kHow},
        {"pp-schedule", "NAME", "", "gpipe, 1f1b, interleaved, zb1p or zbv (default: 1f1b)", kHow},
        {"pp-layout", "TEXT", "", "what each stage holds, as Megatron writes it", kHow},
        {"rank-order", "A-B-C-D-E", "", "order of the ranks, the fastest first", kHow},
        {"sum-shape", "F[,1,1[,U]]", "",
         "leaves of the sums that tensor ranks share: equal bits for every tp that divides F "
         "(default: tp); U is 2: a tied embedding's uses apart, as stages sum them",
         kHow},
        {"sums", "WORD", "auto",
         "order of sums over ranks: exact (the plan's, which processors have) or library (NCCL's)",
         kHow},
        {"seq-len", "S", "", "tokens of a sequence (default: the model's, at most 2048)", kHow},
        {"micro-batch", "B", "", "sequences per rank at a time", kHow},
        {"grad-accum", "A", "", "micro-batches per optimizer step", kHow},
        {"ckpt-layers", "K|all", "", "layers that recompute", kHow},
        {"recompute", "WHAT", "",
         "what they recompute: none, full, or norm,swiglu,ffn,attention,block", kHow},
        {"param-dtype", "DTYPE", "",
         "fp32 or bf16 (default without a plan: fp32 on the host, bf16 on cuda)", kHow},
        {"reduce-dtype", "DTYPE", "", "of gradient reduction", kHow},
        {"master-dtype", "DTYPE", "",
         "of the parameters that the optimizer updates; bf16 by stochastic rounding", kHow},
        {"moment-dtype", "DTYPE", "", "of Adam's moments", kHow},
        {"precision", "WORD", "",
         "what layers multiply in: bf16, or fp8 with bf16 elsewhere (default: the parameters' "
         "type)",
         kHow},
        {"fp8-recipe", "WORD", "",
         "how operands are scaled: tensorwise, rowwise or mxfp8 (default: tensorwise)", kHow},
        {"loss-chunks", "N", "", "pieces in which logits and loss are computed", kHow},
        {"buffers", "N", "", "rotating gather buffers", kHow},
        {"prefetch", "N", "", "units gathered ahead", kHow},
        {"deterministic", "on|off", "",
         "on: equal bits every time on cuda, too; attention adds in one order and NCCL without "
         "NVLS, which is slower",
         kHow},
        {"steps", "N", "100", "optimizer steps in all", kOptimizer},
        {"tokens", "N", "", "instead of steps: tokens to train on, as 1B", kOptimizer},
        {"epochs", "X", "", "instead of steps: how often every sequence comes", kOptimizer},
        {"lr", "X", "3e-4", "peak learning rate", kOptimizer},
        {"schedule", "WORD", "cosine", "cosine, linear, wsd or constant", kOptimizer},
        {"warmup", "N", "0", "steps in which the rate rises", kOptimizer},
        {"final-lr-fraction", "X", "0.1", "of the peak, at the last step", kOptimizer},
        {"decay-fraction", "X", "0.2", "wsd: share of the steps in which the rate falls",
         kOptimizer},
        {"weight-decay", "X", "0.1", "of matrices", kOptimizer},
        {"beta1", "X", "0.9", "of AdamW", kOptimizer},
        {"beta2", "X", "0.95", "of AdamW", kOptimizer},
        {"eps", "X", "1e-8", "of AdamW", kOptimizer},
        {"clip", "X", "1", "largest gradient norm; 0: no clipping", kOptimizer},
        {"dropout", "WORD", "config",
         "config: refuse a model whose config asks for dropout; none: train it without",
         kOptimizer},
        {"seed", "N", "1", "of weights, shuffle and rounding", kOptimizer},
        {"on-bad-step", "WORD", "stop", "stop or skip when loss or gradients are not finite",
         kOptimizer},
        {"skip-above", "X", "0", "a gradient norm above it is a bad step, too; 0: none",
         kOptimizer},
        {"max-loss", "X", "0", "the run gives up above it; 0: never", kOptimizer},
        {"eval-every", "N", "0", "steps between evaluations; 0: only at the end", kCourse},
        {"eval-sequences", "N", "128", "sequences of an evaluation, at most; 0: all", kCourse},
        {"save-every", "N|auto", "auto",
         "steps between checkpoints; auto: a quarter of an hour; 0: only at the end", kCourse},
        {"keep", "N", "2", "checkpoints that are kept; 0: all", kCourse},
        {"save", "WORD", "auto",
         "auto, or none: no checkpoint and no model, when only time matters", kCourse},
        {"save-patience", "S", "120",
         "seconds for which a last checkpoint that cannot be written (a full disk) is tried again",
         kCourse},
        {"until", "WORD", "end",
         "end, or allocation: stop once every rank has its memory; no data are read", kCourse},
        {"log-every", "N", "1", "steps between lines; evaluated and skipped steps are always shown",
         kCourse},
        {"tensorboard", "on|off", "off",
         "write metrics as event files of TensorBoard, too, in --out/tensorboard", kCourse},
        {"trace", "FILE", "", "write a Chrome trace of some steps, also as trace.json in --out",
         kCourse},
        {"trace-step", "N", "0", "the first of them; 0: the third of this run", kCourse},
        {"trace-steps", "N", "3", "how many; compare and calibrate take medians", kCourse},
        {"nvtx", "on|off", "off", "mark operations as NVTX ranges, for Nsight Systems", kCourse},
        {"cluster", "NAME|PATH", "", "what step times are predicted for (default: the plan's)",
         kMachine},
        {"device", "WORD", "auto", "auto, host or cuda", kMachine},
        {"communicator", "WORD", "auto", "auto, local (threads), nccl or mpi", kMachine},
        {"rank-processes", "on|off", "on",
         "with NCCL on one machine: on: run starts a process for each rank; off: they are threads",
         kMachine},
        {"collective-sms", "N|auto", "auto",
         "multiprocessors that a collective of NCCL may take on cuda; auto: as few as reach the "
         "links' rate where each rank is a process, else NCCL's choice",
         kMachine},
        {"rendezvous", "WHERE", "auto",
         "where processes on GPUs meet: auto, tcp://HOST:PORT or file:///PATH", kMachine},
        {"rank-timeout", "S", "1800",
         "seconds that ranks wait for one that hangs before the run ends", kMachine},
        {"attention-kernel", "NAME", "auto",
         "attention on cuda: auto (the fastest that takes the plan), cudnn, cudnn-ordered, "
         "flash or naive",
         kMachine},
        {"products", "WORD", "auto",
         "on cuda: timed (the fastest of eight algorithms for each shape, timed at the start), "
         "first (the library's own choice) or auto: timed unless the plan is deterministic",
         kMachine},
        {"streams", "WORD", "inline", "threads, inline or shuffled: how the host runs streams",
         kMachine},
        {"clock", "WORD", "wall",
         "wall, or virtual on the host: streams have clocks of their own, as if each rank had a "
         "processor and messages took what --network takes",
         kMachine},
        {"network", "NAME|PATH", "",
         "with --clock virtual: the cluster whose links and nodes are meant (default: cpu-cores)",
         kMachine},
        {"cpu-binding", "WORD", "auto",
         "auto: host threads of a rank run on the processors near its GPU; none: anywhere",
         kMachine},
        {"threads", "N", "0", "processor threads in all; 0: one a core", kMachine},
    };
    // What else a plan says is read, too, so that why_not_run() can say what run does not do.
    for (const PlanKnob& knob : plan_knobs()) {
      const bool is_shown =
          std::any_of(settings.begin(), settings.end(),
                      [&](const SettingInfo& info) { return info.key == knob.name; });
      if (knob.read && !is_shown)
        settings.push_back({knob.name.data(), knob.type.c_str(), "", knob.what.c_str(), ""});
    }
    return settings;
  }();
  return table;
}

}  // namespace shardwright::cli
