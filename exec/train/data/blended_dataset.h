// SPDX-License-Identifier: Apache-2.0
// Several datasets as one, in given shares: of 100 sequences of an epoch, so many are of each.
//
// An epoch is as long as it must be for the part that its share stretches the most to be seen once;
// parts that are too short for theirs are seen again within it. Without shares every sequence of
// every part is seen once. The order of sequences, and with it the mixing, is data_order.h's.
#pragma once

#include <memory>
#include <vector>

#include "exec/train/data/dataset.h"

namespace shardwright::exec {

struct BlendedPart {
  std::unique_ptr<Dataset> data;
  double share = 0;  // relative to the others'; 0 for all: as many as each has
};

/// Shares are all positive or all 0. Throws Error where an epoch would be too long to number.
std::unique_ptr<Dataset> make_blended_dataset(std::vector<BlendedPart> parts);

}  // namespace shardwright::exec
