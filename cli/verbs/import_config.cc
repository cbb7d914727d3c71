// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/build_info.h"
#include "cli/config/imported.h"
#include "cli/config/smallest_change.h"
#include "cli/flags/plan_flags.h"
#include "cli/render/prediction.h"
#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"
#include "cli/render/words/plan.h"
#include "cli/text.h"
#include "cli/verbs/verbs.h"
#include "profiles/cluster_file.h"
#include "profiles/data_file.h"
#include "sim/core/base/error.h"
#include "sim/core/hf/config.h"
#include "sim/core/plan_json.h"
#include "sim/predict.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Import {
  const ConfigFormat* format = nullptr;
  ImportedConfig config;
  sim::Job job;
  std::optional<sim::Prediction> prediction;
  std::string refusal;  // why there is none
  std::optional<SmallestChange> fix;

  const Plan& plan() const { return job.plans.front(); }
  sim::MemoryVerdict verdict() const {
    return prediction ? prediction->memory.verdict : sim::MemoryVerdict::kDoesNotFit;
  }
};

/// The key of the file that a knob came from, or "".
std::string key_of(const ImportedConfig& config, const std::string& knob) {
  for (const TakenSetting& taken : config.taken) {
    if (taken.meaning.starts_with(knob + " ")) return taken.key;
  }
  return "";
}

std::string memory_of(const sim::Prediction& prediction) {
  return fmt::format("{}, {}", needed_words(prediction.memory), name_of(prediction.memory.verdict));
}

std::string change_words(const ImportedConfig& config, const KnobChange& change) {
  const std::string key = key_of(config, change.knob);
  return fmt::format("{} {} -> {}{}", change.knob, change.from, change.to,
                     key.empty() ? "" : fmt::format(" ({})", key));
}

class ImportConfigVerb : public Verb {
 public:
  ImportConfigVerb()
      : Verb("import-config", "the settings of another trainer as a plan, predicted") {}

  void declare_flags(Command& command) override {
    command
        .add("FILE", file_,
             "settings of torchtitan (TOML, Python), Accelerate (YAML), DeepSpeed (JSON), axolotl, "
             "LLaMA-Factory, torchtune (YAML), Unsloth (Python, YAML) or Megatron (script, YAML, "
             "Python)")
        .required();
    flags_.declare(command);
    command.at("--plan").group("");  // refused in words of its own
    command.add("--format", format_, "whose settings they are (default: told by its keys)")
        .type_name(
            "torchtitan|axolotl|llama-factory|unsloth|torchtune|accelerate|deepspeed|megatron");
    command.add("--fix", fix_, "print the smallest change that makes it fit");
    command.add_file("--out", out_, "write the plan, for predict --plan and others").writes();
    command.add("--json", json_, "print one JSON document");
  }

  ExitCode run(const Context& context) override {
    if (flags_.plan_file) {
      throw Error("import-config takes no --plan: the file it is given becomes one.",
                  ExitCode::kUsage);
    }
    Import import = read();
    try {
      import.prediction = sim::predict(import.job.model, import.job.profile, import.plan());
    } catch (const InvalidPlan& error) {
      import.refusal = error.what();
    }
    const bool fits = import.verdict() == sim::MemoryVerdict::kFits;
    if (fix_ && import.prediction && !fits)
      import.fix = smallest_change(import.job, import.plan(), import.format->layers);
    if (!out_.empty()) write(import, context);
    if (json_) {
      fmt::print(results(), "{}\n", json_text(document(import)));
    } else {
      show(import, context.out);
    }
    if (!import.prediction) throw Error(import.refusal);
    if (fix_ && !fits && !import.fix) {
      throw Error(fmt::format("no change of one or two knobs makes {} fit on {} GPUs of {}; "
                              "shardwright tune searches all plans.",
                              file_, import.plan().gpus, import.job.cluster_name),
                  ExitCode::kInfeasible);
    }
    return ExitCode::kDone;
  }

