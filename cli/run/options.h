// SPDX-License-Identifier: Apache-2.0
// What a run's settings mean: the model, the plan with every knob decided, data, training options
// and the machine. Nothing of it has run yet, so wrong values are refused before anything starts.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/machine/execution.h"
#include "cli/run/settings.h"
#include "exec/comm/launch_environment.h"
#include "exec/host/host_device.h"
#include "exec/train/data/dataset.h"
#include "exec/train/trainer.h"
#include "profiles/cluster_file.h"
#include "sim/core/model.h"
#include "sim/core/plan_json.h"

namespace shardwright::cli {

struct RunOptions {
  std::string model_name;
  std::string config;  // the text of its config.json
  Model model;
  Plan plan;
  std::string cluster;                 // the plan's or the one given; empty: none
  std::string cluster_file;            // the text of the plan's own cluster file; empty: by name
  bool cluster_given = false;          // by a setting, not by the plan
  std::string predicted_for;           // in words; decided when steps are predicted
  std::vector<std::string> overrides;  // of the profile, kept by the plan
  exec::LaunchEnvironment launch;
  DeviceKind device = DeviceKind::kHost;
  std::vector<OfferedGpu> gpus;           // that ranks take in turn; empty on the host
  std::string attention_kernel = "auto";  // on GPUs
  bool times_products = false;            // on GPUs: which algorithm serves each shape
  ProductChoices product_choices;         // of the cluster's profile, made earlier
  Transport transport = Transport::kLocal;
  bool has_processes = true;        // over NCCL, where no launcher started any
  int collective_sms = 0;           // that a collective of NCCL may take; 0: NCCL's choice
  std::string rendezvous = "auto";  // of processes that NCCL connects
  double rank_timeout_s = 0;        // that processes wait for one of them
  exec::StreamMode streams = exec::StreamMode::kInline;
  std::string network;     // of virtual clocks: a cluster; empty: clocks are the wall's
  bool binds_cpus = true;  // host threads of a rank to the processors near its GPU
  int threads = 1;
  bool until_allocation = false;  // nothing is trained, read or written
  exec::DataOptions data;
  exec::TrainOptions train;
  exec::JobFacts facts;                  // that all ranks must have alike
  std::function<void()> on_agreement{};  // rank 0, when they have
  std::string resume;                    // as given
  std::string weights;                   // as given
  bool marks_ranges = false;             // operations as ranges of NVTX
  std::string trace;                     // path of the trace; empty: none
  std::string out;
  bool overwrite = false;  // a finished run in `out`
  std::int64_t log_every = 1;
  std::vector<std::string> notes;  // for the person who starts the run
};

/// The file of the cluster in the options, which must name one. Throws Error.
profiles::ClusterFile cluster_file_of(const RunOptions& options);

/// Decides what the settings leave open, and writes it back to them. Throws Error.
RunOptions run_options(RunSettings& settings);

/// Decides what --epochs mean, once the sequences of the training data are known.
void decide_epochs(RunSettings& settings, RunOptions& options, std::int64_t sequences);

std::int64_t sequences_of_step(const Plan& plan);

// The plan of a run: from the plan file, changed by settings, on the ranks that there are.

/// Every knob decided and written back to the settings. `document` is the plan file's, empty where
/// there is none. Throws Error naming the setting.
Plan run_plan(RunSettings& settings, const PlanDocument& document, const Model& model,
              const exec::LaunchEnvironment& launch, DeviceKind device);

}  // namespace shardwright::cli
