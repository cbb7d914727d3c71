// SPDX-License-Identifier: Apache-2.0
#include "cli/kit/kit.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/prices/catalog.h"
#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/words/plan.h"
#include "sim/core/base/error.h"
#include "tuner/runs/run_cost.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

// Hosts of a JobSet have it in their names, of 63 letters.
constexpr std::size_t kLongestJobName = 40;
constexpr double kLongestInterval_s = 3600;  // between checkpoints: nobody wants to lose more
constexpr int kWarmupSteps = 3;  // compilation, the first collectives, the allocator's growth

std::string job_name(const std::string& model) {
  std::string name = "train-";
  const std::size_t slash = model.find_last_of('/');
  for (const char c : model.substr(slash == model.npos ? 0 : slash + 1)) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0;
    name += plain ? static_cast<char>(std::tolower(static_cast<unsigned char>(c))) : '-';
  }
  name.resize(std::min(name.size(), kLongestJobName));
  while (name.ends_with('-')) name.pop_back();
  return name;
}

/// Every so many steps, beside the training; a restart goes on from the last one.
ShellSource torchtitan_checkpoints() {
  return " --checkpoint.enable --checkpoint.folder=\"$CHECKPOINT_DIR\" "
         "--checkpoint.interval=\"$CHECKPOINT_STEPS\" --checkpoint.async_mode=async";
}

/// Trainers of Transformers, which go on from the last checkpoint in their output folder.
void start_fine_tuning(const Trainer& trainer, KitJob& job) {
  if (trainer.name == "axolotl") {
    job.settings_file = "axolotl.yaml";
    job.launch =
        "-m axolotl.cli.train axolotl.yaml --output_dir=\"$CHECKPOINT_DIR\" "
        "--save_steps=\"$CHECKPOINT_STEPS\" --auto_resume_from_checkpoints=True "
        "--dataset_prepared_path=\"$CHECKPOINT_DIR/prepared\"";
  } else {
    job.settings_file = "llama_factory.yaml";
    job.launch =
        "-m llamafactory.launcher llama_factory.yaml output_dir=\"$CHECKPOINT_DIR\" "
        "save_steps=\"$CHECKPOINT_STEPS\"";
  }
}

/// As often as failures on this many GPUs advise, in steps.
void set_checkpoints(const AsRun& as_run, KitJob& job) {
  const profiles::Profile& profile = as_run.inputs.profile;
  const sim::Prediction& prediction = *as_run.prediction;
  constexpr double kAnyTokens = 1e12;  // the interval does not depend on them
  const tuner::RunConditions conditions =
      tuner::usual_conditions(as_run.inputs.model, kAnyTokens, prediction.plan.seq_len);
  const tuner::Goodput goodput =
      tuner::run_cost(as_run.inputs.model, prediction, profile.cluster.gpu.peak_bf16_flops,
                      conditions, {}, profile.cluster.gpus_per_node)
          .goodput;
  job.checkpoint_s = goodput.write_s;
  job.checkpoint_interval_s = std::min(goodput.interval_s, kLongestInterval_s);
  job.checkpoint_steps = std::max<std::int64_t>(
      1, std::llround(job.checkpoint_interval_s / prediction.time.iteration_s));
}

/// The interval of what PyTorch reserves: that of the total without what the runtime takes.
std::array<double, 2> reserved_interval(const sim::MemoryPrediction& memory) {
  return {gib(memory.interval_bytes[0] - memory.runtime_bytes),
          gib(memory.interval_bytes[1] - memory.runtime_bytes)};
}

}  // namespace

std::string usual_trainer(const Plan& plan) {
  const bool bucketed = info_of(plan.strategy).bucketed;
  if (plan.numerics.lora > 0 && !bucketed) return "axolotl";
  switch (info_of(plan.strategy).software) {
    case Software::kYafsdp:
      return "yafsdp";
    case Software::kDeepSpeed:
      return "deepspeed";
    case Software::kFsdp1:
      return "accelerate";
    case Software::kMegatron:
      return "megatron-lm";
    default:
      return plan.stack.starts_with("hf-") ? "accelerate" : "torchtitan";
  }
}

