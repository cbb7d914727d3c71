// SPDX-License-Identifier: Apache-2.0
// What a machine and a build together can do, and what to install for the rest. Pure functions of
// what was found, so that every combination can be tested on any machine.
#pragma once

#include <string>
#include <vector>

#include "cli/build_info.h"
#include "cli/machine/machine.h"

namespace shardwright::cli {

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

}  // namespace shardwright::cli
