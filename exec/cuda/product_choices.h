// SPDX-License-Identifier: Apache-2.0
// The fastest of cuBLASLt's algorithms for every product of a run: timed once, by rank 0, before
// the first step, and the same on all ranks.
//
// Rank 0 goes through a step that counts for nothing (Executor::rehearse_alone) and times what it
// meets, on the operands and the workspace of the run; the others wait, also those on the same GPU,
// and are told. In a pipeline the first rank of every stage does so, one after the other, because
// stages multiply other shapes. What was chosen is kept (sim/core/product_choices.h), and with it a
// run that goes on computes the bits of the run before.
#pragma once

#include <span>
#include <string>

#include "exec/batch.h"
#include "sim/core/product_choices.h"

namespace shardwright::exec {

class CudaDevice;
class Executor;

namespace cuda {

/// Called by all ranks before anything else is run. `known` by rank 0, from earlier runs and
/// measurements: of these, what is of this library and GPU, the first that names a product; what
/// none names is timed. Returns what holds on all ranks.
ProductChoices agree_on_products(Executor& executor, CudaDevice& device, const Batch& batch,
                                 const std::string& gpu, std::span<const ProductChoices> known);

}  // namespace cuda
}  // namespace shardwright::exec
