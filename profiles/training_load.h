// SPDX-License-Identifier: Apache-2.0
// What GPUs keep of their rates under the load of a training that many of them share:
// profiles/data/parallel_kernels.json, training_load. The rates of gpu_cost.json hold for those it
// does not name.
#pragma once

#include <string_view>

namespace shardwright::profiles {

struct TrainingLoad {
  double product_share = 1;  // of matrix products, whatever their precision
  double stream_share = 1;   // of kernels that memory bounds
};

/// Of the GPU of that name. Throws Error where the file is wrong.
TrainingLoad training_load(std::string_view gpu);

}  // namespace shardwright::profiles