KitJob kit_job(const AsRun& as_run, const Trainer& trainer) {
  const Plan& plan = as_run.inputs.plans.front();
  const profiles::Profile& profile = as_run.inputs.profile;
  KitJob job;
  job.name = job_name(as_run.inputs.model_name);
  job.ranks = ranks_of(as_run.inputs, plan);
  job.accelerator = CatalogNames::load().accelerator_of(profile.cluster.gpu.id);
  job.amd = profile.cluster.gpu.id.starts_with("mi");
  if (trainer.name == "torchtitan" || trainer.name == "torchtitan-main") {
    job.settings_file = "shardwright_plan.py";
    job.launch = "-m torchtitan.train --module shardwright_plan --config plan";
    job.loads_settings = true;
    job.launch += torchtitan_checkpoints();
  } else if (trainer.name == "torchtitan-0.2") {
    job.settings_file = "train.toml";
    job.launch = "-m torchtitan.train --job.config_file=train.toml" + torchtitan_checkpoints();
  } else if (trainer.name == "axolotl" || trainer.name == "llama-factory") {
    start_fine_tuning(trainer, job);
  } else if (trainer.name == "accelerate") {
    job.settings_file = "accelerate.yaml";
    job.launch = "accelerate launch --config_file accelerate.yaml";
    job.through_torchrun = false;
    job.needs_script = true;
  } else {
    job.needs_script = true;
    job.launch = "\"$TRAIN_SCRIPT\"";
    if (trainer.name == "deepspeed") {
      job.settings_file = "deepspeed.json";
      job.launch += " --deepspeed_config deepspeed.json";
    } else if (trainer.name == "yafsdp") {
      job.settings_file = "yafsdp_settings.py";
    } else if (trainer.name == "unsloth") {
      job.settings_file = "unsloth_plan.py";
    } else if (trainer.name == "megatron-bridge") {
      job.settings_file = "shardwright_plan.py";
      job.loads_settings = true;
    } else if (trainer.name == "megatron-lm") {
      job.settings_file = "megatron_args.sh";
      job.before = "source ./megatron_args.sh && ";
      job.launch +=
          " \"${MEGATRON_ARGS[@]}\" --save \"$CHECKPOINT_DIR\" --load \"$CHECKPOINT_DIR\" "
          "--save-interval \"$CHECKPOINT_STEPS\" ${DATA_ARGS:-}";
    } else {
      throw Error(
          fmt::format("{} settings have no kit yet, expected --format torchtitan, accelerate, "
                      "yafsdp, deepspeed, megatron-lm, megatron-bridge, axolotl, llama-factory or "
                      "unsloth",
                      trainer.name));
    }
  }
  const bool expandable =
      plan.allocator == AllocatorKind::kExpandable ||
      (plan.allocator == AllocatorKind::kStack && profile.stack.allocator.expandable_segments);
  // The name of before PyTorch 2.9, which later ones read as well.
  job.environment.emplace_back("PYTORCH_CUDA_ALLOC_CONF", expandable ? "expandable_segments:True"
                                                                     : "expandable_segments:False");
  set_checkpoints(as_run, job);
  job.environment.emplace_back("OMP_NUM_THREADS", "8");
  job.environment.emplace_back("NCCL_DEBUG", "WARN");
  return job;
}

