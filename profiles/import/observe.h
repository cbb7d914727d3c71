// SPDX-License-Identifier: Apache-2.0
// Makes observations of the joined tables of one process.
//
// Device work is grouped by the operator that launched it: a product that ran as a split-k kernel
// and its reduction is one observation, as is the backward of attention with its three kernels.
// Collectives become observations one by one. What has no operator with known shapes around its
// launch is left out, under the name of its operator or, without one, of its kernel.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "profiles/import/import_observations.h"
#include "profiles/import/trace_tables.h"
#include "profiles/observation.h"
#include "sim/core/model.h"
#include "sim/core/schedule.h"

namespace shardwright::profiles {

/// The numbers of collectives, shared by the ranks of a job: by group, step, operation, bytes and
/// turn.
class CollectiveInstances {
 public:
  std::int64_t number(const std::string& group, std::int32_t step, OpKind op, std::int64_t bytes,
                      std::int64_t turn) {
    const auto next = static_cast<std::int64_t>(numbers_.size());
    return numbers_.try_emplace({group, step, static_cast<int>(op), bytes, turn}, next)
        .first->second;
  }

 private:
  std::map<std::tuple<std::string, std::int32_t, int, std::int64_t, std::int64_t>, std::int64_t>
      numbers_;
};

/// Appends to `set` the source and what it shows. `tables` must be joined.
void observe(const TraceTables& tables, const ImportOptions& options,
             CollectiveInstances& instances, ObservationSet& set);

// What an operator of PyTorch is work for: a GEMM, attention, or so many bytes moved.
//
// Told from the operator's name and the shapes of its arguments, never from the name of the kernel,
// which says how the library did it. Bytes are counted as the kernel must move them at least once:
// every tensor argument is read, the result is written. An operator that is not in the table, or
// whose shapes were not recorded, is no work that a model could be fitted to.

/// What an operator is, by its name alone.
enum class OperatorClass : std::uint8_t { kUnknown, kGemm, kAttention, kMemory };
OperatorClass class_of(std::string_view name);

/// Operators that are only called in the forward pass; met inside a backward operator they mean
/// that activations are computed again.
bool only_forward(std::string_view name);

struct OperatorWork {
  OpKind op = OpKind::kHostWork;
  Work work;
  std::int64_t batch = 1;  // independent products of one launch
};

/// None when the arguments do not have the form that the operator has.
std::optional<OperatorWork> work_of(std::string_view name, const std::vector<Argument>& arguments);

/// What the name of a kernel says of it, in words: "GEMM", "attention", "collective",
/// "copy or element-wise", "optimizer", "other".
std::string_view kernel_family(std::string_view kernel);

// Which operation of a transformer an element-wise operator belongs to, by the extents of its
// tensors.
//
// PyTorch says "aten::mul" of a norm, a rotary embedding and an activation alike, but their tensors
// end in the hidden size, the head dimension and the ffn size. Told only where the model is known;
// where two sizes are equal, or for shapes of no such size, the operator stays unknown.

/// None: not told by the shapes.
std::optional<OpKind> operation_in(const Model& model, std::string_view name,
                                   const std::vector<Argument>& arguments);

// What a recorded collective of PyTorch is to the cost model: which operation, how many bytes,
// between how many ranks on how many nodes.

/// Of "_allgather_base", "nccl:all_reduce", "reduce_scatter_tensor_coalesced"; none for those that
/// the simulator has no cost for (all_to_all, send, recv, gather, scatter).
std::optional<OpKind> collective_of(std::string_view name);

/// The ranks of "[0, 1, 2]"; empty when the text is no list or was cut short ("[0, 1, ..., 63]").
std::vector<std::int64_t> ranks_of(std::string_view text);

/// Nodes that a group spans: counted from its ranks where all are listed, else as for consecutive
/// ranks. At least 1.
std::int64_t nodes_of(const std::vector<std::int64_t>& ranks, std::int64_t group_size,
                      std::int64_t gpus_per_node);

// What the operators and annotations around a launch say of it: which operator it is work of, in
// which phase and step, for which sharded unit.

class RangeWalk {
 public:
  /// `tables` must be joined and outlive this.
  explicit RangeWalk(const TraceTables& tables);

  /// The innermost operator around `range` (itself first) that observe.h knows; not beyond
  /// the autograd function it lies in. kNoIndex: none.
  std::uint32_t owner(std::uint32_t range) const;

  /// Backward inside an autograd function, recompute where such a function runs forward operators
  /// again, optimizer inside its step, else forward.
  Phase phase(std::uint32_t range) const;

  /// The innermost range that tells of a collective (record_param_comms or "nccl:..."); kNoIndex.
  std::uint32_t collective_range(std::uint32_t range) const;

  /// "layers.3" of "FSDP::pre_forward (layers.3)"; empty when there is none.
  std::string unit(std::uint32_t range) const;

  bool inside_fsdp(std::uint32_t range) const;

  /// N of the "ProfilerStep#N" that contains a time on the host; -1: none, 0 when none is named.
  std::int32_t step(Nanoseconds host_time) const;
  /// Durations of the named steps, in order.
  std::vector<double> step_seconds() const;

 private:
  enum Mark : std::uint8_t {
    kKnownOperator = 1,
    kAutograd = 2,
    kCheckpoint = 4,  // the autograd function of a reentrant checkpoint
    kOptimizerStep = 8,
    kOnlyForward = 16,
    kFsdp = 32,
    kCollective = 64
  };
  struct Step {
    Nanoseconds begin, end;
    std::int32_t number;
  };
  std::uint8_t marks(std::uint32_t range) const { return marks_[tables_.ranges[range].name]; }

  const TraceTables& tables_;
  std::vector<std::uint8_t> marks_;  // by NameId
  std::vector<Step> steps_;          // by begin
};

}  // namespace shardwright::profiles
