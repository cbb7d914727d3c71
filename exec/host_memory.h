// SPDX-License-Identifier: Apache-2.0
// Plain memory of the host as an allocation: for devices that have no better one.
#pragma once

#include <memory>

#include "exec/device.h"

namespace shardwright::exec {

/// Throws Error when the machine refuses it.
std::unique_ptr<Allocation> pageable_memory(Bytes bytes);

}  // namespace shardwright::exec
