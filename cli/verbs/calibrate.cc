// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/flags/plan_flags.h"
#include "cli/profiles/calibrated_file.h"
#include "cli/render/calibration.h"
#include "cli/verbs/verbs.h"
#include "profiles/data_dir.h"
#include "profiles/stack_file.h"
#include "sim/calibrate/gather.h"
#include "sim/calibrate/rows.h"
#include "sim/calibrate/stack_from_trace.h"
#include "sim/core/atomic_file.h"
#include "sim/core/hf_config.h"
#include "sim/predict.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kForeignStack = "torch-eager";

class CalibrateVerb : public Verb {
 public:
  std::string name() const override { return "calibrate"; }
  std::string summary() const override {
    return "traces and nccl-tests logs into a hardware profile";
  }

  void declare_flags(Command& command) override {
    const auto files = [&](const char* flag, std::vector<std::string>& into, const char* what) {
      command.add(flag, into, what).type_name("FILE...");
    };
    files("--trace", traces_, "of run --trace, torch.profiler or nsys; one or many, ranks too");
    files("--nccl-tests", logs_, "output of nccl-tests");
    command.add("--base", base_, "the profile to start from: a cluster's name or file")
        .type_name("PROFILE");
    command.add("--out", out_, "write the calibrated profile").type_name("FILE");
    command.add("--stack", stack_, "the software that was traced, if not this program")
        .type_name("NAME");
    command
        .add("--stack-out", stack_out_, "write the stack that a PyTorch trace shows; needs --model")
        .type_name("FILE");
    command.add("--model", model_, "what was trained, for traces that do not say")
        .type_name("NAME|PATH");
    command.add("--plan", plan_, "the plan to find the most useful measurement for")
        .type_name("FILE");
    command.add("--gpus-per-node", gpus_per_node_, "of the traced job; of the base, unless given");
    command.add("--check", check_, "say whether this profile still holds; exit with 6 if not")
        .type_name("PROFILE");
    command.add("--merge", merge_, "calibrated profiles whose measurements to add")
        .type_name("PROFILE...");
    command.add("--json", json_, "print one JSON document");
  }

  ExitCode run(const Context& context) override {
    std::vector<fs::path> files(traces_.begin(), traces_.end());
    files.insert(files.end(), logs_.begin(), logs_.end());
    if (check_) {
      if (files.empty()) {
        throw Error("--check needs --trace FILE to hold the profile against", ExitCode::kUsage);
      }
      return check(files, context);
    }
    if (files.empty() && merge_.empty()) {
      throw Error(
          "Nothing to calibrate with: give --trace FILE, --nccl-tests FILE or --merge PROFILE",
          ExitCode::kUsage);
    }
    return calibrate(files, context);
  }

 private:
  profiles::ImportOptions import_options(const std::optional<std::string>& cluster) const {
    profiles::ImportOptions options;
    if (gpus_per_node_) {
      options.gpus_per_node = *gpus_per_node_;
    } else if (cluster) {
      options.gpus_per_node = profiles::load_cluster(*cluster).cluster.gpus_per_node;
    }
    if (model_) options.model = load_model(profiles::data_dir() / "models", *model_);
    return options;
  }

  ExitCode check(const std::vector<fs::path>& files, const Context& context) const {
    const profiles::ClusterFile cluster = profiles::load_cluster(*check_);
    if (!cluster.calibration) {
      throw Error(fmt::format("--check is '{}', expected a profile that calibrate wrote", *check_));
    }
    const sim::Gathered gathered = sim::gather(files, import_options(check_));
    const std::string stack =
        cluster.calibration->stack.empty() ? stack_of(gathered) : cluster.calibration->stack;
    const profiles::Profile profile = profiles::make_profile(cluster, profiles::load_stack(stack));
    const sim::Drift drift = sim::drift_of(profile, *cluster.calibration,
                                           sim::rows_of(gathered.set).rows, gathered.set.sources);
    fmt::print("{}", json_ ? drift_json(drift, *check_) : drift_text(drift, *check_, context.out));
    return drift.any() ? ExitCode::kOutsideTolerance : ExitCode::kDone;
  }

  std::string stack_of(const sim::Gathered& gathered) const {
    if (stack_) return *stack_;
    return gathered.identity ? gathered.identity->plan.stack : kForeignStack;
  }

  /// The base: as given, that of the profiles to merge, or for the host device the generic one.
  std::string base_of(const std::vector<profiles::ClusterFile>& merged,
                      const profiles::ObservationSet& set) const {
    if (base_) return *base_;
    for (const profiles::ClusterFile& file : merged) return file.calibration->parent;
    const bool own =
        !set.sources.empty() &&
        std::all_of(set.sources.begin(), set.sources.end(), [](const auto& source) {
          return source.format == "shardwright" && source.gpu.find("NVIDIA") == std::string::npos;
        });
    if (own) return "host";
    throw Error(
        "--base is missing, expected the cluster that the files were recorded on, for example "
        "dgx-h100; `shardwright inspect clusters` lists all",
        ExitCode::kUsage);
  }

