// SPDX-License-Identifier: Apache-2.0
// A launch kit: everything between a plan and a running job, as files of one folder.
//
//   the trainer's settings       of `export`
//   plan.json                    the plan, for the other verbs
//   env.sh                       the environment of every process, and where checkpoints go
//   job.sbatch, skypilot.yaml, jobset.yaml   the same job for Slurm, SkyPilot, Kubernetes
//   expected.json                what the log should say, with intervals
//   watch.py                     reads the log and says whether it does
//   README.md                    which of these to start, and how
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/export/settings.h"
#include "cli/export/source.h"
#include "cli/export/told.h"

namespace shardwright::cli {

struct KitFile {
  std::string name;
  AnySource text;
  bool executable = false;
};

struct KitJob {
  std::string name;  // of the job: letters, digits and '-'
  Ranks ranks;
  std::string settings_file;  // by its name in the kit
  ShellSource launch;         // behind torchrun's own flags, or the whole command of a launcher
  bool through_torchrun = true;
  ShellSource before;         // of every process: a command and " && "; empty: none
  bool needs_script = false;  // the trainer is a library: the user's TRAIN_SCRIPT is started
  std::string accelerator;    // as SkyPilot calls the GPU; empty: it has no name there
  bool amd = false;
  bool loads_settings = false;        // the trainer imports the settings file as a module
  std::int64_t checkpoint_steps = 0;  // steps between two checkpoints
  double checkpoint_interval_s = 0, checkpoint_s = 0;
  std::vector<std::pair<const char*, std::string>> environment;  // name and value
};

/// The trainer whose software the plan's strategy and stack are.
std::string usual_trainer(const Plan& plan);

KitJob kit_job(const AsRun& as_run, const Trainer& trainer);

ShellSource sbatch_file(const KitJob& job);
YamlSource skypilot_file(const KitJob& job);
/// `settings` is the text of the settings file, which is carried in a ConfigMap.
YamlSource jobset_file(const KitJob& job, const AnySource& settings);
ShellSource environment_file(const KitJob& job);
/// "shardwright.expected/1.0": what watch.py holds a log against.
JsonSource expected_file(const AsRun& as_run);
MarkdownSource kit_readme(const KitJob& job, const AsRun& as_run, const Trainer& trainer);
/// watch.py.
const char* watch_script();

}  // namespace shardwright::cli