JsonSource expected_file(const AsRun& as_run) {
  const sim::Prediction& prediction = *as_run.prediction;
  const Plan& plan = prediction.plan;
  const sim::TimePrediction& time = prediction.time;
  const double tokens = std::round(time.tokens_per_s * time.iteration_s);
  const auto rate = [&](double seconds) {
    return tokens / seconds / static_cast<double>(plan.gpus);
  };
  const std::array<double, 2> reserved = reserved_interval(prediction.memory);
  const double reserved_gib = gib(prediction.memory.peak_reserved_bytes);
  const std::string titan = fmt::format(
      "step: N  loss: ..  memory: {:.2f}GiB ({:.2f} to {:.2f})  tps: {:.0f} ({:.0f} to {:.0f})",
      reserved_gib, reserved[0], reserved[1], time.tokens_per_gpu_s, rate(time.interval_s[1]),
      rate(time.interval_s[0]));
  const std::string megatron =
      fmt::format("iteration N/ .. | elapsed time per iteration (ms): {:.1f} ({:.1f} to {:.1f})",
                  time.iteration_s * 1e3, time.interval_s[0] * 1e3, time.interval_s[1] * 1e3);
  const std::string trainer = fmt::format("N/.. [.., {:.2f}s/it] ({:.2f} to {:.2f})",
                                          time.iteration_s, time.interval_s[0], time.interval_s[1]);
  const Json document{
      {"schema", "shardwright.expected/1.0"},
      {"model", as_run.inputs.model_name},
      {"gpus", plan.gpus},
      {"tokens_per_step", tokens},
      {"warmup_steps", kWarmupSteps},
      {"interval_level", time.interval_level},
      {"step_time_s", time.iteration_s},
      {"step_time_interval_s", {time.interval_s[0], time.interval_s[1]}},
      {"tokens_per_gpu_s", time.tokens_per_gpu_s},
      {"mfu", time.mfu},
      {"allocated_gib", gib(prediction.memory.peak_allocated_bytes)},
      {"reserved_gib", reserved_gib},
      {"reserved_interval_gib", reserved},
      {"lines", {{"torchtitan", titan}, {"megatron", megatron}, {"hf_trainer", trainer}}}};
  return json_source(json_text(document) + "\n");
}

MarkdownSource kit_readme(const KitJob& job, const AsRun& as_run, const Trainer& trainer) {
  const sim::Prediction& prediction = *as_run.prediction;
  MarkdownSource text = MarkdownSource::format(
      "# {}\n\n{} on {} x {}: {}.\n\n"
      "Predicted: {} a step ({} to {}), {:.2f} GiB reserved of {:.2f} GiB.\n\n"
      "| start it with | on |\n|---|---|\n"
      "| `sbatch job.sbatch` | Slurm |\n"
      "| `sky launch skypilot.yaml` | SkyPilot |\n"
      "| `kubectl apply -f jobset.yaml` | Kubernetes with JobSet; put your image where it says "
      "IMAGE |\n\n"
      "`{}` holds the settings of {}; what they cannot express of the plan is at its top. `env.sh` "
      "is the "
      "environment of every process. Then `./watch.py LOG --follow` says, after about ten steps, "
      "whether the job runs as `expected.json` has it.\n\n"
      "A checkpoint goes to `CHECKPOINT_DIR` every {} steps ({}), which has to be storage that all "
      "nodes share; after a failure the job starts again from the last one.\n",
      markdown(job.name), markdown(as_run.inputs.model_name), prediction.plan.gpus,
      markdown(as_run.inputs.profile.cluster.gpu.id), markdown(plan_words(prediction.plan)),
      markdown(duration(prediction.time.iteration_s)),
      markdown(duration(prediction.time.interval_s[0])),
      markdown(duration(prediction.time.interval_s[1])), gib(prediction.memory.peak_reserved_bytes),
      gib(prediction.memory.usable_bytes), bare(job.settings_file), markdown(trainer.title),
      job.checkpoint_steps, markdown(quantity(std::round(job.checkpoint_interval_s), "s")));
  if (trainer.name == "axolotl" || trainer.name == "llama-factory") {
    text +=
        MarkdownSource::format("\nThe data set and the learning rate are yours to add to `{}`.\n",
                               bare(job.settings_file));
  }
  if (job.needs_script) {
    text += MarkdownSource::format(
        "\n`TRAIN_SCRIPT` names {}.\n",
        trainer.name == "megatron-lm"
            ? "pretrain_gpt.py of Megatron-LM, `DATA_ARGS` its arguments of data, "
              "tokenizer, learning "
              "rate and checkpoints"
            : "your training script, which loads these settings and has to save to "
              "`CHECKPOINT_DIR` every `CHECKPOINT_STEPS` steps and to resume from "
              "there");
  }
  return text;
}

}  // namespace shardwright::cli
