// SPDX-License-Identifier: Apache-2.0
// What lives from step to step: initial values, and the views that checkpoints read and write.
#include <algorithm>

#include "exec/executor.h"
#include "exec/initial_weights.h"
#include "kernels/bf16.h"
#include "kernels/random.h"

namespace shardwright::exec {

std::vector<OwnedState> Executor::owned_state() const {
  std::vector<OwnedState> states;
  for (std::int32_t u = 0; u < layout_.units(); ++u) {
    const UnitMemory& unit = sharding_.unit(u);
    for (const OwnedPart& part : layout_.owned(u, sharding_.shard_rank())) {
      const auto view = [&](const Array& array) {
        return array.part(part.share_offset, part.count());
      };
      states.push_back({part.tensor, part.tensor_offset, part.rows, part.cols,
                        view(unit.owned_master), view(unit.first_moment), view(unit.second_moment),
                        view(unit.gradient_sum), part.counts});
    }
  }
  return states;
}

std::vector<OwnedState> Executor::counted_state() const {
  if (groups_.replicate->rank() > 0) return {};
  std::vector<OwnedState> states = owned_state();
  std::erase_if(states, [](const OwnedState& state) { return !state.counts; });
  return states;
}

void Executor::initialize(std::uint64_t seed) {
  const kernels::RandomStream random{seed, kernels::RandomSite::kInit, 0};
  for (const OwnedState& state : owned_state()) {
    const ParameterTensor& tensor = layout_.tensor(state.tensor);
    std::vector<float> values(static_cast<std::size_t>(state.parameter.size), 0.0f);
    if (tensor.initial == Initial::kOnes) std::fill(values.begin(), values.end(), 1.0f);
    if (tensor.initial == Initial::kNormal) {
      const std::int64_t stride = tensor.row_length();
      for (std::int64_t row = 0; row < state.rows; ++row) {
        const auto first =
            tensor.first_index + static_cast<std::uint64_t>(state.tensor_offset + row * stride);
        draw_weights(random, first, layout_.initial_deviation(),
                     std::span(values).subspan(static_cast<std::size_t>(row * state.cols),
                                               static_cast<std::size_t>(state.cols)));
      }
    }
    write(values, state.parameter);
    device_.zero(streams_[0], state.first_moment.data, state.first_moment.bytes());
    device_.zero(streams_[0], state.second_moment.data, state.second_moment.bytes());
  }
  parameters_changed();
}

// The record of a step is free between steps, so this takes no memory of the device.
std::vector<std::array<std::int64_t, kExactSumWords>> Executor::squares_of_parameters(
    const std::vector<OwnedState>& states) {
  std::vector<std::array<std::int64_t, kExactSumWords>> squares(states.size());
  std::int64_t* words = workspace_.record(groups_.world->rank());
  for (std::size_t i = 0; i < states.size(); ++i) {
    device_.zero(streams_[0], words, sizeof squares[i]);
    device_.sum_of_squares(streams_[0], states[i].parameter, words);
    device_.copy(streams_[0], squares[i].data(), words, sizeof squares[i]);
  }
  device_.synchronize();
  return squares;
}

void Executor::parameters_changed() {
  cast_changed();
  device_.synchronize();
}

std::vector<float> Executor::read(const Array& array) {
  std::vector<float> values(static_cast<std::size_t>(array.size));
  if (array.dtype == DType::kFp32) {
    device_.copy(streams_[0], values.data(), array.data, array.bytes());
    device_.synchronize();
    return values;
  }
  std::vector<kernels::BFloat16> narrow(values.size());
  device_.copy(streams_[0], narrow.data(), array.data, array.bytes());
  device_.synchronize();
  std::transform(narrow.begin(), narrow.end(), values.begin(),
                 [](kernels::BFloat16 x) { return kernels::to_float(x); });
  return values;
}

void Executor::copy_to_host(const Array& array, std::byte* to) {
  device_.copy(streams_[0], to, array.data, array.bytes());
}

void Executor::write(const std::vector<float>& values, const Array& array) {
  if (array.dtype == DType::kFp32) {
    device_.copy(streams_[0], array.data, values.data(), array.bytes());
    device_.synchronize();
    return;
  }
  std::vector<kernels::BFloat16> narrow(values.size());
  std::transform(values.begin(), values.end(), narrow.begin(),
                 [](float x) { return kernels::to_bf16(x); });
  device_.copy(streams_[0], array.data, narrow.data(), array.bytes());
  device_.synchronize();
}

}  // namespace shardwright::exec
