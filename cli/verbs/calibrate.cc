// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <optional>
#include <string>
#include <vector>

#include "cli/render/measured/calibration.h"
#include "cli/verbs/verbs.h"
#include "profiles/data_file.h"
#include "profiles/stack_file.h"
#include "sim/calibrate/calibration_files.h"
#include "sim/calibrate/stack_from_trace.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/hf/config.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;

class CalibrateVerb : public Verb {
 public:
  CalibrateVerb() : Verb("calibrate", "traces and nccl-tests logs into a hardware profile") {}

  void declare_flags(Command& command) override {
    const auto files = [&](const char* flag, std::vector<std::string>& into, const char* what) {
      command.add(flag, into, what).type_name("FILE...");
    };
    files("--trace", traces_, "of run --trace, torch.profiler or nsys; one or many, ranks too");
    files("--nccl-tests", logs_, "output of nccl-tests");
    command.add("--base", base_, "the profile to start from: a cluster's name or file")
        .type_name("PROFILE");
    command.add_file("--out", out_, "write the calibrated profile");
    command.add("--stack", stack_, "the framework that was traced, if not this program")
        .type_name("NAME");
    command.add_file("--stack-out", stack_out_,
                     "write the framework that a PyTorch trace shows; needs --model");
    command.add("--model", model_, "what was trained, for traces that do not say")
        .type_name("NAME|PATH");
    command.add("--gpus-per-node", gpus_per_node_, "of the traced job; of the base, unless given");
    command.add("--check", check_, "say whether this profile still holds; exit with 6 if not")
        .type_name("PROFILE");
    command.add("--merge", merge_, "calibrated profiles whose measurements to add")
        .type_name("PROFILE...");
    command.add("--force", force_, "fit onto the base also what a GPU without a profile recorded");
    command.add("--json", json_, "print one JSON document");
  }

  ExitCode run(const Context& context) override {
    sim::CalibrationRequest request{{traces_.begin(), traces_.end()},
                                    merge_,
                                    base_,
                                    stack_,
                                    std::nullopt,
                                    gpus_per_node_,
                                    force_};
    request.files.insert(request.files.end(), logs_.begin(), logs_.end());
    if (model_) request.model = load_model(profiles::data_dir() / "models", *model_);
    if (check_ && request.files.empty()) {
      throw Error("--check needs --trace FILE to hold the profile against", ExitCode::kUsage);
    }
    if (check_) {
      const sim::Drift drift = sim::drift_of_files(request, *check_);
      fmt::print(results(), "{}",
                 json_ ? drift_json(drift, *check_) : drift_text(drift, *check_, context.out));
      return drift.any() ? ExitCode::kOutsideTolerance : ExitCode::kDone;
    }
    if (request.files.empty() && merge_.empty()) {
      throw Error(
          "Nothing to calibrate with: give --trace FILE, --nccl-tests FILE or --merge PROFILE",
          ExitCode::kUsage);
    }
    const sim::FileCalibration done = sim::calibrate_files(request);
    if (!out_.empty()) sim::write_calibrated(out_, done.file, done.result);
    if (!stack_out_.empty()) write_stack(request, done);
    const CalibrationReport report{done.result, done.gathered.set,  done.file.base,
                                   out_,        done.rows_left_out, done.file.facts};
    fmt::print(results(), "{}",
               json_ ? calibration_json(report) : calibration_text(report, context.out));
    return ExitCode::kDone;
  }

 private:
  void write_stack(const sim::CalibrationRequest& request, const sim::FileCalibration& done) const {
    if (!request.model) {
      throw Error("--stack-out needs --model, whose sizes tell element-wise kernels apart",
                  ExitCode::kUsage);
    }
    const sim::StackFromTrace found =
        sim::stack_from_trace(done.gathered.set, *request.model, done.result.profile,
                              profiles::load_stack(stack_.value_or(sim::kForeignStack)),
                              fs::path(stack_out_).stem().string());
    write_file_atomically(stack_out_, profiles::to_json(found.stack) + "\n");
    for (const std::string& sentence : found.not_determined) notify(sentence);
    notify(fmt::format("{} holds the stack: {} values from the trace.", stack_out_,
                       found.changes.size()));
  }

  std::vector<std::string> traces_, logs_, merge_;
  std::optional<std::string> base_, stack_, model_, check_;
  std::optional<std::int64_t> gpus_per_node_;
  std::string out_, stack_out_;
  bool json_ = false, force_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_calibrate_verb() {
  return std::make_unique<CalibrateVerb>();
}

}  // namespace shardwright::cli
