// SPDX-License-Identifier: Apache-2.0
// The fastest of cuBLASLt's algorithms for every product of a run: timed once, by rank 0, before
// the first step, and the same on all ranks.
//
// Rank 0 goes through a step that counts for nothing (Executor::rehearse_alone) and times what it
// meets, on the operands and the workspace of the run; the others wait, also those on the same GPU,
// and are told. What was chosen is kept as a file: a choice is a place in the library's list, so it
// means something only to the same release of the library on the same kind of GPU, and with it a
// run that goes on computes the bits of the run before.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "exec/batch.h"
#include "exec/cuda/products.h"

namespace shardwright::exec {

class CudaDevice;
class Executor;

namespace cuda {

struct ProductChoices {
  std::string release;  // "13.1.0"
  std::string gpu;
  std::vector<ProductChoice> choices;
};

std::string to_json(const ProductChoices& choices);
/// Throws Error naming `file`.
ProductChoices product_choices_from(std::string_view text, const std::string& file);

/// Called by all ranks before anything else is run. `known` by rank 0, from an earlier run, where
/// it is of this library and GPU; what it does not name is timed. Returns what holds on all ranks.
ProductChoices agree_on_products(Executor& executor, CudaDevice& device, const Batch& batch,
                                 const std::string& gpu, const ProductChoices& known);

}  // namespace cuda
}  // namespace shardwright::exec