 private:
  Import read() {
    Import import;
    SettingBox box(read_settings(file_), file_);
    import.format = format_ ? &config_format_named(*format_) : &recognized_format(box);
    import.format->read(box, import.config);
    box.finish(import.config);
    ImportedConfig& config = import.config;
    PlanDocument document;
    document.model = flags_.model.value_or(config.model);
    if (document.model.empty()) {
      throw Error(
          fmt::format("--model is missing: {} does not say one that ships; give a name such "
                      "as llama-3-70b, or a path.",
                      file_),
          ExitCode::kUsage);
    }
    if (!flags_.cluster) {
      throw Error("--cluster is missing: give a shipped name such as dgx-h100, or a path.",
                  ExitCode::kUsage);
    }
    document.cluster = *flags_.cluster;
    document.overrides = config.overrides;
    const Model model = model_of(document.model, config);
    if (flags_.knobs.micro_batch && config.global_batch) {  // which stays
      config.knobs.micro_batch = flags_.knobs.micro_batch;
      config.micro_batch_follows = false;
    }
    const std::int64_t gpus = gpus_of(config);
    if (!flags_.stack)
      fall_back(config, plan_of(config, gpus, model.layers, file_), model.is_moe());
    document.plan = plan_of(config, gpus, model.layers, file_);
    import.job = resolve_onto(flags_, document);
    only_plan(import.job, name());
    return import;
  }

  /// The file's model, or the shipped one that a copy under another organisation's name is of
  /// ("NousResearch/Meta-Llama-3-8B").
  Model model_of(std::string& name, ImportedConfig& config) const {
    const auto folder = profiles::data_dir() / "models";
    const std::size_t slash = name.rfind('/');
    if (flags_.model || slash == name.npos) return load_model(folder, name);
    try {
      return load_model(folder, name);
    } catch (const Error&) {  // goes on unless it is of a name that ships
      if (std::filesystem::exists(name)) throw;
      ModelFile copied;
      try {
        copied = find_model(folder, name.substr(slash + 1));
      } catch (const Error&) {  // the name as it stands is what the sentence should be about
      }
      if (copied.name.empty() || copied.path.parent_path() != folder) throw;
      config.assumed.push_back(fmt::format("{} is taken as {}", name, copied.name));
      name = copied.name;
      return load_model(folder, name);
    }
  }

  std::int64_t gpus_of(ImportedConfig& config) const {
    if (flags_.gpus) return *flags_.gpus;
    if (config.gpus) return *config.gpus;
    Plan model_parallel;
    model_parallel = with_knobs(model_parallel, config.knobs, 1);
    if (config.shard) return *config.shard * config.replicate * model_parallel.parallel.replica();
    const Cluster cluster = profiles::load_cluster(*flags_.cluster).cluster;
    const std::int64_t node =
        cluster.devices_per_node > 0 ? cluster.devices_per_node : cluster.gpus_per_node;
    const std::int64_t replica = model_parallel.parallel.replica();
    std::int64_t gpus = (node + replica - 1) / replica * replica;
    // A global batch that so many do not divide was made for fewer.
    const std::int64_t at_once =
        (config.micro_batch_follows ? config.knobs.grad_accum : config.knobs.micro_batch)
            .value_or(1);
    while (config.global_batch && gpus > replica &&
           *config.global_batch % (at_once * (gpus / replica)) != 0) {
      gpus -= replica;
    }
    config.assumed.push_back(fmt::format("the number of GPUs is not said: {} (--gpus)", gpus));
    return gpus;
  }

  void write(const Import& import, const Context& context) const {
    const Plan& plan = import.fix ? import.fix->prediction.plan : import.plan();
    PlanDocument document = sim::document_of(import.job, plan);
    document.command = context.command_line;
    document.tool_version = build_info().version;
    write_plan(out_, document);
    notify(fmt::format("The {}plan is in {}.", import.fix ? "changed " : "", out_));
  }

