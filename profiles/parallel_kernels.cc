// SPDX-License-Identifier: Apache-2.0
#include "profiles/parallel_kernels.h"

#include <string_view>

#include "profiles/data_dir.h"
#include "sim/core/json_file.h"

namespace shardwright::profiles {
namespace {

ParallelKernels load() {
  const JsonFile file = JsonFile::load(data_dir() / "parallel_kernels.json");
  const auto value = [&](std::string_view name, NumberRange<double> accepted) {
    return file.root().require_object(name).require<double>("value", accepted);
  };
  ParallelKernels kernels;
  kernels.userbuffer_splits = value("userbuffer_splits", between(1.0, 64.0));
  kernels.userbuffer_sms = static_cast<int>(value("userbuffer_sms", between(0.0, 1000.0)));
  kernels.deferred_head_gradients =
      static_cast<int>(value("deferred_head_gradients", between(0.0, 1e6)));
  kernels.hybrid_link_share = value("hybrid_link_share", between(0.01, 2.0));
  kernels.mxfp8_product_share = value("mxfp8_product_share", between(0.1, 2.0));
  return kernels;
}

}  // namespace

const ParallelKernels& parallel_kernels() {
  static const ParallelKernels kernels = load();
  return kernels;
}

}  // namespace shardwright::profiles
