// SPDX-License-Identifier: Apache-2.0
#include "sim/core/tensor.h"

#include <array>

#include "sim/core/model.h"

namespace shardwright {

namespace {

constexpr std::array<std::string_view, kTensorCount> kNames = {
#define TENSOR(id, name, columns) name,
#include "sim/core/tensors.def"
#undef TENSOR
};

}  // namespace

std::string_view name_of(Tensor tensor) {
  return kNames[index_of(tensor)];
}

std::int64_t columns_of(Tensor tensor, const Model& m) {
  switch (tensor) {
// clang-format off
#define TENSOR(id, name, columns) case Tensor::id: return columns;
#include "sim/core/tensors.def"
#undef TENSOR
    // clang-format on
  }
  return 0;
}

}  // namespace shardwright
