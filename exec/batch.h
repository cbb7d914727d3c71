// SPDX-License-Identifier: Apache-2.0
// The tokens of a step, and where they lie on the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exec/device.h"
#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/workspace.h"

namespace shardwright::exec {

/// What one rank trains on in one step: all micro-batches one after the other, each micro_batch
/// sequences of seq_len tokens. Micro-batch m of rank r holds the sequences of global micro-batch
/// m * ranks + r.
struct Batch {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;    // the next token; kIgnoreTarget does not count
  std::vector<std::int32_t> positions;  // empty: 0, 1, ... in every sequence
  /// The first token of its sequence that a token attends to: the begin of its document. Empty: 0.
  std::vector<std::int32_t> first_keys;
};

/// How many documents these first keys tell apart, where each token's is the begin of the document
/// that it lies in; otherwise 0.
std::int64_t count_documents(std::span<const std::int32_t> first_keys, std::int64_t seq);

/// One micro-batch's part of the batch in device memory.
struct DeviceBatch {
  const std::int32_t* tokens = nullptr;
  const std::int32_t* targets = nullptr;
  const std::int32_t* positions = nullptr;
  PackedDocuments documents;  // without first keys where all are 0
};

/// The workspace of plan_workspace in device memory.
class Workspace {
 public:
  Workspace(const Model& model, const Plan& plan, std::byte* base);

  /// Fills the RoPE tables.
  void initialize(const Model& model, Device& device, StreamId stream);
  /// Checks sizes and values, throws Error naming what is wrong, and copies the batch. `batch` must
  /// stay until the copy is done.
  void upload(Batch& batch, std::int64_t micro_steps, Device& device, StreamId stream);

  DeviceBatch batch(std::int64_t micro_step) const;
  /// The first keys of a batch that came with them, also where all are 0; otherwise null.
  const std::int32_t* first_keys(std::int64_t micro_step) const;
  RopeTables rope() const;
  void* scratch() const { return base_ + plan_.scratch_offset; }
  /// For operands of products in fp8: plan_fp8_workspace's bytes, where the plan has such products.
  std::byte* fp8() const { return base_ + plan_.fp8_offset; }
  /// Where sums that tensor ranks share are made in several leaves: plan_leaf_workspace's bytes.
  struct Leaves {
    void* partial;
    void* operand;
  };
  Leaves leaves() const {
    return {base_ + plan_.leaf_partial_offset, base_ + plan_.leaf_operand_offset};
  }
  const WorkspacePlan& plan() const { return plan_; }

  /// The record that this rank sends, and the table of all ranks' records.
  std::int64_t* record(std::int64_t rank) const;
  LossSums* loss(std::int64_t rank, std::int64_t micro_step) const;
  StepTotals* totals(std::int64_t ranks) const;

 private:
  WorkspacePlan plan_;
  std::byte* base_;
  std::int64_t tokens_;  // of a micro-batch
  std::int64_t seq_len_;
  std::int64_t micro_steps_;
  std::int64_t vocab_;
  std::int64_t rope_pairs_;
  bool came_with_keys_ = false;
  bool has_documents_ = false;                 // the batch that was uploaded has first keys
  std::vector<std::int64_t> document_counts_;  // of its micro-batches, as PackedDocuments::count
};

}  // namespace shardwright::exec
