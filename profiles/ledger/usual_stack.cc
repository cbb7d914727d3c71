// SPDX-License-Identifier: Apache-2.0
#include "profiles/ledger/usual_stack.h"

namespace shardwright::profiles {

std::string usual_stack(const Cluster& cluster) {
  return cluster.gpu.is_processor() ? "native" : "torch-compile";
}

std::string usual_model_parallel_stack() {
  return "megatron-core";
}

std::string usual_fine_tuning_stack() {
  return "hf-trainer";
}

}  // namespace shardwright::profiles
