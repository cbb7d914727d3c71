// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters (LoRA, Hu et al. 2021): the model stays as it is, and beside every matrix of a
// layer the product of two narrow ones is trained; beside those of attention alone, or those that
// make queries, keys and values, where the framework's recipes say so (stack.parallel.adapted).
//
//   y = W x + B A x,  W [out, in] frozen, A [rank, in], B [out, rank]
//
// Every routed expert has adapters of its own; routers, gates of heads and of shared experts, and
// convolutions have none.
//
// Forward: two narrow products and a sum beside each matrix. Backward: the gradient of the input
// takes W as before and the two narrow ones; W has no gradient, A and B have one each. Embedding,
// norms and head are frozen. What is trained alone has gradients, a master copy and moments, is
// summed over replicas and, where the strategy divides it, sharded and gathered; with sharded
// parameters the frozen ones are gathered as ever. Adapters multiply in bf16 whatever the layers
// do. Under tensor parallelism A of a column-parallel and B of a row-parallel matrix are whole on
// every rank; the sums of their gradients over the tensor group, once a step, are left out, and so
// are the narrow activations A x.
//
// Frozen weights may be quantized (QLoRA, Dettmers et al. 2023): four bits in blocks of 64 whose
// scales are quantized in turn, or eight with a scale a block. They are kept and gathered so, and
// before each product, forward and backward, made bf16 anew; embedding, norms and head stay bf16.
// Products in int8 itself (LLM.int8()) are not modelled.
#pragma once

#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/stack.h"
#include "sim/program/program_writer.h"

namespace shardwright::sim {

/// Parameters of a rank: of all but routed experts, and of these.
struct AdapterElements {
  std::int64_t dense = 0, experts = 0;
};
/// In a layer of that kind; none without adapters.
AdapterElements adapter_elements(const Model& model, const Plan& plan, const Stack& stack,
                                 LayerKind kind);

/// Bytes of a frozen weight of the layers as --quantize keeps it, its scales included.
double quantized_weight_bytes(Quantize quantize);

/// Puts before every product of a frozen matrix what makes bf16 of its quantized weights.
void dequantize(const ProgramWriter& writer, Ops& list);

/// A layer's lists with adapters in place of weight gradients. The forward list is changed before
/// what runs again is taken from it.
void add_adapters(const ProgramWriter& writer, Ops& forward);
void train_adapters(const ProgramWriter& writer, Ops& backward);

/// Of parts without adapters: no gradients of weights.
void freeze(Ops& backward);

}  // namespace shardwright::sim
