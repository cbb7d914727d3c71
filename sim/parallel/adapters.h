// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters (LoRA, Hu et al. 2021): the model stays as it is, and beside every matrix of a
// layer the product of two narrow ones is trained.
//
//   y = W x + B A x,  W [out, in] frozen, A [rank, in], B [out, rank]
//
// Forward: two narrow products and a sum beside each matrix. Backward: the gradient of the input
// takes W as before and the two narrow ones; W has no gradient, A and B have one each. Embedding,
// norms and head are frozen. What is trained alone has gradients, a master copy and moments, is
// summed over replicas and, where the strategy divides it, sharded and gathered; with sharded
// parameters the frozen ones are gathered as ever. Adapters multiply in bf16 whatever the layers
// do. Under tensor parallelism A of a column-parallel and B of a row-parallel matrix are whole on
// every rank; the sums of their gradients over the tensor group, once a step, are left out, and so
// are the narrow activations A x.
#pragma once

#include "sim/core/model.h"
#include "sim/core/plan.h"
#include "sim/core/stack.h"
#include "sim/parallel/body.h"

namespace shardwright::sim {

/// Of a rank, in `layers` layers; 0 without adapters.
double adapter_parameters(const Model& model, const Plan& plan, const Stack& stack,
                          std::int64_t layers);

/// A layer's lists with adapters in place of weight gradients. The forward list is changed before
/// what runs again is taken from it.
void add_adapters(const BodyWriter& writer, Ops& forward);
void train_adapters(const BodyWriter& writer, Ops& backward);

/// Of parts without adapters: no gradients of weights.
void freeze(Ops& backward);

}  // namespace shardwright::sim