  void show(const Import& import, const Terminal& out) const {
    const auto say = [&](const std::string& text) {
      fmt::print(results(), "{}", paragraph(text, out));
    };
    const ImportedConfig& config = import.config;
    Table table(
        {left(fmt::format("{} setting", import.format->title)), left("value"), left("read as")});
    for (const TakenSetting& taken : config.taken)
      table.add_row({printable(taken.key, out.utf8), printable(taken.value, out.utf8),
                     printable(taken.meaning, out.utf8)});
    fmt::print(results(), "{}", table.render(out));
    for (const std::string& sentence : config.assumed) say("Assumed: " + sentence + ".");
    for (const LeftSetting& left : config.not_taken)
      say(fmt::format("Not taken: {} = {}: {}.", left.key, left.value, left.why));
    if (config.passed_over > 0)
      say(fmt::format("Passed over: {} of data, logs and the like.",
                      counted(config.passed_over, "setting")));
    say(fmt::format("Plan: {} on {} x {}: {}.", import.job.model_name, import.plan().gpus,
                    import.job.profile.cluster.gpu.id, plan_words(import.plan())));
    if (import.prediction) say("Predicted: " + cost_of(*import.prediction) + ".");
    if (import.fix) {
      std::vector<std::string> words;
      for (const KnobChange& change : import.fix->changes)
        words.push_back(change_words(config, change));
      say(fmt::format("Smallest change that fits: {}; then {}.", fmt::join(words, ", "),
                      cost_of(import.fix->prediction)));
    } else if (fix_ && import.verdict() == sim::MemoryVerdict::kFits) {
      say("It fits as it is.");
    }
  }

  static std::string cost_of(const sim::Prediction& prediction) {
    return fmt::format("{} a step, {:.0f} tokens/s per GPU, {}",
                       duration(prediction.time.iteration_s),
                       prediction.time.tokens_per_s / static_cast<double>(prediction.plan.gpus),
                       memory_of(prediction));
  }

  Json document(const Import& import) const {
    const ImportedConfig& config = import.config;
    Json taken = Json::array(), left = Json::array();
    for (const TakenSetting& entry : config.taken)
      taken.push_back({{"key", entry.key}, {"value", entry.value}, {"read_as", entry.meaning}});
    for (const LeftSetting& entry : config.not_taken)
      left.push_back({{"key", entry.key}, {"value", entry.value}, {"why", entry.why}});
    Json json{{"schema", "shardwright.import/1.0"}, {"file", file_},
              {"format", import.format->name},      {"taken", std::move(taken)},
              {"not_taken", std::move(left)},       {"assumed", config.assumed},
              {"passed_over", config.passed_over},  {"model", import.job.model_name},
              {"cluster", import.job.cluster_name}, {"plan", plan_to_json(import.plan())},
              {"set", import.job.overrides}};
    json["prediction"] =
        import.prediction ? prediction_json(import.job, *import.prediction) : Json(nullptr);
    if (!import.prediction) json["refusal"] = import.refusal;
    json["fix"] = nullptr;
    if (import.fix) {
      Json changes = json_list(import.fix->changes, [&](const KnobChange& change) -> Json {
        return {{"knob", change.knob},
                {"key", key_of(config, change.knob)},
                {"from", change.from},
                {"to", change.to}};
      });
      json["fix"] = {{"changes", std::move(changes)},
                     {"plan", plan_to_json(import.fix->prediction.plan)},
                     {"prediction", prediction_json(import.job, import.fix->prediction)}};
    }
    return json;
  }

  PlanFlags flags_;
  std::string file_, out_;
  std::optional<std::string> format_;
  bool fix_ = false, json_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_import_config_verb() {
  return std::make_unique<ImportConfigVerb>();
}

}  // namespace shardwright::cli
