// SPDX-License-Identifier: Apache-2.0
// Models small enough to train in milliseconds, with sizes that do not divide by numbers of ranks.
#pragma once

#include <ostream>

#include "sim/core/model.h"
#include "sim/core/plan.h"

namespace shardwright {

inline void PrintTo(const Model& model, std::ostream* out) {
  *out << model.name;
}

}  // namespace shardwright

namespace shardwright::testing {

/// L=3, C=64, heads 4/2, F=88, V=101.
Model tiny_llama();
/// The same with biases on query, key and value.
Model tiny_qwen2();
/// The same with norms on query and key heads.
Model tiny_qwen3();
/// The families with LayerNorm: learned positions and biases; ALiBi and none; parallel residuals, a
/// part of each head rotated and biases.
Model tiny_gpt2();
Model tiny_mpt();
Model tiny_gpt_neox();
/// Norms that add 1 to their weights, a scaled embedding that is the head, GeGLU.
Model tiny_gemma();
/// Four norms a layer, capped scores and logits.
Model tiny_gemma2();
/// Sizes that no number of ranks divides.
Model uneven_llama();

/// `model` with the embedding as its head.
Model tied(Model model);

/// Native stack, fp32 throughout, sequences of 32 tokens.
Plan tiny_plan(Strategy strategy, std::int64_t ranks, std::int64_t grad_accum = 1);

}  // namespace shardwright::testing
