// SPDX-License-Identifier: Apache-2.0
// What a model, a cluster or a framework does not admit. A search goes on without such a plan; all
// else that is thrown, as of a file that cannot be read, ends it.
#pragma once

#include "sim/core/base/error.h"

namespace shardwright {

class InvalidPlan : public Error {
 public:
  using Error::Error;
};

}  // namespace shardwright
