// SPDX-License-Identifier: Apache-2.0
// What GEMMs in fp8 or nvfp4 change in a layer's list: the type they multiply in, casts of what
// they read, and narrower gathers.
//
// Products of the layers' matrices run in the plan's precision; attention, the router, norms,
// embedding and head stay in bf16. An input is cast once for all products that read it: in forward
// along rows, and along columns for the weight gradient; the gradient of an output is cast once for
// both products of backward. Casts by recipe (TransformerEngine pytorch/tensor/*, torchao
// float8): bytes an element reads and writes, and kernels.
//
//   delayed      cast and, before Blackwell, transposed in one pass, the largest value kept for the
//                next step
//   tensorwise   one pass more, for the largest value: it is zeroed, found, made a scale, then the
//                cast and, before Blackwell, its transpose
//   rowwise      along rows and along columns, each with its largest values (torchao)
//   block        1 x 128 along rows and along columns
//   mxfp8        1 x 32 both ways, then both tables of scales put in the product's order
//   nvfp4        1 x 16 both ways after a Hadamard transform and the tensor's largest value
//
// The executor casts both operands just before each product instead (Fp8Software), and keeps inputs
// in bf16. In other software weights are cast once a step (weight_cast_bytes), or arrive in fp8
// with fp8_params but MXFP8's. What is gathered over tensor ranks before a product is cast by the
// rank that has it and travels in fp8; sums stay in bf16, but those of userbuffers with delayed
// scaling on Hopper.
#pragma once

#include <cstdint>

#include "sim/core/cluster.h"
#include "sim/core/plan.h"
#include "sim/core/stack.h"
#include "sim/core/units.h"
#include "sim/program/program_writer.h"

namespace shardwright::sim {

/// How GEMMs in fp8 are scaled: tensorwise, unless the plan says otherwise.
Fp8Recipe fp8_recipe_of(const Plan& plan);
/// Products are in fp8, scaled so.
bool fp8_scaled(const Plan& plan, Fp8Recipe recipe);

/// As the executor does it, by the recipes that it has: every product casts both operands.
bool casts_for_each_product(const Stack& stack, const Plan& plan);

/// Rewrites the products of `list`, which is a layer's. Does nothing in bf16 and fp16.
void lower_precision(const ProgramWriter& writer, Ops& list);

/// Products in fp8 want a transposed copy of operands whose inner dimension is not the last, but
/// where the GPU multiplies both ways and the stack lets it.
bool transposes_fp8(const Stack& stack, const Gpu& gpu);

/// Parameters that stay in fp8 are gathered so. Those with blocks of 32 are scaled along rows and
/// along columns by who has whole rows and columns, so they travel in bf16 (Megatron-LM
/// core/distributed, reuse_grad_buf_for_mxfp8_param_ag).
bool gathers_narrow_weights(const Plan& plan);

/// Memory traffic a step of casting a parameter, per parameter of the layers' matrices.
/// `transposes`: GEMMs in fp8 want a transposed copy, too.
double weight_cast_bytes(const Plan& plan, bool transposes);

/// Bytes of an element that a product in that precision reads.
double narrow_bytes(Precision precision);

/// Bytes of one element that backward keeps of a product's input.
double saved_input_bytes(const Plan& plan);

/// Bytes of a parameter of the layers that stay over a step: the parameter and its copies in fewer
/// bits. Tensor cores before Blackwell multiply fp8 only with the inner dimension last, so weights
/// with one scale a tensor have a transposed copy there; block scales always need both.
double weight_bytes(const Plan& plan, const Stack& stack, const Gpu& gpu);

/// The dense peak of the type that the plan multiplies in; 0: the GPU lacks it.
double peak_flops(const Gpu& gpu, Precision precision);

// In which type backward writes weight gradients, for the programs that count its traffic and the
// strategies that reduce them.
//
// Where gradients are reduced in fp32, GEMMs of the native framework, and of those that add to the
// sum of gradients themselves, write fp32: nothing is rounded to bf16 and widened again. Others
// write the compute type and cast.

/// Whether GEMMs of weight gradients add to the sum over micro-batches in their own kernel.
inline bool adds_in_product(const Stack& stack) {
  return stack.optimizer.bucketed && stack.parallel.accumulates_in_product;
}

inline DType gradient_dtype(const Plan& plan, const Stack& stack) {
  const bool straight = (adds_in_product(stack) || stack.memory == MemoryManager::kStatic) &&
                        plan.reduce_dtype == DType::kFp32;
  return straight ? plan.reduce_dtype : plan.param_dtype;
}

// Counts and sizes as real numbers, in formulas.

inline double f(std::int64_t value) {
  return static_cast<double>(value);
}

}  // namespace shardwright::sim
