// SPDX-License-Identifier: Apache-2.0
#include "cli/kit/kit.h"

#include <fmt/core.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/build_info.h"
#include "cli/flags/plan_flags.h"
#include "cli/render/text/json_text.h"
#include "cli/render/words/plan.h"
#include "cli/text.h"
#include "cli/verbs/verbs.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/plan_json.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;

class KitVerb : public Verb {
 public:
  KitVerb()
      : Verb("kit",
             "a plan as a job to start: trainer, Slurm, SkyPilot and Kubernetes files, and a "
             "watch") {}

  void declare_flags(Command& command) override {
    flags_.declare(command);
    command
        .add("--format", format_,
             "the trainer, as export has it (default: the one whose strategy the plan has)")
        .type_name("NAME");
    command.add("--out", out_, "the folder to write into; made where it is not there")
        .type_name("DIR")
        .required();
    command.add("--json", json_, "print one JSON document that lists the files");
  }

  ExitCode run(const Context& context) override {
    const sim::Job job = resolve(flags_);
    const Plan& plan = only_plan(job, name());
    const Trainer& trainer = trainer_named(format_.value_or(usual_trainer(plan)));
    const TrainerSettings settings = trainer.settings(job, plan);
    const AsRun as_run = predict_as_run(job, settings);
    if (!as_run.prediction)
      throw Error(fmt::format("what {} makes of this plan cannot be predicted: {}", trainer.title,
                              as_run.refusal));
    const std::vector<KitFile> files = files_of(job, trainer, settings, as_run, context);
    write(files);
    if (json_) {
      print_json(trainer, files);
    } else {
      for (const KitFile& file : files)
        fmt::print(results(), "{}\n", (fs::path(out_) / file.name).string());
    }
    for (const Remark& remark : settings.remarks) {
      if (!remark.lost) continue;
      fmt::print(messages(), "{}", paragraph("Not expressed: " + remark_text(remark), context.err));
    }
    if (const auto verdict = as_run.prediction->memory.verdict;
        verdict != sim::MemoryVerdict::kFits) {
      fmt::print(messages(), "note: {} {} with these settings: {}.\n",
                 printable(job.model_name, context.err.utf8),
                 verdict == sim::MemoryVerdict::kTight ? "is tight" : "does not fit",
                 needed_words(as_run.prediction->memory));
    }
    return ExitCode::kDone;
  }

 private:
  std::vector<KitFile> files_of(const sim::Job& job, const Trainer& trainer,
                                const TrainerSettings& settings, const AsRun& as_run,
                                const Context& context) const {
    const KitJob kit = kit_job(as_run, trainer);
    const AnySource text =
        trainer_file(trainer, settings,
                     {fmt::format("{} {}, written by shardwright {} kit.", trainer.title,
                                  trainer.what, build_info().version),
                      fmt::format("{} on {} x {}: {}.", job.model_name, job.plans.front().gpus,
                                  job.profile.cluster.gpu.id, plan_words(job.plans.front()))});
    PlanDocument plan = sim::document_of(job, job.plans.front());
    plan.command = context.command_line;
    plan.tool_version = build_info().version;
    return {{"README.md", kit_readme(kit, as_run, trainer)},
            {kit.settings_file, text},
            {"plan.json", json_source(plan_text(plan))},
            {"env.sh", environment_file(kit)},
            {"job.sbatch", sbatch_file(kit)},
            {"skypilot.yaml", skypilot_file(kit)},
            {"jobset.yaml", jobset_file(kit, text)},
            {"expected.json", expected_file(as_run)},
            {"watch.py", PythonSource(watch_script()), true}};
  }

  void write(const std::vector<KitFile>& files) const {
    std::error_code problem;
    fs::create_directories(out_, problem);
    if (problem)
      throw Error(fmt::format("{}: cannot be made: {}", out_, problem.message()),
                  exit_code_of(problem.value()));
    for (const KitFile& file : files) {
      const fs::path path = fs::path(out_) / file.name;
      write_file_atomically(path, file.text.text(), OutputPlace::kInFolder);
      if (!file.executable) continue;
      fs::permissions(path, fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec,
                      fs::perm_options::add, problem);
    }
  }

  void print_json(const Trainer& trainer, const std::vector<KitFile>& files) const {
    nlohmann::ordered_json names =
        json_list(files, [&](const KitFile& file) -> nlohmann::ordered_json { return file.name; });
    fmt::print(results(), "{}\n",
               json_text({{"schema", "shardwright.kit/1.0"},
                          {"format", trainer.name},
                          {"out", out_},
                          {"files", std::move(names)}}));
  }

  PlanFlags flags_;
  std::optional<std::string> format_;
  std::string out_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_kit_verb() {
  return std::make_unique<KitVerb>();
}

}  // namespace shardwright::cli
