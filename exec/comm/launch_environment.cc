// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/launch_environment.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <vector>

#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::exec {

namespace {

/// The variables of a launcher. `marker` is what only that launcher sets: without it, the others
/// say nothing (Slurm sets SLURM_NTASKS for a batch script, too).
struct Variables {
  Launcher launcher;
  const char* rank;
  const char* ranks;
  const char* local_rank;   // may lack unless it is `needs_local`
  const char* local_ranks;  // may lack
  bool needs_local;
  bool rank_marks;  // only the rank says that this is a launched process
};
constexpr Variables kLaunchers[] = {
    {Launcher::kRun, "SHARDWRIGHT_RANK", "SHARDWRIGHT_RANKS", "SHARDWRIGHT_RANK",
     "SHARDWRIGHT_RANKS", false, false},
    {Launcher::kTorchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", true, false},
    {Launcher::kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", false, false},
    {Launcher::kPmi, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", false, false},
    {Launcher::kSlurm, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr, true, true}};

class Reader {
 public:
  Reader(const Environment& environment, Launcher launcher)
      : environment_(environment), launcher_(launcher) {}

  bool has(const char* name) const { return name != nullptr && environment_(name).has_value(); }

  std::int64_t number(const char* name, std::int64_t least, std::int64_t most) const {
    const std::string text = *environment_(name);
    const std::optional<std::int64_t> value = parse_int64(text);
    if (!value || *value < least || *value > most) {
      throw Error(fmt::format("the environment of {} has {}={}, expected a number from {} to {}",
                              name_of(launcher_), name, text, least, most));
    }
    return *value;
  }

  /// Throws when only some of `names` are set.
  void require_all(const std::vector<const char*>& names) const {
    std::vector<std::string> found, lacking;
    for (const char* name : names) {
      if (has(name)) {
        found.push_back(fmt::format("{}={}", name, *environment_(name)));
      } else {
        lacking.emplace_back(name);
      }
    }
    if (lacking.empty()) return;
    throw Error(
        fmt::format("the environment of {} is half set: {} is there, but {} lacks; start "
                    "with the launcher, or unset it to run threads as ranks",
                    name_of(launcher_), fmt::join(found, ", "), fmt::join(lacking, ", ")));
  }

 private:
  const Environment& environment_;
  Launcher launcher_;
};

constexpr std::int64_t kMostLaunchedRanks = 1 << 20;
constexpr std::int64_t kMostPort = 65534;  // the next one must exist

}  // namespace

const char* name_of(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "this process alone";
    case Launcher::kRun:
      return "shardwright run";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kOpenMpi:
      return "mpirun (Open MPI)";
    case Launcher::kPmi:
      return "mpirun (PMI)";
    case Launcher::kSlurm:
      return "srun (Slurm)";
  }
  return "unknown";
}

LaunchEnvironment launch_environment(const Environment& environment) {
  for (const Variables& names : kLaunchers) {
    const Reader reader(environment, names.launcher);
    const bool torchrun = names.launcher == Launcher::kTorchrun;
    const bool launched = names.rank_marks ? reader.has(names.rank)
                                           : reader.has(names.rank) || reader.has(names.ranks);
    if (!launched) continue;
    std::vector<const char*> needed = {names.rank, names.ranks};
    if (names.needs_local) needed.push_back(names.local_rank);
    if (torchrun) needed.insert(needed.end(), {"MASTER_ADDR", "MASTER_PORT"});
    reader.require_all(needed);

    LaunchEnvironment found;
    found.launcher = names.launcher;
    found.ranks = reader.number(names.ranks, 1, kMostLaunchedRanks);
    found.rank = reader.number(names.rank, 0, found.ranks - 1);
    if (reader.has(names.local_rank)) {
      found.local_rank = reader.number(names.local_rank, 0, found.ranks - 1);
    }
    found.local_ranks =
        reader.has(names.local_ranks) ? reader.number(names.local_ranks, 1, found.ranks) : 0;
    if (torchrun) {
      found.address = *environment("MASTER_ADDR");
      found.port = reader.number("MASTER_PORT", 1, kMostPort);
      const std::optional<std::string> agent = environment("TORCHELASTIC_USE_AGENT_STORE");
      if (agent == "True") ++found.port;
    }
    // srun -n 1 and mpirun -n 1 leave the choice of ranks to the user, as no launcher does.
    if (found.ranks == 1) return {};
    return found;
  }
  return {};
}

}  // namespace shardwright::exec
