// SPDX-License-Identifier: Apache-2.0
// The end of a step: the norm of gradients, and AdamW on a shard of parameters (kernels/arguments.h
// has the formula).
//
// Every element is computed alone in fp32 and its random bits depend on the seed, the step and the
// global index only, so any sharding gives the same bits. bf16 moments and bf16 master weights are
// rounded stochastically; with plain rounding a small update would vanish for good.
#pragma once

#include <span>

#include "kernels/arguments.h"
#include "kernels/bf16.h"
#include "kernels/exact_sum.h"
#include "kernels/host/parallel.h"

namespace shardwright::kernels::host {

/// The exact sum of squares; its square root over all shards is the gradient norm.
template <class T>
ExactSum sum_of_squares(Parallel& parallel, std::span<const T> x);

/// One step on the parameters with these indices in the model. P, G and M are float or BFloat16:
/// master parameters, gradients and both moments. Index i rounds m with the low and v with the high
/// half of its word of RandomSite::kRoundMoments, p with the low half of that of
/// RandomSite::kRoundParameter.
template <class P, class G, class M>
void adamw(Parallel& parallel, const AdamW& options, const ElementIndices& indices,
           std::span<const G> gradient, std::span<P> parameter, std::span<M> m, std::span<M> v);

}  // namespace shardwright::kernels::host
