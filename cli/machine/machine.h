// SPDX-License-Identifier: Apache-2.0
// What this machine has, found without linking any of it: libraries are opened at run time, so the
// same binary can ask on a laptop without a driver and on a node with eight GPUs.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/build_info.h"
#include "sim/core/units.h"

namespace shardwright::cli {

/// One thing that a machine may have.
struct Component {
  std::string key{};    // stable name in JSON: "cuda_driver"
  std::string title{};  // "CUDA driver"
  bool present = false;
  std::string version{};  // empty when absent or unknown
  std::string detail{};   // where it is, or one clause on why it is not there
};

struct InstalledGpu {
  std::string name{};
  Bytes memory_bytes = 0;
  std::string compute_capability{};  // "9.0"
  int multiprocessors = 0;
};

struct Machine {
  std::string operating_system{};  // "Debian GNU/Linux 12 (bookworm)"
  std::string processor{};
  int cores = 0;
  Bytes memory_bytes = 0;
  bool has_apt = false;
  bool in_container = false;
  /// Display and compute devices of NVIDIA on the PCI bus, with or without a driver.
  int nvidia_devices = 0;
  /// The newest CUDA that the driver supports: 13000 is 13.0; 0 without a driver.
  int driver_cuda_version = 0;
  std::vector<Component> components{};
  std::vector<InstalledGpu> gpus{};
  /// Whether every GPU reads the memory of every other; with fewer than two there is nothing to
  /// say.
  std::optional<bool> peer_access{};

  /// The component with that key; asking for one that is not probed is a bug.
  const Component& component(std::string_view key) const;
  bool has(std::string_view key) const { return component(key).present; }
};

/// Probes; takes some tens of milliseconds where CUDA libraries are installed. Never throws for
/// what is missing or broken: that is what it reports.
Machine probe_machine();

// Where the shell would find a program.

/// The first executable file of that name on the PATH; empty when there is none.
std::filesystem::path program_path(const std::string& name);

// A library opened at run time because the machine may not have it.
//
// It is never unloaded: CUDA's and MPI's libraries register handlers that run when the process
// ends.

class SharedLibrary {
 public:
  /// Opens the first of `names` that opens, by the loader's rules, then in each of `folders`.
  SharedLibrary(const std::vector<std::string>& names,
                const std::vector<std::filesystem::path>& folders = {});

  bool opened() const { return handle_ != nullptr; }
  /// Where it lies; empty when it was not opened.
  std::string path() const;
  /// Why it was not opened: what the loader said about the first name.
  const std::string& problem() const { return problem_; }

  /// Why a part of it, a library of that name beside it or where the loader looks, cannot be
  /// opened; empty when it can.
  std::string why_without(const std::string& part) const;

  /// The function of that name, or nullptr. `Function` is its type, such as int(int*).
  template <typename Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;

  void* handle_ = nullptr;
  std::string problem_;
};

// The processor of this machine, as traces and doctor name it.

struct Processor {
  std::string name{};  // "AMD EPYC 7742 64-Core Processor"
  int cores = 1;
  Bytes memory_bytes = 0;
};

Processor this_processor();

// What a machine and a build together can do, and what to install for the rest. Pure functions of
// what was found, so that every combination can be tested on any machine.

struct Capability {
  std::string name{};  // "predict", "run --device cuda"
  bool available = false;
  bool calculates = false;  // needs nothing but this binary
  std::string reason{};     // why not, as one clause; empty when available
};

/// `verbs` are the names of the verbs in this build.
std::vector<Capability> capabilities(const Machine& machine, const BuildInfo& build,
                                     const std::vector<std::string>& verbs);

struct Advice {
  std::string component{};  // key of the component that is missing
  std::string title{};
  std::string command{};  // to paste into a shell; empty where no command can help
  std::string note{};     // what it is good for, or why there is no command
};

/// Adds to the detail of each component of which this release is newer than what was read of it
/// (exec/libraries/rules.json).
void note_what_rules_miss(std::vector<Component>& components);

std::vector<Advice> install_advice(const Machine& machine);

/// Why a build without the executor cuda lacks it, and what builds one, as a clause.
std::string no_cuda_executor(std::string_view why);

/// Appends the components cuda_driver, gpu, cuda_toolkit, cublas_lt, nccl, cupti, cudnn and nvrtc,
/// and fills `gpus`.
void probe_cuda(Machine& machine);

}  // namespace shardwright::cli
