// SPDX-License-Identifier: Apache-2.0
// What makes a job: settings, model, plan, data and version as keys and values. All ranks must have
// it alike, or they train different models and say nothing; checkpoints keep it.
#pragma once

#include <string>
#include <vector>

#include "exec/communicator.h"

namespace shardwright::exec {

struct JobFact {
  std::string key, value;
  std::string origin{};  // where the value is from, for people; neither compared nor hashed
};
using JobFacts = std::vector<JobFact>;

/// SHA-256 of keys and values, as hexadecimal digits.
std::string hash_of(const JobFacts& facts);

/// All ranks call it together. Throws Error on each of them that names the first key that differs,
/// the two values and their ranks.
void require_agreement(Communicator& world, const JobFacts& mine);

}  // namespace shardwright::exec
