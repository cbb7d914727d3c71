// SPDX-License-Identifier: Apache-2.0
#include "exec/batch.h"

#include <fmt/core.h>

#include <algorithm>

#include "kernels/host/rope.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {

std::int64_t count_documents(std::span<const std::int32_t> first_keys, std::int64_t seq) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < first_keys.size(); ++i) {
    const std::int64_t place = static_cast<std::int64_t>(i) % seq;
    const bool begins = first_keys[i] == place;
    if (!begins && (place == 0 || first_keys[i] != first_keys[i - 1])) return 0;
    count += begins;
  }
  return count;
}

Workspace::Workspace(const Model& model, const Plan& plan, std::byte* base)
    : plan_(plan_workspace(model, plan)),
      base_(base),
      tokens_(plan.micro_batch * plan.seq_len),
      seq_len_(plan.seq_len),
      micro_steps_(plan.grad_accum),
      vocab_(model.vocab),
      rope_pairs_(rotated_elements(model) / 2) {}

void Workspace::initialize(const Model& model, Device& device, StreamId stream) {
  const kernels::RopeTable table(model.rope, seq_len_, 2 * rope_pairs_);
  const Bytes half = plan_.rope_bytes / 2;
  device.copy(stream, base_ + plan_.rope_offset, table.cosine(), half);
  device.copy(stream, base_ + plan_.rope_offset + half, table.sine(), half);
  device.synchronize();
}

void Workspace::upload(Batch& batch, std::int64_t micro_steps, Device& device, StreamId stream) {
  const auto expected = static_cast<std::size_t>(micro_steps * tokens_);
  const auto check = [&](const char* what, const std::vector<std::int32_t>& values,
                         std::int32_t most) {
    if (values.size() != expected) {
      throw Error(fmt::format("the batch has {} {}, expected {}", values.size(), what, expected));
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool ignored = values[i] == kIgnoreTarget && &values == &batch.targets;
      if (!ignored && (values[i] < 0 || values[i] > most)) {
        throw Error(
            fmt::format("{}[{}] of the batch is {}, expected 0 to {}", what, i, values[i], most));
      }
    }
  };
  if (batch.positions.empty()) {
    for (std::size_t i = 0; i < expected; ++i) {
      batch.positions.push_back(static_cast<std::int32_t>(static_cast<std::int64_t>(i) % seq_len_));
    }
  }
  has_documents_ = std::any_of(batch.first_keys.begin(), batch.first_keys.end(),
                               [](std::int32_t key) { return key != 0; });
  came_with_keys_ = !batch.first_keys.empty();
  if (batch.first_keys.empty()) batch.first_keys.assign(expected, 0);
  const auto last = static_cast<std::int32_t>(seq_len_ - 1);
  check("tokens", batch.tokens, static_cast<std::int32_t>(vocab_ - 1));
  check("targets", batch.targets, static_cast<std::int32_t>(vocab_ - 1));
  check("positions", batch.positions, last);
  check("first_keys", batch.first_keys, last);
  for (std::size_t i = 0; i < expected; ++i) {
    if (batch.first_keys[i] > static_cast<std::int64_t>(i) % seq_len_) {
      throw Error(
          fmt::format("first_keys[{}] of the batch is {}, expected at most the token's place "
                      "in its sequence",
                      i, batch.first_keys[i]));
    }
  }
  document_counts_.clear();
  for (std::int64_t m = 0; m < micro_steps; ++m) {
    document_counts_.push_back(count_documents(
        std::span(batch.first_keys)
            .subspan(static_cast<std::size_t>(m * tokens_), static_cast<std::size_t>(tokens_)),
        seq_len_));
  }
  const Bytes quarter = plan_.batch_bytes / 4;
  const auto bytes = static_cast<Bytes>(4 * expected);
  std::byte* to = base_ + plan_.batch_offset;
  for (const std::vector<std::int32_t>* values :
       {&batch.tokens, &batch.targets, &batch.positions, &batch.first_keys}) {
    device.copy(stream, to, values->data(), bytes);
    to += quarter;
  }
}

DeviceBatch Workspace::batch(std::int64_t micro_step) const {
  const std::int64_t quarter = micro_steps_ * tokens_;
  const auto* first =
      reinterpret_cast<const std::int32_t*>(base_ + plan_.batch_offset) + micro_step * tokens_;
  PackedDocuments documents;
  if (has_documents_) {
    documents = {first_keys(micro_step), document_counts_[static_cast<std::size_t>(micro_step)]};
  }
  return {first, first + quarter, first + 2 * quarter, documents};
}

const std::int32_t* Workspace::first_keys(std::int64_t micro_step) const {
  if (!came_with_keys_) return nullptr;
  const std::int64_t quarter = micro_steps_ * tokens_;
  return reinterpret_cast<const std::int32_t*>(base_ + plan_.batch_offset) + 3 * quarter +
         micro_step * tokens_;
}

RopeTables Workspace::rope() const {
  const auto* cosine = reinterpret_cast<const float*>(base_ + plan_.rope_offset);
  return {cosine, cosine + seq_len_ * rope_pairs_, seq_len_, rope_pairs_};
}

std::int64_t* Workspace::record(std::int64_t rank) const {
  return reinterpret_cast<std::int64_t*>(base_ + plan_.exchange_offset +
                                         rank * plan_.exchange_bytes);
}

LossSums* Workspace::loss(std::int64_t rank, std::int64_t micro_step) const {
  return reinterpret_cast<LossSums*>(record(rank) + kExactSumWords) + micro_step;
}

StepTotals* Workspace::totals(std::int64_t ranks) const {
  return reinterpret_cast<StepTotals*>(record(ranks));
}

}  // namespace shardwright::exec