  std::vector<profiles::ClusterFile> profiles_to_merge() const {
    std::vector<profiles::ClusterFile> files;
    for (const std::string& name : merge_) {
      files.push_back(profiles::load_cluster(name));
      const auto& calibration = files.back().calibration;
      if (!calibration) {
        throw Error(fmt::format("--merge is '{}', expected a profile that calibrate wrote", name));
      }
      const profiles::Calibration& first = *files.front().calibration;
      if (calibration->parent != first.parent || calibration->stack != first.stack) {
        throw Error(fmt::format(
            "--merge: {} was calibrated from {} with stack '{}' and {} from {} with stack '{}', "
            "expected profiles of one base and stack",
            merge_.front(), first.parent, first.stack, name, calibration->parent,
            calibration->stack));
      }
    }
    return files;
  }

  ExitCode calibrate(const std::vector<fs::path>& files, const Context& context) {
    const std::vector<profiles::ClusterFile> others = profiles_to_merge();
    sim::Gathered gathered;
    if (!files.empty()) gathered = sim::gather(files, import_options(base_));
    profiles::ObservationSet& set = gathered.set;
    CalibratedFile file;
    file.base = base_of(others, set);
    file.stack =
        !others.empty() && !stack_ ? others.front().calibration->stack : stack_of(gathered);
    file.date = today();
    profiles::Profile base = profiles::load_profile(file.base, file.stack);

    sim::Rows rows = sim::rows_of(set);
    file.sources = set.sources;
    for (const profiles::ClusterFile& other : others) {
      const profiles::Calibration& calibration = *other.calibration;
      rows.rows.insert(rows.rows.end(), calibration.rows.begin(), calibration.rows.end());
      file.sources.insert(file.sources.end(), calibration.sources.begin(),
                          calibration.sources.end());
    }
    if (rows.rows.empty()) {
      throw Error(fmt::format("{}: no operation in it can be fitted to{}",
                              fmt::join(traces_.empty() ? logs_ : traces_, ", "),
                              set.notes.empty() ? "" : "; " + set.notes.front()));
    }
    file.facts = sim::adopt_processor(file.sources, file.date, base);
    const sim::CalibrationResult result =
        sim::calibrate(base, sim::merged(rows.rows), {file.level});
    if (!out_.empty()) write_calibrated(out_, file, result);
    if (!stack_out_.empty()) write_stack(set, result);

    std::string asked_of;
    const sim::TimeOf time = time_of(gathered, result, file, asked_of);
    const CalibrationReport report{result,        set,       file.base,
                                   out_,          asked_of,  sim::next_measurement(result, time),
                                   rows.left_out, file.facts};
    fmt::print("{}", json_ ? calibration_json(report) : calibration_text(report, context.out));
    return ExitCode::kDone;
  }

  void write_stack(const profiles::ObservationSet& set,
                   const sim::CalibrationResult& result) const {
    if (!model_) {
      throw Error("--stack-out needs --model, whose sizes tell element-wise kernels apart",
                  ExitCode::kUsage);
    }
    const Model model = load_model(profiles::data_dir() / "models", *model_);
    const sim::StackFromTrace found = sim::stack_from_trace(
        set, model, result.profile, profiles::load_stack(stack_.value_or(kForeignStack)),
        fs::path(stack_out_).stem().string());
    write_file_atomically(stack_out_, profiles::to_json(found.stack) + "\n");
    for (const std::string& sentence : found.not_determined) fmt::print(stderr, "{}\n", sentence);
    fmt::print(stderr, "{} holds the stack: {} values from the trace.\n", stack_out_,
               found.changes.size());
  }

  /// What is asked about: the plan given, that of an own trace, or the measured operations.
  sim::TimeOf time_of(const sim::Gathered& gathered, const sim::CalibrationResult& result,
                      const CalibratedFile& file, std::string& asked_of) const {
    std::optional<Model> model;
    Plan plan;
    if (plan_) {
      PlanFlags flags;
      flags.plan_file = plan_;
      flags.model = model_;
      flags.cluster = file.base;
      sim::Job job = resolve(flags);
      model = std::move(job.model);
      plan = job.plans.front();
      asked_of = fmt::format("{} by {}", job.model_name, *plan_);
    } else if (gathered.identity) {
      model = parse_hf_config(gathered.identity->model_config, "the trace's model_config",
                              gathered.identity->model);
      plan = gathered.identity->plan;
      asked_of = "the traced plan";
    }
    if (!model || plan.gpus > result.profile.cluster.gpus_per_node) {
      if (!model || result.profile.cluster.nics_per_node == 0) {
        asked_of.clear();
        return sim::time_of_rows(result.rows, result.sharing);
      }
    }
    return [model = *model, plan](const profiles::Profile& profile) {
      sim::PredictOptions options;
      options.reserved = false;
      return sim::predict(model, profile, plan, options).time.iteration_s;
    };
  }

  std::vector<std::string> traces_, logs_, merge_;
  std::optional<std::string> base_, stack_, model_, plan_, check_;
  std::optional<std::int64_t> gpus_per_node_;
  std::string out_, stack_out_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_calibrate_verb() {
  return std::make_unique<CalibrateVerb>();
}

}  // namespace shardwright::cli
