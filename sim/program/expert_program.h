// SPDX-License-Identifier: Apache-2.0
// What a layer with experts does in place of its MLP.
//
// Each rank routes the tokens it holds between the matrices (sequence parallelism divides them),
// sends them to the ranks of their experts, multiplies what arrives expert by expert, and sends the
// results back; backward mirrors it. With e ranks that share E experts a token's k rows meet k T
// rows a rank on the average, of E/e experts. Dispatchers:
//
//   allgather   all tokens to all ranks of the group, each takes its own; results are summed back
//   alltoall    NCCL: counts are gathered, rows sorted by expert, exchanged, sorted again
//   deepep      a token once to each rank or node, sorted on arrival
//   hybridep    the same, sorted on the way
//
// Without a capacity the number of rows is known only when the router has run: the host waits for
// it in every layer, and no graph of layers holds what follows. With a capacity c every expert
// takes at most c times its balanced rows, padded to that; else every rank waits in every layer
// for the one with most rows (sim/core/expert_load.h). Weight gradients of experts are read, added
// to and written in every micro-batch whatever the number of rows: that is what bounds many experts
// with few rows. Sources: Megatron-LM core/transformer/moe/token_dispatcher.py, moe_layer.py,
// experts.py, shared_experts.py; deepseek-ai/DeepEP.
#pragma once

#include "sim/program/program_writer.h"

namespace shardwright::sim {

/// Sizes of a rank's part of the experts of one layer.
struct ExpertShape {
  double tokens = 0;               // that the rank routes
  std::int64_t local_experts = 0;  // of the rank
  std::int64_t rows = 0;           // that one of them multiplies
  std::int64_t ffn = 0;            // of one expert, divided by expert tensor parallelism
  std::int64_t shared_ffn = 0;     // divided by tensor parallelism
  bool dropless = true;
  double busiest = 1;    // of the exchange: rows of the rank that gets most, over the mean
  double kept_rows = 0;  // of all local experts, on the rank whose memory is fullest
  double all_rows() const { return static_cast<double>(rows * local_experts); }
};
ExpertShape expert_shape(const Model& model, const Plan& plan, const Stack& stack);

/// How evenly the plan's routers choose: 0 where balance is forced or loads were measured.
double load_gini(const Model& model, Routing routing, const MoeSoftware& moe);
/// What the busiest of the ranks that share the experts gets, whatever the capacity.
BusiestRank busiest_of(const Model& model, const Plan& plan, const Stack& stack);

Dispatcher dispatcher_of(const Plan& plan, const Stack& stack);

void expert_forward(const ProgramWriter& writer, Ops& list);
void expert_backward(const ProgramWriter& writer, Ops& list);

}  // namespace shardwright::sim
